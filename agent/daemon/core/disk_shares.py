"""What the jobs of one user may take of the disk of the state folder, and which job ends where it is nearly
full. Pure.

Rule: the share bounds what is written for a user: no copy of a tree that would not fit, and short logs where
little is left. What a job itself writes into its copy is seen only afterwards: it is told so, and ends only
where the disk is nearly full, before others find it full.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cotenant.agent.daemon.core.edge import ShareExceeded
from cotenant.agent.daemon.core.remembered import AttemptKey

MIB: Final = 1024 * 1024
SHARE_BYTES_MIN: Final = 4096 * MIB
NEARLY_FULL: Final = 0.05
"""With less of its room, or of its inodes, left."""
LOG_BYTES_MIN: Final = 64 * 1024


class DiskUse(msgspec.Struct, frozen=True, kw_only=True):
    """The disk, and what is on it of each user, by uid."""

    share_bytes: int
    """Of one user."""
    free: float
    """The part of its room, or of its inodes, that is left: the lesser one."""
    users: dict[int, int] = {}
    copies: dict[str, tuple[int, int]] = {}
    """By name: whose it is, and its bytes."""

    @property
    def is_nearly_full(self) -> bool:
        return self.free < NEARLY_FULL

    def judge(self, running: Mapping[AttemptKey, str]) -> tuple[ShareExceeded, ...]:
        """Whom to tell, and who ends: the largest copy of the user who is furthest over the share.
        `running`: by attempt, the name of its copy."""
        copies = {key: self.copies[name] for key, name in running.items() if name in self.copies}
        over = {key: copy for key, copy in copies.items() if self.users[copy[0]] > self.share_bytes}
        last = max(over, key=lambda key: (self.users[over[key][0]], over[key][1]), default=None)
        told = f"copies and logs of its user take more than {self._share} (agent.user_share_mib); "
        told += "now that the disk" if self.is_nearly_full else "once the disk"
        told += " is nearly full, the job that has written most below its copy ends: write elsewhere"
        return tuple(
            ShareExceeded(job_id=key[0], attempt=key[1], what=told, ends=self.is_nearly_full and key == last)
            for key in over
        )

    def refusal(self, user: str, used: int, more: int) -> str:
        """Why a user gets no copy of so many bytes beside those in use; empty: it fits."""
        if used + more <= self.share_bytes:
            return ""
        what = f"copies and logs of {user}'s jobs take {used // MIB} MiB, and {more // MIB} MiB more are over"
        return f"{what} {self._share} (agent.user_share_mib): remove what earlier jobs left in their copies"

    @property
    def _share(self) -> str:
        return f"the {self.share_bytes // MIB} MiB that one user may have on its host's disk"

    def log_bytes_max(self, wanted: int, uid: int, ranks: int) -> int:
        """Of each rank: half of what is left, so that another job has room as well."""
        left = self.share_bytes - self.users.get(uid, 0)
        return min(wanted, max(LOG_BYTES_MIN, left // (2 * ranks)))


def share_of(disk_bytes: int) -> int:
    """A tenth of the disk; of a small one more, and never more than half."""
    return min(disk_bytes // 2, max(disk_bytes // 10, SHARE_BYTES_MIN))
