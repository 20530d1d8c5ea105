"""What is wrong with an MPS daemon, and what its owner does about it. Pure.

Rule: health is the identity of processes, and the configuration that they were started with. An exit status
says nothing here, and a question is only asked now and then; a daemon counts as wedged after `SILENT_MAX`
questions in a row without an answer. Nothing is ended under running jobs: what becomes of clients whose
control daemon is killed is not documented, so a device then time-slices until its jobs have gone. The table
is the documentation; a test walks every cell.
"""

from __future__ import annotations

from collections.abc import Mapping
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


TABLE: dict[DaemonCondition, tuple[Remedy, Remedy]] = {
    # While no jobs run on its devices, and while some do.
    DaemonCondition.STRANGER: (Remedy.REFUSE, Remedy.REFUSE),
    DaemonCondition.ABSENT: (Remedy.START, Remedy.START),  # New clients need one; old ones keep their server.
    DaemonCondition.DOUBLED: (Remedy.REPLACE, Remedy.WAIT),
    DaemonCondition.DISPLACED: (Remedy.REPLACE, Remedy.WAIT),
    DaemonCondition.WEDGED: (Remedy.REPLACE, Remedy.WAIT),
    DaemonCondition.OUTDATED: (Remedy.REPLACE, Remedy.WAIT),
    DaemonCondition.OTHER_DEVICES: (Remedy.REPLACE, Remedy.SERVE_THOSE),
    DaemonCondition.HEALTHY: (Remedy.NOTHING, Remedy.NOTHING),
}


def condition(applies: Mapping[DaemonCondition, bool]) -> DaemonCondition:
    """The first that applies; one that is not given does not."""
    return next((each for each in DaemonCondition if applies.get(each)), DaemonCondition.HEALTHY)
