"""The promises of `test_histories.py` on GPUs: their faults, states, daemons and memory, in any order.

The edge is a model as there: it answers `AwaitMemory` at any time later, or not before the agent is killed,
and what it says of devices comes before what follows from it, as `gpu_watch.py` does.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import initialize, invariant, precondition, rule

from cotenant.agent.daemon.core.edge import (
    AnyAgentEffect,
    AwaitMemory,
    ClientsCounted,
    DevicesChanged,
    EndCame,
    GpuFault,
    MemoryFree,
    MemoryHeld,
    StartSupervisor,
    TroubleNoticed,
)
from cotenant.agent.daemon.core.memory import AgentMemory
from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.ipc.records import Result
from cotenant.controller.domain import events as ev
from cotenant.controller.wire import Report
from tests.agent.daemon.test_histories import HOST, World
from tests.building.hosts import gpu
from tests.building.results import result

GPUS = tuple(gpu(f"{HOST}/gpu{n}", str(n), sharing="mps") for n in range(2))
LOCAL = st.sampled_from(["0", "1"])
CRASH = st.none() | st.integers(0, 4)
ENDS: tuple[dict[str, Any], ...] = (
    {"outcome": "finished", "exit_code": 0},
    {
        "outcome": "infra-failed",
        "exit_code": None,
        "detail": "ended by SIGTERM from outside",
        "unclean": True,
    },
    {"outcome": "user-failed", "exit_code": 1, "detail": "CUDA error in the program: x", "cuda_fault": True},
    {"outcome": "user-failed", "exit_code": 1, "detail": "exit code 1: x"},
    {"outcome": "stopped", "exit_code": None, "detail": "saved and stopped", "unclean": True},
)


class GpuWorld(World):
    devices = GPUS

    @initialize()
    def boot(self) -> None:
        self.awaited: dict[AttemptKey, AwaitMemory] = {}
        """Who waits for their devices' memory, in this life of the agent."""
        super().boot()

    def perform(self, effect: AnyAgentEffect) -> None:
        if isinstance(effect, AwaitMemory):
            key = (effect.job_id, effect.attempt)
            supervisor = self.supervisors[key]
            assert not supervisor.ranks, f"{key} is waited for, and runs"
            self.awaited[key] = effect
        if isinstance(effect, StartSupervisor):
            self._may_start(effect)
        super().perform(effect)

    def _may_start(self, effect: StartSupervisor) -> None:
        offered = {device.device_id: device for device in self.state.config.report.devices}
        leaving = [device.device_id for each in self.awaited.values() for device in each.devices]
        running = [
            device_id
            for supervisor in self.supervisors.values()
            if supervisor.ranks
            for device_id in supervisor.order.gang[0].devices
        ]
        for device_id in effect.order.gang[0].devices:
            assert offered[device_id].healthy, f"started on {offered[device_id]}"
            taken = [*leaving, *running].count(device_id)
            assert taken < offered[device_id].max_tenants, f"{device_id} has {taken} already"

    def on_the_wire(self, message: Any) -> None:
        if isinstance(message, Report) and isinstance(message.event, ev.AttemptEnded):
            key = (message.event.job_id, message.event.attempt)
            assert key not in self.awaited, f"{key} is told before its memory is known"
        super().on_the_wire(message)

    # --- What can happen ---------------------------------------------------------------------------

    @rule(slot=st.integers(0, 1), jobs=st.permutations(range(1, 7)), attempt=st.integers(1, 4))
    def one_of_a_pair_is_killed(self, slot: int, jobs: list[int], attempt: int) -> None:
        """As far as the agent lets it; rare if it were left to chance alone."""
        self.network_works()
        for job in jobs[:2]:
            self.controller_starts(job, attempt, (slot,), None)
        for key in self.living():
            self.says_a_step(key, None)
        for key in self.living()[:1]:
            self.happen(EndCame(result=self._ends(key, ENDS[1])))

    @precondition(lambda self: self.awaited)
    @rule(data=st.data(), held=st.booleans(), crash=CRASH)
    def memory_is_known(self, data: st.DataObject, held: bool, crash: int | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.awaited)))
        awaited = self.awaited[key]
        if held:  # The device is out before anybody hears that its job has ended.
            for device in awaited.devices:
                self.devices_change(device.local, "suspect", "mps")
        if self.awaited.pop(key, None) is None:
            return
        holders = {device.local: "process 7 of a job that has ended" for device in awaited.devices}
        known = MemoryHeld(job_id=key[0], attempt=key[1], holders=holders)
        free = MemoryFree(job_id=key[0], attempt=key[1])
        self.happen(known if held else free, crash_after=crash)

    @rule(
        local=LOCAL,
        state=st.sampled_from(["ok", "ok", "suspect", "draining", "lost"]),
        sharing=st.sampled_from(["mps", "time-slicing"]),
    )
    def devices_change(self, local: str, state: Any, sharing: Any) -> None:
        """A watcher, a daemon or a person has changed what is known of one."""
        note = "" if state == "ok" else f"{state}: Xid 9999"
        self.devices = tuple(
            msgspec.structs.replace(device, state=state, healthy=not note, note=note, sharing=sharing)
            if device.local == local
            else device
            for device in self.devices
        )
        self.happen(DevicesChanged(devices=self.devices))

    @rule(local=LOCAL, kind=st.sampled_from(["server", "words", "contained", "device"]), crash=CRASH)
    def another_fault(self, local: str, kind: str, crash: int | None) -> None:
        """An MPS server in FAULT, a co-client's dying words, an error that stays in one process."""
        fault = GpuFault(uuids=(local,), why=f"a fault ({kind})", by_words=kind == "words")
        if kind in ("contained", "device"):
            fault = msgspec.structs.replace(fault, xid=94, ends=False, device_failed=kind == "device")
        self.happen(fault, crash_after=crash)

    @precondition(lambda self: self.living())
    @rule(data=st.data(), how=st.sampled_from(ENDS), unseen=st.booleans(), crash=CRASH)
    def supervisor_ends_badly(
        self, data: st.DataObject, how: dict[str, Any], unseen: bool, crash: int | None
    ) -> None:
        key = data.draw(st.sampled_from(self.living()))
        result = self._ends(key, how)
        if unseen:
            self.boot()
        else:
            self.happen(EndCame(result=result), crash_after=crash)

    def _ends(self, key: AttemptKey, how: dict[str, Any]) -> Result:
        supervisor = self.supervisors[key]
        supervisor.alive = supervisor.ranks = False
        supervisor.result = result(status=supervisor.status, **how)
        return supervisor.result

    @precondition(lambda self: self.supervisors)
    @rule(data=st.data(), processes=st.integers(0, 3))
    def daemons_are_asked(self, data: st.DataObject, processes: int) -> None:
        """About an attempt that may have gone meanwhile."""
        key = data.draw(st.sampled_from(sorted(self.supervisors)))
        if processes:
            self.happen(ClientsCounted(job_id=key[0], attempt=key[1], processes=processes))
        else:
            self.happen(TroubleNoticed(job_id=key[0], attempt=key[1], what="MPS: it is no client"))

    # --- What must always hold ---------------------------------------------------------------------

    @invariant()
    def a_doubt_keeps_its_device_back_and_waits_for_somebody_who_is_there(self) -> None:
        running = {attempt.key for attempt in self.state.running}
        reported = {device.local: device for device in self.state.config.report.devices}
        for uuid, doubt in AgentMemory(self.disk).quarantined.items():
            assert {each.key for each in doubt.waits} <= running, f"{uuid} waits for ever"
            assert doubt.waits and not reported[uuid].healthy

    @invariant()
    def who_has_ended_is_reported_or_waited_for(self) -> None:
        running = {attempt.key for attempt in self.state.running}
        for key, supervisor in self.supervisors.items():
            if supervisor.result is not None and key in running:
                assert key in self.awaited or any(each.job_id == key[0] for each in self.cleaning)

    def all_that_is_asked_is_answered(self) -> None:
        for key in list(self.awaited):
            del self.awaited[key]
            self.happen(MemoryFree(job_id=key[0], attempt=key[1]))


TestGpuHistories = GpuWorld.TestCase
TestGpuHistories.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
