"""Whom a fault of a GPU ends, in which role, what the report says, and what the agent remembers for it. Pure.

Rule: the agent writes a fault into the attempt's record before it tells anybody to end, so that an agent that
starts meanwhile reports the end correctly. It blames a program only where that was alone, or where its
process is known; of several on the device each is a suspect.

    alone on the device          culprit, and a failure of the user's: nobody else can have caused it
    its process is the cause     culprit; others were hurt, so it is not counted as a failure of the user's
    another's process is         hit
    nobody knows                 suspect
    the device itself failed     device: nobody's doing

News of a fault come in any order, several times, and before or after the ends they cause. So the agent only
ever joins what it knows of one (`joined`: the graver role, the better ground), and gives the verdict on an
end once, after a new probe of its devices, from the end and the join. `FaultWitnesses` remembers: a fault
strikes an ended attempt until its end is reported; an attempt that has just died still counts as a co-tenant;
and one that died by itself around an error that stays in one process counts as its cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from cotenant.agent.daemon.core.edge import GpuFault
from cotenant.agent.daemon.core.memory import AgentMemory
from cotenant.agent.daemon.core.remembered import BY_XID, Attempt, AttemptKey, Fault, StopAsked
from cotenant.agent.ipc.records import Result
from cotenant.controller.domain import CUDA_NOT_STARTED, DeviceId, GpuFaultRole, HostReport

CONTAINED_S: Final = 60.0
"""A process that dies so soon after an error on its device whose cause is unknown has caused it."""
JUST_S: Final = 10.0
"""Who failed so shortly before a fault was told may have died of it."""
_GRAVITY: Final[tuple[GpuFaultRole, ...]] = ("", "suspect", "hit", "culprit", "device")
"""One report about a fault may know more than another."""
_WORDS: Final[dict[str, str]] = {
    "alone": "{why} on {where}, which it had to itself: an error of the program",
    "culprit": "{why} on {where}, caused by this job beside {others}",
    "hit": "{why} on {where}, caused by a job beside it ({others})",
    "suspect": "{why} on {where}: this job or one beside it caused it ({others}), nobody knows which",
    "device": "the GPU failed: {why} on {where}",
    "works": "CUDA was tried on {where} after that and works: does the job change CUDA_VISIBLE_DEVICES, or "
    "load the libraries of another driver?",
}


def join_faults(one: Fault | None, other: Fault) -> Fault:
    """Two reports about a fault, joined: the same whichever came first, and how often."""
    if one is None:
        return other
    first, second = sorted((one, other), key=_weight)
    beside = tuple(sorted({*first.beside, *second.beside}))
    return msgspec.structs.replace(second, beside=beside)


def _weight(fault: Fault) -> tuple[int, int, str, str]:
    return _GRAVITY.index(fault.role), fault.weight, fault.why, fault.where


def word(fault: GpuFault, role: GpuFaultRole, where: str, beside: Collection[AttemptKey] = ()) -> Fault:
    """Returns one report about a fault, as an attempt's record keeps it."""
    weight = BY_XID if fault.xid is not None else 0 if fault.by_words else 1
    jobs = tuple(sorted({key[0] for key in beside}))
    return Fault(role=role, why=fault.why, where=where, beside=jobs, weight=weight)


def struck(
    attempt: Attempt, fault: GpuFault, co_tenants: Collection[AttemptKey], where: str
) -> Attempt | None:
    """The attempt's record after a fault; None if it says nothing new. `co_tenants`: the other attempts on
    the device then."""
    said = word(fault, role_of(attempt.key, fault, co_tenants), where, co_tenants)
    record = join_faults(attempt.fault, said)
    stop = StopAsked(save=False, deadline_s=0.0, reason=fault.why)
    keeps_stop = not fault.ends or (attempt.stop is not None and not attempt.stop.save)
    struck = msgspec.structs.replace(attempt, fault=record, stop=attempt.stop if keeps_stop else stop)
    return struck if struck != attempt else None


