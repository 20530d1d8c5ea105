"""What is known of this host's GPUs, and what follows from it for each: pure.

Rule: `Health` takes in what the watchers say and answers which devices may get work and why not. It ends no
attempt: a fault goes to the agent's state machine as a `GpuFault`. `device_states.py` has what survives a
restart of the agent; nothing else in here may matter for longer than this process lives.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from cotenant.agent.daemon.core import AttemptKey, GpuFault
from cotenant.agent.gpus.conditions import DeviceCondition, Foreign, Gpu, condition_of, strangers
from cotenant.agent.gpus.device_states import (
    BY_BUCKET,
    QUIET_S,
    DeviceHappening,
    NotedState,
    PastStates,
    next_state,
)
from cotenant.agent.gpus.probe_results import ProbeResult, XidSeen
from cotenant.agent.gpus.xid import RESET, meaning
from cotenant.controller.domain import DeviceState
from cotenant.profiler.driver.facts import LOST, RESET_REQUIRED

PIDS_KEPT: Final = 256


class Health:
    def __init__(
        self,
        reserves_mib: Mapping[str, int],
        *,
        foreign: Foreign = "avoid",
        states: Iterable[NotedState] = (),
        pasts: Iterable[PastStates] = (),
        busy: Collection[str] = (),
    ) -> None:
        """Sets up the watched GPUs with what is known of them. `reserves_mib`: the driver's part of each
        device's memory, by UUID. `busy`: devices on which any process computes."""
        known, past = {noted.uuid: noted for noted in states}, {each.uuid: each for each in pasts}
        self._gpus = {uuid: Gpu(mib, known.get(uuid), past.get(uuid)) for uuid, mib in reserves_mib.items()}
        self._foreign = foreign
        self._busy = frozenset(busy)
        self._owners: dict[int, AttemptKey] = {}
        """Processes of our jobs that were seen on a GPU, the newest last."""
        self._mps: frozenset[str] = frozenset()

    # --- What happens ------------------------------------------------------------------------------

    def surroundings(
        self, live: Mapping[str, frozenset[AttemptKey]], mps: frozenset[str], now_s: float
    ) -> None:
        """Which attempts hold which device, and which devices are shared by way of MPS."""
        for uuid, gpu in self._gpus.items():
            now_live = live.get(uuid, frozenset())
            if gpu.live - now_live:
                gpu.left_s = now_s
            gpu.live = now_live
            gpu.came_s = {key: gpu.came_s.get(key, now_s) for key in now_live}
        self._mps = mps

    def note_probe(self, probe: ProbeResult, now_s: float) -> list[GpuFault]:
        gpu = self._gpus.get(probe.uuid)
        if gpu is None:
            return []
        gpu.probe, gpu.probed_s = probe, now_s
        gpu.record = _newest(gpu.record, probe.record)
        hidden = [process.pid for process in probe.processes if process.owner.kind == "hidden"]
        gpu.hidden = {pid: gpu.hidden.get(pid, 0) + 1 for pid in hidden}
        for process in probe.processes:
            if process.owner.kind == "attempt":
                self._owners.pop(process.pid, None)
                self._owners[process.pid] = process.owner.key
        while len(self._owners) > PIDS_KEPT:
            del self._owners[next(iter(self._owners))]
        if probe.code:
            gpu.was_silent, gpu.is_away = True, probe.code in (LOST, RESET_REQUIRED)
            return self._no_answer(gpu, probe, now_s)
        before, gpu.counters = gpu.counters, gpu.counters.merge(probe)
        gpu.was_silent = False
        if gpu.is_away or before.began_anew(gpu.counters):
            gpu.is_away = gpu.is_pardoned = False
            if gpu.noted is not None and gpu.noted.state != "suspect":
                self._change_state(gpu, probe.uuid, "renewed", "it was reset, or came back", now_s)
        if probe.remap_failed and not gpu.is_pardoned:
            self._wants_reset(gpu, probe.uuid, "its memory has no spare rows left", now_s)
        elif probe.remap_pending and not gpu.is_pardoned:
            self._wants_reset(gpu, probe.uuid, f"rows of its memory are to be replaced: {RESET}", now_s)
        elif before.has_more_errors(gpu.counters):
            self._wants_reset(gpu, probe.uuid, f"uncorrectable memory errors: {RESET}", now_s)
        gpu.held_probes = gpu.held_probes + 1 if gpu.held is not None else 0
        return []

    def _no_answer(self, gpu: Gpu, probe: ProbeResult, now_s: float) -> list[GpuFault]:
        """NVML refuses to speak of it."""
        if probe.code == RESET_REQUIRED:
            self._change_state(gpu, probe.uuid, "drain", probe.problem, now_s)
        elif probe.code != LOST:
            self._change_state(gpu, probe.uuid, "suspect", probe.problem, now_s)
        elif gpu.noted is None or gpu.noted.state != "lost":
            self._change_state(gpu, probe.uuid, "lost", probe.problem, now_s)
            return [GpuFault(uuids=(probe.uuid,), why="the GPU is lost", device_failed=True)]
        return []

    def _wants_reset(self, gpu: Gpu, uuid: str, why: str, now_s: float) -> None:
        if gpu.noted is None or gpu.noted.state in ("ok", "suspect"):
            self._change_state(gpu, uuid, "drain", why, now_s)

    def xid(self, seen: XidSeen, now_s: float) -> list[GpuFault]:
        """What an Xid means for its device, and whom it ends. It stays open until `dealt_with` closes it."""
        gpu = self._gpus.get(seen.uuid)
        row = meaning(seen.xid, seen.recovery)
        happening = BY_BUCKET[row.bucket]
        if gpu is None or happening is None:
            return []
        shared = seen.uuid in self._mps
        spared = gpu.newcomers if seen.is_late else frozenset()
        if happening != "restart" or shared:
            why = f"{row}: {row.action}" if row.action else str(row)
            self._change_state(gpu, seen.uuid, happening, why, now_s, concerned=gpu.live - spared)
        if row.ends == "nobody":
            return []
        culprit = self._culprit(seen) if row.by_program else None
        fault = GpuFault(
            uuids=(seen.uuid,),
            why=str(row),
            xid=seen.xid,
            culprit_pids=(seen.pid,) if seen.pid is not None else (),
            culprits=(culprit,) if culprit is not None else (),
            device_failed=not row.by_program,
            ends=row.ends == "everybody" or shared,
            strangers=bool(strangers(gpu)),
            spared=tuple(sorted(spared)),
        )
        return [fault]

    def _culprit(self, seen: XidSeen) -> AttemptKey | None:
        """The attempt of the process that the kernel's log names: as it was seen on a GPU, else as the
        watcher found it (after a restart nothing was seen yet)."""
        if seen.pid is None:
            return None
        found = seen.owner
        return self._owners.get(seen.pid) or (
            found.key if found is not None and found.kind == "attempt" else None
        )

    def dealt_with(self, seen: XidSeen) -> None:
        """All consequences of an Xid were reported: no need to read it again."""
        gpu = self._gpus.get(seen.uuid)
        if gpu is not None:
            gpu.record = _newest(gpu.record, seen.record)

    def note_fault(self, fault: GpuFault, now_s: float) -> GpuFault:
        """A fault found elsewhere (an MPS server in FAULT): the devices wait until those who
        were on them are gone. Returns it with what is known of the processes that caused it."""
        for uuid in fault.uuids:
            gpu = self._gpus.get(uuid)
            if gpu is not None:
                self._change_state(gpu, uuid, "restart", fault.why, now_s)
        found = {self._owners[pid] for pid in fault.culprit_pids if pid in self._owners}
        return msgspec.structs.replace(fault, culprits=tuple(sorted({*fault.culprits, *found})))

    def note_silence(self, uuids: Iterable[str], why: str, now_s: float) -> None:
        """A question about these was not answered."""
        for uuid in uuids:
            gpu = self._gpus.get(uuid)
            if gpu is not None:
                gpu.was_silent = True
                self._change_state(gpu, uuid, "hung", why, now_s)

    def note_cuda(self, uuid: str, why: str, now_s: float) -> None:
        """What a CUDA probe of a device found. `why`: CUDA does not work there, and why; empty: it works."""
        gpu = self._gpus.get(uuid)
        if gpu is not None:
            gpu.cuda_problem = why

    def not_given_back(self, key: AttemptKey, holders: Mapping[str, str], now_s: float) -> None:
        """An attempt has ended, and long after it these devices still do not have their memory back."""
        for uuid, who in holders.items():
            gpu = self._gpus.get(uuid)
            if gpu is not None:
                self._change_state(gpu, uuid, "restart", who, now_s, concerned=frozenset((key,)))

    def trust(self, now_s: float) -> None:
        """A person says that all is well."""
        for uuid, gpu in self._gpus.items():
            if gpu.noted is not None:
                gpu.is_pardoned = True
                self._change_state(gpu, uuid, "trusted", gpu.noted.why, now_s)

    def _change_state(
        self,
        gpu: Gpu,
        uuid: str,
        happening: DeviceHappening,
        why: str,
        now_s: float,
        *,
        concerned: frozenset[AttemptKey] | None = None,
    ) -> None:
        """Changes the state of a GPU by what has happened. `concerned`: attempts that have to be gone before
        it can be over; None: all on the device."""
        before: DeviceState = gpu.noted.state if gpu.noted is not None else "ok"
        state = next_state(before, happening)
        if state == "ok":
            gpu.noted = None
            return
        if gpu.noted is not None and before == state != "suspect":
            return
        quiet_s = QUIET_S.get(happening, 0.0)
        whom = set(gpu.live if concerned is None else concerned)
        if (noted := gpu.noted) is not None:
            if before == state and noted.quiet_s > quiet_s:  # The graver one stands.
                why, quiet_s = noted.why, noted.quiet_s
            whom |= gpu.live.intersection(noted.concerned)  # One trouble does not end another.
        gpu.noted = NotedState(
            uuid=uuid, state=state, why=why, since_s=now_s, quiet_s=quiet_s, concerned=tuple(sorted(whom))
        )

    def settle(self, now_s: float) -> None:
        """Suspects that have proven themselves are suspects no more."""
        for uuid, gpu in self._gpus.items():
            noted = gpu.noted
            if noted is None or noted.state != "suspect":
                continue
            if gpu.probe is None or gpu.probe.code or gpu.was_silent:
                continue
            if gpu.probed_s <= noted.since_s:  # Observations from before the trouble prove nothing.
                continue
            gone = gpu.live.isdisjoint(noted.concerned)
            if gone and now_s >= noted.since_s + noted.quiet_s and gpu.held is None:
                self._change_state(gpu, uuid, "proven", "", now_s)

    # --- What follows ------------------------------------------------------------------------------

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(self._gpus)

    @property
    def lost(self) -> tuple[str, ...]:
        """Devices that are lost, and of which all that was known in an earlier life has been told."""
        return tuple(
            uuid
            for uuid, gpu in self._gpus.items()
            if gpu.noted is not None
            and gpu.noted.state == "lost"
            and (gpu.probe is not None or gpu.was_silent)
        )

    def reserve_mib(self, uuid: str) -> int:
        return self._gpus[uuid].reserve_mib

    def used_mib(self) -> dict[str, int]:
        """All that is in use of each device, as the last probe that was answered has it."""
        probes = [gpu.probe for gpu in self._gpus.values() if gpu.probe is not None]
        return {probe.uuid: probe.used_mib for probe in probes if not probe.code}

    def live_on(self, uuid: str) -> frozenset[AttemptKey]:
        """Attempts that hold the device."""
        return self._gpus[uuid].live

    @property
    def states(self) -> tuple[NotedState, ...]:
        return tuple(gpu.noted for gpu in self._gpus.values() if gpu.noted is not None)

    @property
    def pasts(self) -> tuple[PastStates, ...]:
        return tuple(gpu.past(uuid) for uuid, gpu in self._gpus.items())

    def conditions(self) -> dict[str, DeviceCondition]:
        """Returns the conditions of the GPUs by UUID, as of the last `settle`. A note stays as it was while
        nothing of weight has changed."""
        found: dict[str, DeviceCondition] = {}
        for uuid, gpu in self._gpus.items():
            gist, condition = condition_of(gpu, foreign=self._foreign, is_busy=uuid in self._busy)
            if gist != gpu.gist:
                gpu.gist, gpu.condition = gist, condition
            found[uuid] = gpu.condition
        return found


def _newest(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
