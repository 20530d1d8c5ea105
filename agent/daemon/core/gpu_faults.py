"""Who ends with a fault of a GPU, in which role, and what is said of it. Pure.

Rule: a fault is written into the attempt's record before anybody is told to end, so that the end is told
right even by an agent that was started meanwhile. A program is only blamed where it was alone, or where its
process is known; where several were on the device and nobody knows which, each is a suspect.

    alone on the device          culprit, and a failure of the user's: nobody else can have caused it
    its process is the cause     culprit; others were hurt, so it is not counted as a failure of the user's
    another's process is         hit
    nobody knows                 suspect
    the device itself failed     device: nobody's doing

News of a fault come in any order, several times, and before or after the ends they cause. So what is known
of one is only ever joined (`joined`: the graver role, the better ground), and the verdict on an end is made
once, when its devices were looked at anew: from the end and the join, whatever came first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from cotenant.agent.daemon.core.edge import GpuFault
from cotenant.agent.daemon.core.memory import Attempt, Fault, Key, StopAsked
from cotenant.agent.ipc.records import Result
from cotenant.controller.domain.events import GpuFaultRole

CONTAINED_S: Final = 60.0
"""A process that dies so soon after an error on its device, of which nobody knows whose it was, made it."""
JUST_S: Final = 10.0
"""Who failed so shortly before a fault was told may have died of it."""
_GRAVITY: Final[tuple[GpuFaultRole, ...]] = ("", "suspect", "hit", "culprit", "device")
"""One word about a fault may know more than another."""


def joined(one: Fault | None, other: Fault) -> Fault:
    """What two words about a fault say together: the same whichever came first, and how often."""
    if one is None:
        return other
    first, second = sorted((one, other), key=_weight)
    beside = tuple(sorted({*first.beside, *second.beside}))
    return msgspec.structs.replace(second, beside=beside)


def _weight(fault: Fault) -> tuple[int, int, str, str]:
    return _GRAVITY.index(fault.role), fault.weight, fault.why, fault.where


def word(fault: GpuFault, role: GpuFaultRole, where: str, beside: Collection[Key] = ()) -> Fault:
    """One word about a fault, as an attempt's record keeps it."""
    weight = 2 if fault.xid is not None else 0 if fault.by_words else 1
    jobs = tuple(sorted({key[0] for key in beside}))
    return Fault(role=role, why=fault.why, where=where, beside=jobs, weight=weight)


def struck(attempt: Attempt, fault: GpuFault, co_tenants: Collection[Key], where: str) -> Attempt | None:
    """The attempt's record after a fault; None if it says nothing new. `co_tenants`: the other attempts on
    the device then."""
    said = word(fault, role_of(attempt.key, fault, co_tenants), where, co_tenants)
    record = joined(attempt.fault, said)
    stop = StopAsked(save=False, deadline_s=0.0, reason=fault.why)
    keeps_stop = not fault.ends or (attempt.stop is not None and not attempt.stop.save)
    struck = msgspec.structs.replace(attempt, fault=record, stop=attempt.stop if keeps_stop else stop)
    return struck if struck != attempt else None


def role_of(key: Key, fault: GpuFault, co_tenants: Collection[Key]) -> GpuFaultRole:
    if fault.device_failed:
        return "device"
    if key in fault.culprits:
        return "culprit"
    if any(other in fault.culprits for other in co_tenants):
        return "hit"
    return "suspect" if co_tenants or fault.strangers else "culprit"


def judged(result: Result, fault: Fault | None) -> Result:
    """A result in the light of the fault that struck the attempt."""
    if fault is None or result.outcome in ("finished", "never-started"):
        return result
    others = ", ".join(fault.beside) or "not one of ours"
    alone = fault.role == "culprit" and not fault.beside
    said = _WORDS["alone" if alone else fault.role].format(why=fault.why, where=fault.where, others=others)
    by_itself = result.outcome in ("user-failed", "infra-failed") and result.detail
    return msgspec.structs.replace(
        result,
        outcome="user-failed" if alone else "infra-failed",
        detail=f"{said}; {result.detail}" if by_itself else said,
        gpu_fault=fault.role,
    )


_WORDS: Final[dict[str, str]] = {
    "alone": "{why} on {where}, which it had to itself: an error of the program",
    "culprit": "{why} on {where}, caused by this job beside {others}",
    "hit": "{why} on {where}, caused by a job beside it ({others})",
    "suspect": "{why} on {where}: this job or one beside it caused it ({others}), nobody knows which",
    "device": "the GPU failed: {why} on {where}",
}


def contained(result: Result, fault: Fault) -> Result:
    """An attempt that died by itself just after an error which stays in one process: it was its own, or it
    used what broke."""
    if result.outcome not in ("user-failed", "infra-failed"):
        return result
    if fault.role == "device":
        return judged(result, fault)
    if not result.cuda_fault:
        return result
    return msgspec.structs.replace(
        result, detail=f"{fault.why} on {fault.where}; {result.detail}", gpu_fault="culprit"
    )


def own_fault(result: Result, uuids: Sequence[str]) -> GpuFault | None:
    """What a CUDA error in one client of an MPS server means for all others of its devices: nobody may have
    told of it yet."""
    if not result.cuda_fault or not uuids:
        return None
    return GpuFault(uuids=tuple(uuids), why="a fatal CUDA error", by_words=True)