def role_of(key: AttemptKey, fault: GpuFault, co_tenants: Collection[AttemptKey]) -> GpuFaultRole:
    if fault.device_failed:
        return "device"
    if key in fault.culprits:
        return "culprit"
    if any(other in fault.culprits for other in co_tenants):
        return "hit"
    return "suspect" if co_tenants or fault.strangers else "culprit"


def judge_fault(result: Result, fault: Fault | None) -> Result:
    """A result, given the fault that struck the attempt."""
    if fault is None or result.verdict.outcome in ("finished", "never-started"):
        return result
    others = ", ".join(fault.beside) or "not one of ours"
    alone = fault.role == "culprit" and not fault.beside
    said = _WORDS["alone" if alone else fault.role].format(why=fault.why, where=fault.where, others=others)
    before = result.verdict
    by_itself = before.outcome in ("user-failed", "infra-failed") and bool(before.detail)
    verdict = msgspec.structs.replace(
        before,
        outcome="user-failed" if alone else "infra-failed",
        detail=f"{said}; {before.detail}" if by_itself else said,
        ours=f"{said}; {before.said[1]}" if by_itself else said,
    )
    return msgspec.structs.replace(result, verdict=verdict, gpu_fault=fault.role)


def judge_contained(result: Result, fault: Fault) -> Result:
    """An attempt that died by itself just after an error which stays in one process: it was its own, or it
    used what broke."""
    if result.verdict.outcome not in ("user-failed", "infra-failed"):
        return result
    if fault.role == "device":
        return judge_fault(result, fault)
    if not result.verdict.cuda_fault:
        return result
    detail, ours = (f"{fault.why} on {fault.where}; {each}" for each in result.verdict.said)
    verdict = msgspec.structs.replace(result.verdict, detail=detail, ours=ours)
    return msgspec.structs.replace(result, verdict=verdict, gpu_fault="culprit")


def judge_cuda(result: Result, tried: Mapping[DeviceId, str], *, by_mps: bool) -> Result:
    """A result, given what a try of CUDA has found on the attempt's devices after its end: by device why it
    does not work there; empty: it does. Where it works, a job that says it does not start is why, but for the
    client of an MPS daemon (`by_mps`), which the try is none of."""
    broken = sorted(device_id for device_id, why in tried.items() if why)
    if broken and not result.gpu_fault:
        return judge_fault(result, Fault(role="device", why=tried[broken[0]], where=", ".join(broken)))
    if result.gpu_fault or not tried or by_mps or result.verdict.rule != CUDA_NOT_STARTED:
        return result
    works = _WORDS["works"].format(where=", ".join(sorted(tried)))
    detail, ours = (f"{each}; {works}" for each in result.verdict.said)
    verdict = msgspec.structs.replace(result.verdict, outcome="user-failed", detail=detail, ours=ours)
    return msgspec.structs.replace(result, verdict=verdict)


def own_fault(result: Result, uuids: Sequence[str]) -> GpuFault | None:
    """What a CUDA error in one client of an MPS server means for all others of its devices: it may not have
    been reported yet."""
    if not result.verdict.cuda_fault or not uuids:
        return None
    return GpuFault(uuids=tuple(uuids), why="a fatal CUDA error", by_words=True)


_NEVER = float("inf")


