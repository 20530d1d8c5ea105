"""Identifiers, which are not bare strings, and epochs: which history of the cluster a number belongs to.

Rule: a controller begins a new epoch at every start, durably, before it sends anything. So a journal that was
restored from a copy goes on in an epoch that no agent has followed yet, although it issues job, attempt and
command numbers a second time. Compare two numbers only together with the random tokens of their epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NewType

import msgspec

from cotenant.controller.domain.texts import is_whole_number

JobId = NewType("JobId", str)
"""`7`, or `7_3` for task 3 of an array: the controller numbers jobs from 1."""

HostId = NewType("HostId", str)

DeviceId = NewType("DeviceId", str)
"""`HOST/LOCAL`, e.g. `gpu07/0` or `laptop/cpu1`; unique in the cluster, stable over restarts."""

CommandId = NewType("CommandId", int)
"""Numbered by the engine; agents obey each at most once."""

AttemptNo = NewType("AttemptNo", int)
"""Launches of one job, from 1. Fences everything the attempt writes."""


def natural_key(job_id: str) -> tuple[tuple[int, str], ...]:
    """Order `9` before `10` and `7_2` before `7_10`: ties between jobs break by this."""
    return tuple((int(part), "") if is_whole_number(part) else (0, part) for part in job_id.split("_"))


def array_of(job_id: str) -> str:
    """The number of the array that a task is of; of any other job its own."""
    return job_id.partition("_")[0]


NUMBER_MAX = 2**40
"""More starts than any journal sees: a larger number is refused."""
PAST_KEPT = 1000
"""Epochs that a journal remembers. An agent that followed an older one counts as one of a lost history."""


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """A start of a controller on one journal, and what followed until the next."""

    number: int = 0
    """Rises along every history, and above what any agent has followed. 0: before the first."""
    token: str = ""
    """Random: two histories that part have the same numbers, and never the same tokens."""

    def __post_init__(self) -> None:
        if not 0 <= self.number <= NUMBER_MAX:
            raise ValueError(f"there is no epoch {self.number}")


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch that is over, in the history of this journal."""

    token: str
    reached: int
    """Its last entry."""


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent says of the controller that it obeyed last."""

    journal: str = ""
    epoch: Epoch = Epoch()
    reached: int = 0
    """The greatest entry of the journal that the agent has seen in that epoch."""
    confirmed: int = 0
    """The last of its reports that the controller confirmed as durable."""
    past: tuple[str, ...] = ()
    """Tokens of epochs that it followed before, oldest first, as far as it remembers."""


EpochStanding = Literal["follows", "restored", "superseded"]
"""follows: the agent's history is a part of ours. restored: it has seen a history that this journal has lost,
so this journal was put back from a copy. superseded: the agent left our present epoch for another's: another
controller took over, and we have not noticed."""


def standing(
    followed: Followed, journal: str, now: Epoch, past: Sequence[Past], reports_seen: int
) -> EpochStanding:
    """How an agent stands to a controller in epoch `now`, whose journal has these epochs behind it."""
    if followed.journal != journal or followed.epoch.token == now.token:
        return "follows"  # An agent of another journal knows what to do: see `_same_journal`.
    if now.token in followed.past:
        return "superseded"
    if followed.confirmed > reports_seen:
        return "restored"
    if not followed.epoch.token:
        return "follows"  # Its notes were cut off before the first epoch.
    reached = next((each.reached for each in reversed(past) if each.token == followed.epoch.token), -1)
    return "follows" if followed.reached <= reached else "restored"
