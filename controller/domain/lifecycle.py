"""The phases that a job goes through.

Rule: `LIFECYCLE` is the only place that says which phase follows which; `advance` is the only way.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal


class Phase(StrEnum):
    """The phase in which a job stands. See `LIFECYCLE`."""

    BLOCKED = "blocked"
    """Not yet eligible: waits for another job, or for the end of a back-off."""
    HELD = "held"
    QUEUED = "queued"
    RESERVED = "reserved"
    """Devices are chosen, and victims are still leaving them; nothing has been sent."""
    LOADING = "loading"
    RUNNING = "running"
    CHECKPOINTING = "checkpointing"
    """Asked to save and leave; devices still held."""
    STOPPING = "stopping"
    """Being ended without a (further) save; devices still held."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


# Looking a member up in its class costs more than all else in a comparison; what is asked several times per
# event is asked by these names.
QUEUED: Final = Phase.QUEUED
RESERVED: Final = Phase.RESERVED
LOADING: Final = Phase.LOADING
RUNNING: Final = Phase.RUNNING
CHECKPOINTING: Final = Phase.CHECKPOINTING
STOPPING: Final = Phase.STOPPING

WAITING = frozenset({Phase.BLOCKED, Phase.HELD, Phase.QUEUED})
ON_DEVICES = frozenset({Phase.LOADING, Phase.RUNNING, Phase.CHECKPOINTING, Phase.STOPPING})
LEAVING = frozenset({Phase.CHECKPOINTING, Phase.STOPPING})
ENDED = frozenset({Phase.DONE, Phase.FAILED, Phase.CANCELLED})

ChangeVerb = Literal["checkpoint", "preempt", "requeue", "hold", "release", "cancel"]
CHANGEABLE: Final[dict[ChangeVerb, frozenset[Phase]]] = {
    "checkpoint": frozenset({Phase.RUNNING}),
    "preempt": frozenset({Phase.LOADING, Phase.RUNNING}),
    "requeue": ENDED | {Phase.LOADING, Phase.RUNNING},
    "hold": frozenset({Phase.QUEUED, Phase.BLOCKED, Phase.RESERVED}),
    "release": frozenset({Phase.HELD}),
    "cancel": frozenset(set(Phase) - ENDED),
}
"""In which phases a change that a person asks for means something."""


class Change(StrEnum):
    """What can happen to a job, as the lifecycle sees it."""

    BLOCK = "block"
    UNBLOCK = "unblock"
    HOLD = "hold"
    RELEASE = "release"
    RESERVE = "reserve"
    UNRESERVE = "unreserve"
    LAUNCH = "launch"
    FIRST_STEP = "first-step"
    SAVE_AND_STOP = "save-and-stop"
    STOP = "stop"
    """End it without a save: it is loading, cannot resume, or missed its deadline."""
    LEAVE = "leave"
    """All its processes are gone and it waits again (preempted, or to be retried)."""
    LEAVE_BLOCKED = "leave-blocked"
    LEAVE_HELD = "leave-held"
    FINISH = "finish"
    FAIL = "fail"
    CANCEL = "cancel"
    BEGIN_AGAIN = "begin-again"
    """It had ended, and somebody wants it once more."""


LAUNCH: Final = Change.LAUNCH
FIRST_STEP: Final = Change.FIRST_STEP
FINISH: Final = Change.FINISH
LEAVE: Final = Change.LEAVE

LIFECYCLE: dict[tuple[Phase, Change], Phase] = {
    (Phase.BLOCKED, Change.UNBLOCK): Phase.QUEUED,
    (Phase.BLOCKED, Change.HOLD): Phase.HELD,
    (Phase.BLOCKED, Change.CANCEL): Phase.CANCELLED,
    (Phase.HELD, Change.RELEASE): Phase.QUEUED,
    (Phase.HELD, Change.BLOCK): Phase.BLOCKED,  # released while a dependency is still open
    (Phase.HELD, Change.CANCEL): Phase.CANCELLED,
    (Phase.QUEUED, Change.BLOCK): Phase.BLOCKED,
    (Phase.QUEUED, Change.HOLD): Phase.HELD,
    (Phase.QUEUED, Change.RESERVE): Phase.RESERVED,
    (Phase.QUEUED, Change.LAUNCH): Phase.LOADING,
    (Phase.QUEUED, Change.CANCEL): Phase.CANCELLED,
    (Phase.RESERVED, Change.LAUNCH): Phase.LOADING,
    (Phase.RESERVED, Change.UNRESERVE): Phase.QUEUED,
    (Phase.RESERVED, Change.HOLD): Phase.HELD,
    (Phase.RESERVED, Change.CANCEL): Phase.CANCELLED,
    (Phase.LOADING, Change.FIRST_STEP): Phase.RUNNING,
    (Phase.LOADING, Change.STOP): Phase.STOPPING,  # a futile preemption, a cancel, a lost peer
    (Phase.LOADING, Change.SAVE_AND_STOP): Phase.CHECKPOINTING,
    (Phase.RUNNING, Change.SAVE_AND_STOP): Phase.CHECKPOINTING,
    (Phase.RUNNING, Change.STOP): Phase.STOPPING,
    (Phase.CHECKPOINTING, Change.STOP): Phase.STOPPING,  # the deadline passed, or a cancel overtook it
    # Devices go back only here, when every process of the gang is gone.
    **{
        (phase, change): after
        for phase in (Phase.LOADING, Phase.RUNNING, Phase.CHECKPOINTING, Phase.STOPPING)
        for change, after in (
            (Change.LEAVE, Phase.QUEUED),
            (Change.LEAVE_BLOCKED, Phase.BLOCKED),
            (Change.LEAVE_HELD, Phase.HELD),
            (Change.FINISH, Phase.DONE),
            (Change.FAIL, Phase.FAILED),
            (Change.CANCEL, Phase.CANCELLED),
        )
    },
    **{(phase, Change.BEGIN_AGAIN): Phase.QUEUED for phase in (Phase.DONE, Phase.FAILED, Phase.CANCELLED)},
}


class InvalidTransition(AssertionError):
    """An error of the programmer: the engine asked for a change that the lifecycle does not have."""


def advance(phase: Phase, change: Change) -> Phase:
    """The phase after a change.

    Raises:
        InvalidTransition: the table has no such cell.
    """
    after = LIFECYCLE.get((phase, change))
    if after is None:
        raise InvalidTransition(f"{change} is not possible for a job that is {phase}")
    return after