class FaultWitnesses:
    def __init__(self, memory: AgentMemory) -> None:
        self._memory = memory
        self._departed: dict[AttemptKey, tuple[float, tuple[DeviceId, ...]]] = {}
        """Attempts that have failed by themselves: when, and where. The cause may be a fault that is not
        reported yet, and then those that are left were not alone."""
        self._contained: dict[AttemptKey, tuple[float, Fault]] = {}
        """Errors that stay in one process, with the attempts on the device: the one that fails has caused
        it."""

    def strike(
        self, fault: GpuFault, report: HostReport, live: Collection[AttemptKey], now_s: float
    ) -> Iterator[Attempt]:
        """The records of those that are to end with it."""
        hurt = {device.device_id for device in report.devices if device.local in fault.uuids}
        live = [key for key in live if key not in fault.spared]
        for key in live:
            attempt = self._memory.attempts[key]
            where = [device_id for device_id in attempt.devices if device_id in hurt]
            if not where:
                continue
            if not self._reaches(fault, key, where, live):
                if fault.culprits and key not in fault.culprits:
                    continue
                role: GpuFaultRole = "device" if fault.device_failed else "suspect"
                self._happened_near(key, word(fault, role, ", ".join(where)), now_s)
                continue
            near = hurt if fault.one_server else where
            others = (self._on(near, live) | self._just_departed(near, now_s) | {*fault.culprits}) - {key}
            record = struck(attempt, fault, others, ", ".join(where))
            if record is not None:
                yield record

    def _reaches(
        self, fault: GpuFault, key: AttemptKey, where: Collection[DeviceId], live: Collection[AttemptKey]
    ) -> bool:
        """Whether it ends that attempt: what one client of MPS does ends all clients and no other process;
        what a process without MPS does beside them, itself. Where no client is known, all of them."""
        if not fault.ends or fault.device_failed:
            return fault.ends
        clients = {other for other in self._on(where, live) if self._memory.attempts[other].mps}
        if not clients:
            return True
        if not fault.one_server and any(culprit not in clients for culprit in fault.culprits):
            return key in fault.culprits
        return key in clients

    def spread(
        self, key: AttemptKey, result: Result, report: HostReport, live: Collection[AttemptKey]
    ) -> GpuFault | None:
        """What the end of one client of MPS means for those it shared with."""
        attempt = self._memory.attempts[key]
        if attempt.fault is not None or not self._others_on(key, attempt.devices, live):
            return None
        # A client is one for its life: its device may be said to time-slice by now.
        by_mps = {d.device_id: d.local for d in report.devices if attempt.mps or d.sharing == "mps"}
        return own_fault(result, [by_mps[d] for d in attempt.devices if d in by_mps])

    def _happened_near(self, key: AttemptKey, near: Fault, now_s: float) -> None:
        at_s, before = self._contained.get(key, (-_NEVER, None))
        self._contained[key] = (
            now_s,
            join_faults(before if now_s <= at_s + CONTAINED_S else None, near),
        )

    def note_end(self, key: AttemptKey, result: Result, now_s: float) -> None:
        """No process of it is left; what its end is will be `judge_fault` later."""
        if result.verdict.outcome in ("user-failed", "infra-failed"):
            self._departed[key] = (now_s, self._memory.attempts[key].devices)

    def judge_end(self, key: AttemptKey, result: Result, ended_s: float) -> Result:
        """What a supervisor says of the end, given all faults known on its devices by now."""
        attempt = self._memory.attempts[key]
        at_s, near = self._contained.pop(key, (-_NEVER, None))
        if attempt.fault is None and near is not None and ended_s <= at_s + CONTAINED_S:
            return judge_contained(result, near)
        return judge_fault(result, attempt.fault)

    def _others_on(
        self, key: AttemptKey, devices: Collection[DeviceId], live: Collection[AttemptKey]
    ) -> set[AttemptKey]:
        """Who else holds one of these devices."""
        return self._on(devices, live) - {key}

    def _on(self, devices: Collection[DeviceId], live: Collection[AttemptKey]) -> set[AttemptKey]:
        here = set(devices)
        return {key for key in live if here & {*self._memory.attempts[key].devices}}

    def _just_departed(self, devices: Collection[DeviceId], now_s: float) -> set[AttemptKey]:
        oldest_s, here = now_s - JUST_S, set(devices)
        self._departed = {key: left for key, left in self._departed.items() if left[0] >= oldest_s}
        return {key for key, (_, where) in self._departed.items() if here & {*where}}
