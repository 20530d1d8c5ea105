"""What is wrong with an MPS daemon, and what its owner does about it. Pure.

Rule: health is the identity of processes, and the configuration that they were started with. An exit status
says nothing here, and a question is only asked now and then; a daemon counts as wedged after `SILENT_MAX`
questions in a row without an answer. Nothing is ended under running jobs: what becomes of clients whose
control daemon is killed is not documented, so a device then time-slices until its jobs have gone. The table
is the documentation; a test walks every cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

SILENT_MAX = 2


class DaemonCondition(Enum):
    """The first that applies, in this order."""

    STRANGER = "somebody else's daemon serves this pipe directory"
    ABSENT = "no daemon runs"
    DOUBLED = "two daemons of ours run for one pipe directory"
    DISPLACED = "its pipe directory was removed or made anew under it"
    WEDGED = "it does not answer"
    OUTDATED = "it was started by another driver, or has memory limits that are not ours"
    OTHER_DEVICES = "it serves other devices than are offered now"
    HEALTHY = "it runs"


class Remedy(Enum):
    NOTHING = "nothing"
    START = "start one"
    REPLACE = "end what runs, by identity, and start one"
    SERVE_THOSE = "share the devices that it serves, by its own numbers"
    WAIT = "no sharing here until the jobs on its devices have ended"
    REFUSE = "leave it alone, and no sharing here"


TABLE: dict[tuple[DaemonCondition, bool], Remedy] = {
    # (condition, jobs run on its devices)
    (DaemonCondition.STRANGER, False): Remedy.REFUSE,
    (DaemonCondition.STRANGER, True): Remedy.REFUSE,
    (DaemonCondition.ABSENT, False): Remedy.START,
    (DaemonCondition.ABSENT, True): Remedy.START,  # New clients need one; the old ones keep their server.
    (DaemonCondition.DOUBLED, False): Remedy.REPLACE,
    (DaemonCondition.DOUBLED, True): Remedy.WAIT,
    (DaemonCondition.DISPLACED, False): Remedy.REPLACE,
    (DaemonCondition.DISPLACED, True): Remedy.WAIT,
    (DaemonCondition.WEDGED, False): Remedy.REPLACE,
    (DaemonCondition.WEDGED, True): Remedy.WAIT,
    (DaemonCondition.OUTDATED, False): Remedy.REPLACE,
    (DaemonCondition.OUTDATED, True): Remedy.WAIT,
    (DaemonCondition.OTHER_DEVICES, False): Remedy.REPLACE,
    (DaemonCondition.OTHER_DEVICES, True): Remedy.SERVE_THOSE,
    (DaemonCondition.HEALTHY, False): Remedy.NOTHING,
    (DaemonCondition.HEALTHY, True): Remedy.NOTHING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What the owner sees of one daemon."""

    stranger: bool = False
    """A live daemon names this pipe directory and does not carry our mark."""
    ours: int = 0
    """Live daemons that carry our mark and name this pipe directory."""
    in_place: bool = True
    """The control socket that it made is the one in the directory."""
    silent: int = 0
    """Questions in a row without an answer in time."""
    outdated: bool = False
    """It has not the driver, or the memory limits, that a daemon has which is started now."""
    other_devices: bool = False
    """Its list of devices is not that of a daemon which is started now; the order counts."""


def condition(sight: Sight) -> DaemonCondition:
    if sight.stranger:
        return DaemonCondition.STRANGER
    if not sight.ours:
        return DaemonCondition.ABSENT
    if sight.ours > 1:
        return DaemonCondition.DOUBLED
    if not sight.in_place:
        return DaemonCondition.DISPLACED
    if sight.silent >= SILENT_MAX:
        return DaemonCondition.WEDGED
    if sight.outdated:
        return DaemonCondition.OUTDATED
    if sight.other_devices:
        return DaemonCondition.OTHER_DEVICES
    return DaemonCondition.HEALTHY


def remedy(sight: Sight, *, in_use: bool) -> Remedy:
    return TABLE[condition(sight), in_use]
