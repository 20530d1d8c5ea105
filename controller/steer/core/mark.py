"""Who steers a cluster: a held job in Slurm's own queue, the mark, whose administrator's comment says who.

Rule: of all marks that count the one with the lowest number steers; Slurm numbers jobs one after the other,
so everybody sees the same one. Only an operator can write that comment, so no user's job can pose as a mark.
A mark holds for a while and is renewed each round: that of a steerer which died stops counting by itself. It
needs no shared file system, survives a restart of slurmctld, and everybody can see it in `squeue`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from cotenant.controller.steer.core.queue import rows_in

MARK_NAME: Final = "cotenant-steer"
MARK_FIELDS: Final = ("JobID", "admin_comment")
_VERSION: Final = "cotenant-steer/1"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """`state`: the file that lists the jobs that its steerer touched."""

    job_id: int
    host: str
    pid: int
    until_s: float
    state: str

    @property
    def comment(self) -> str:
        """One word, so that `scontrol` takes it from its standard input as it is."""
        return f"{_VERSION};{self.host};{self.pid};{self.until_s:.0f};{self.state}"


def marks_in(text: str, end: str) -> Iterator[Mark]:
    for number, comment in rows_in(text, end, len(MARK_FIELDS)):
        parts = comment.split(";", 4)
        is_mark = len(parts) == 5 and parts[0] == _VERSION and parts[2].isdecimal() and parts[3].isdecimal()
        if number.isdecimal() and is_mark:
            yield Mark(
                job_id=int(number), host=parts[1], pid=int(parts[2]), until_s=float(parts[3]), state=parts[4]
            )


def rival(marks: Iterable[Mark], mine: Mark, now_s: float) -> Mark | None:
    """Who steers before us; a mark of our own state file is that of a run of ours that is over, since the
    file is locked by whoever lives."""
    others = [
        each
        for each in marks
        if each.job_id < mine.job_id
        and each.until_s > now_s
        and (each.host, each.state) != (mine.host, mine.state)
    ]
    return min(others, key=lambda each: each.job_id, default=None)
