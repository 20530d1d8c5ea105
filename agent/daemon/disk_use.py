"""Measures what each user's jobs take of the disk of the state folder, and keeps them to their share.

Rule: `du` walks in a process of its own, behind all others, and a twentieth of the time at most, but where
the disk is nearly full. A host without `du` bounds nobody, and says so. An agent that is not root has one
user, whom nobody else pays for: it bounds that one only where `agent.user_share_mib` is set.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cotenant.agent.daemon.core.disk_shares import DiskUse, share_of
from cotenant.agent.daemon.core.edge import ShareExceeded
from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.ipc.records import LOGS, Order

LOOK_S: Final = 10.0
MEASURE_S: Final = 60.0
IDLE_TIMES: Final = 20.0
"""A measurement is followed by so many times its own duration without one."""


class DiskShares:
    """Nobody is bounded before the first measurement."""

    def __init__(self, attempts: Path, copies: Path, share_mib: int, log: Callable[[str], None]) -> None:
        """Prepares to measure. `share_mib`: 0: the usual one, where the agent runs jobs of several users."""
        self._attempts, self._copies, self._share_mib, self._log = attempts, copies, share_mib, log
        self._use: DiskUse | None = None

    async def run(
        self, running: Callable[[], Mapping[AttemptKey, str]], post: Callable[[ShareExceeded], None]
    ) -> None:
        """Measures until it is cancelled. `running`: the names of the copies of attempts that run."""
        loop, due_s = asyncio.get_running_loop(), 0.0
        while os.geteuid() == 0 or self._share_mib:
            began_s = loop.time()
            if self._disk().is_nearly_full or began_s >= due_s:
                try:
                    use = await self.measure()
                except OSError as error:
                    self._log(f"cannot measure what users have on the disk: {error}; nobody is bounded")
                    return
                due_s = loop.time() + max(MEASURE_S, IDLE_TIMES * (loop.time() - began_s))
                for each in use.judge(running()):
                    post(each)
            await asyncio.sleep(LOOK_S)

    async def measure(self) -> DiskUse:
        """Raises OSError: it cannot be measured here."""
        words = ("nice", "-n", "19", "du", "-xkd1", "--", str(self._copies), str(self._attempts))
        nothing, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        du = await asyncio.create_subprocess_exec(*words, stdin=nothing, stdout=pipe, stderr=nothing)
        try:
            said, _ = await du.communicate()
        finally:
            with suppress(ProcessLookupError):
                du.kill()
        self._use = use = await asyncio.to_thread(self._read, said.decode(errors="surrogateescape"))
        return use

    def _read(self, said: str) -> DiskUse:
        """What `du` has said, by the owners of copies and logs, which no job can give away."""
        users, copies = Counter[int](), dict[str, tuple[int, int]]()
        for line in said.splitlines():
            kib, _, path = line.partition("\t")
            found, size = Path(path), int(kib) * 1024
            with suppress(OSError, StopIteration):  # It has gone, or has no log yet.
                if found.parent == self._copies:
                    copies[found.name] = found.lstat().st_uid, size
                    users[copies[found.name][0]] += size
                elif found.parent == self._attempts:
                    users[next((found / LOGS).iterdir()).lstat().st_uid] += size
        return msgspec.structs.replace(self._disk(), users=dict(users), copies=copies)

    def _disk(self) -> DiskUse:
        space = os.statvfs(self._attempts.parent)
        parts = ((space.f_bavail, space.f_blocks), (space.f_favail, space.f_files))
        free = min((left / of for left, of in parts if of), default=1.0)  # Some count no inodes.
        share = self._share_mib * 1024 * 1024 or share_of(space.f_blocks * space.f_frsize)
        return DiskUse(share_bytes=share, free=free)

    def refuse_copy(self, order: Order, name: str) -> str:
        """Why the order gets no copy of that name; empty: it fits."""
        tree, use = order.launch.snapshot, self._use
        if tree is None or use is None or (name in use.copies and not use.is_nearly_full):
            return ""
        more = 0 if name in use.copies else tree.content_bytes
        return use.refusal(order.start.user, use.users.get(order.launch.uid, 0), more)

    def bound_logs(self, order: Order) -> Order:
        """The order with logs that fit into what is left of its user's share."""
        use, wanted = self._use, order.log_bytes_max
        most = wanted if use is None else use.log_bytes_max(wanted, order.launch.uid, len(order.ranks))
        if most == wanted:
            return order
        note = f"a log is cut beyond {most // 1024} KiB, for its user's share of the disk is nearly used up"
        return msgspec.structs.replace(order, log_bytes_max=most, notes=(*order.notes, note))
