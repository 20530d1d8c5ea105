"""What a job's own library says that it can do.

Rule: it is one value on its whole way: the supervisor makes it of what the ranks have said, and its status,
the agent's record, the event and the job hold it whole.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a job can do besides training. Whether it can resume stands beside this: it may be unknown."""

    resumable_note: str = ""
    """Why it cannot resume; empty where it can."""
    proven: int = 0
    """So many steps after its last resume came out as in the attempt before."""
    accumulates: bool = False
    """Its batches can be split, with exact gradient accumulation."""
    accumulates_note: str = ""
    """Why its batches stay whole; empty where they can be split, and where that is not known yet."""

    @property
    def refuses_to_split(self) -> bool:
        """Whether the job's library has said that its batches stay whole, and why."""
        return bool(self.accumulates_note) and not self.accumulates

    def learn(self, said: Capabilities) -> Capabilities:
        """Returns what is known once the job has said more: as long as it does not know whether its batches
        can be split, its last word on that counts."""
        known = said if said.accumulates or said.accumulates_note else self
        return msgspec.structs.replace(
            said, accumulates=known.accumulates, accumulates_note=known.accumulates_note
        )

    def forbid_splitting(self, why: str) -> Capabilities:
        """Returns the capabilities as they are once the job has refused to split its batches."""
        return msgspec.structs.replace(self, accumulates=False, accumulates_note=why)


def shared_by_all(said: Iterable[Capabilities]) -> Capabilities:
    """What all ranks can do, with the first word on each thing that one of them cannot."""
    ranks = list(said)
    return Capabilities(
        resumable_note=next((each.resumable_note for each in ranks if each.resumable_note), ""),
        proven=min((each.proven for each in ranks), default=0),
        accumulates=all(each.accumulates for each in ranks),
        accumulates_note=next((each.accumulates_note for each in ranks if each.accumulates_note), ""),
    )
