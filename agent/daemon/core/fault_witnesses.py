"""Who was on a device when it was struck by a fault: what is remembered of attempts to answer that. Pure.

Rule: news of a fault and the ends it causes come in any order. So an attempt that has ended is struck like
any other until its end was told; who has just died still counts as a co-tenant; and who died by itself around
an error that stays in one process is taken for the one that made it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from cotenant.agent.daemon.core import gpu_faults
from cotenant.agent.daemon.core.edge import GpuFault
from cotenant.agent.daemon.core.memory import AgentMemory, Attempt, Fault, Key
from cotenant.agent.ipc.records import Result
from cotenant.controller.domain.cluster import HostReport
from cotenant.controller.domain.events import GpuFaultRole
from cotenant.controller.domain.ids import DeviceId

_NEVER = float("inf")


class FaultWitnesses:
    def __init__(self, memory: AgentMemory) -> None:
        self._memory = memory
        self._departed: dict[Key, tuple[float, tuple[DeviceId, ...]]] = {}
        """Attempts that have failed by themselves: when, and where. They may have died of a fault that nobody
        has told of yet, and then whoever is left was not alone."""
        self._contained: dict[Key, tuple[float, Fault]] = {}
        """Errors that stay in one process, and whoever was on the device: if it dies, it was its own."""

    def strike(
        self, fault: GpuFault, report: HostReport, live: Collection[Key], now_s: float
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
                role: GpuFaultRole = "device" if fault.device_failed else "suspect"
                self._happened_near(key, gpu_faults.word(fault, role, ", ".join(where)), now_s)
                continue
            others = self._others_on(key, where, live) | (self._just_departed(where, now_s) - {key})
            record = gpu_faults.struck(attempt, fault, others, ", ".join(where))
            if record is not None:
                yield record

    def _reaches(self, fault: GpuFault, key: Key, where: Collection[DeviceId], live: Collection[Key]) -> bool:
        """Whether it ends that attempt: what one client of MPS does ends all clients and nobody else; what a
        process without MPS does beside them, itself. Where nobody is known to be a client, all of them."""
        if not fault.ends or fault.device_failed:
            return fault.ends
        clients = {other for other in self._on(where, live) if self._memory.attempts[other].mps}
        if not clients:
            return True
        if any(culprit not in clients for culprit in fault.culprits):
            return key in fault.culprits
        return key in clients

    def spread(self, key: Key, result: Result, report: HostReport, live: Collection[Key]) -> GpuFault | None:
        """What the end of one client of MPS means for those it shared with."""
        attempt = self._memory.attempts[key]
        if attempt.fault is not None or not self._others_on(key, attempt.devices, live):
            return None
        # A client is one for its life: its device may be said to time-slice by now.
        by_mps = {d.device_id: d.local for d in report.devices if attempt.mps or d.sharing == "mps"}
        return gpu_faults.own_fault(result, [by_mps[d] for d in attempt.devices if d in by_mps])

    def _happened_near(self, key: Key, near: Fault, now_s: float) -> None:
        at_s, before = self._contained.get(key, (-_NEVER, None))
        self._contained[key] = (
            now_s,
            gpu_faults.joined(before if now_s <= at_s + gpu_faults.CONTAINED_S else None, near),
        )

    def ended(self, key: Key, result: Result, now_s: float) -> None:
        """No process of it is left; what its end is will be `judged` later."""
        if result.outcome in ("user-failed", "infra-failed"):
            self._departed[key] = (now_s, self._memory.attempts[key].devices)

    def judged(self, key: Key, result: Result, ended_s: float) -> Result:
        """What a supervisor says of the end, in the light of all that is known of its devices by now."""
        attempt = self._memory.attempts[key]
        at_s, near = self._contained.pop(key, (-_NEVER, None))
        if attempt.fault is None and near is not None and ended_s <= at_s + gpu_faults.CONTAINED_S:
            return gpu_faults.contained(result, near)
        return gpu_faults.judged(result, attempt.fault)

    def _others_on(self, key: Key, devices: Collection[DeviceId], live: Collection[Key]) -> set[Key]:
        """Who else holds one of these devices."""
        return self._on(devices, live) - {key}

    def _on(self, devices: Collection[DeviceId], live: Collection[Key]) -> set[Key]:
        here = set(devices)
        return {key for key in live if here & {*self._memory.attempts[key].devices}}

    def _just_departed(self, devices: Collection[DeviceId], now_s: float) -> set[Key]:
        oldest_s, here = now_s - gpu_faults.JUST_S, set(devices)
        self._departed = {key: left for key, left in self._departed.items() if left[0] >= oldest_s}
        return {key for key, (_, where) in self._departed.items() if here & {*where}}
