"""The GPUs of this host, watched: what the watchers say becomes faults for the state machine and an offer.

Rule: `health.py` decides everything, by the table in `causes.py`; this class alone carries its inputs to it,
its answers away, and what it notes to disk. It writes each before it reports it; an error counts as read only
after all its consequences were reported. So an agent that is killed in between finds it in the kernel's log
again, and a second report changes nothing.

Offered are the devices whose locks this agent holds, and nothing is known against. A device that another
agent holds is listed as not healthy, with the name of who holds it; it is offered as soon as its locks are
free. What is known of a GPU counts more than its locks: a device that is broken is broken, whoever holds
it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cotenant.agent.daemon.core import edge, remembered
from cotenant.agent.gpus.cuda_check import UNTRIED, CudaCheck
from cotenant.agent.gpus.device_states import DeviceStateStore, NotedCause, recall
from cotenant.agent.gpus.health import DeviceCondition, Foreign, Health
from cotenant.agent.gpus.probe_results import AnyWatchLine, Began, ProbeResult, XidSeen
from cotenant.agent.gpus.watchers import GpuWatcher, Timing
from cotenant.agent.gpus.xid import KERNEL_LOG
from cotenant.agent.host.devices import lock_names
from cotenant.agent.host.facts import now_s
from cotenant.agent.host.locks import DeviceLocks
from cotenant.agent.host.process_identity import boot_id
from cotenant.agent.ipc.files import read_or_put_aside, write_record
from cotenant.controller.domain import Device, DeviceId

MARKS: Final = "devices.json"
FRESH_S: Final = 600.0
"""At least so often it writes the counters that reveal a reset in the agent's absence."""
PATIENCE_S: Final = 60.0
"""Tearing a large context down takes seconds; a minute is a fault."""

Log = Callable[[str], None]
GpuPost = Callable[[edge.GpuFault | edge.EnergyRead | edge.TroubleNoticed | edge.UnusedGpus], None]
TENANTS_BY_MPS: Final = 2
TAKEN: Final = "taken: "
"""How the note of a device begins that another agent holds, in contrast to one that is broken."""


class GpuWatch:
    def __init__(
        self,
        devices: Sequence[Device],
        *,
        state_dir: Path,
        attempts: Path,
        log: Log,
        foreign: Foreign = "avoid",
        busy: Sequence[str] = (),
        unlisted: Mapping[str, str] | None = None,
        timing: Timing | None = None,
        patience_s: float = PATIENCE_S,
        kernel_log: str = KERNEL_LOG,
        tries_cuda: bool = False,
    ) -> None:
        """Loads the states that were kept of the devices. `devices`: those of the host; GPUs that could not
        be found, and those that are divided into MIG instances, are not watched. `unlisted`: by UUID, who
        uses a device's memory and is in none of NVML's lists. `tries_cuda`: CUDA has to work on a device
        before it is offered; where it is `busy`, it does."""
        self._path = state_dir / MARKS
        self._log = log
        unlisted = unlisted if unlisted is not None else {}
        # What the other GPUs have will not pass by itself.
        gpus = [device for device in devices if device.kind == "cuda" and device.healthy]
        watched = {gpu.local: None if gpu.local in unlisted else gpu.reserve_mib for gpu in gpus}
        self._names = {d.local: d.device_id for d in devices}
        for uuid in watched:
            if uuid in unlisted:
                log(f"{self._names[uuid]}: {unlisted[uuid]}")
        kept = recall(read_or_put_aside(self._path, DeviceStateStore, log), boot_id(), now_s())
        short = {uuid: name.rpartition("/")[2] for uuid, name in self._names.items()}
        self.health = Health(
            watched, names=short, foreign=foreign, marks=kept.marks, pasts=kept.pasts, busy=busy
        )
        self._others = kept.drop(watched)
        """Of devices that are not watched now (broken, in another mode, not asked for): kept as they were."""
        self._written = _lasting(self.health.marks)
        self._stale_s = 0.0
        """When the file is written again, whatever has happened."""
        self._instances = frozenset(d.local for d in devices if d.parent)
        """Of MIG: what their GPU's energy counter says is not theirs alone."""
        self._patience_s, self._attempts, self._kernel_log = patience_s, attempts, kernel_log
        self._ended: set[remembered.AttemptKey] = set()
        """Attempts that wait for the memory of their devices."""
        self._news = asyncio.Event()
        """Set, and replaced, when something was heard."""
        self._timing = timing if timing is not None else Timing()
        self._told: dict[str, DeviceCondition] = {}
        self._complaints: frozenset[tuple[remembered.AttemptKey, str]] = frozenset()
        self._unused: frozenset[remembered.AttemptKey] = frozenset()
        self._watchers: list[GpuWatcher] = []
        tried = self.health.uuids if tries_cuda else ()
        self.cuda = CudaCheck(tried, is_used=self.health.is_used, found=self._tried, timing=self._timing)
        self._untried = self.cuda.uuids.difference(busy)
        self._keep_back(self._untried)
        self._noted = {mark.uuid for mark in self.health.marks}
        self._post: GpuPost = lambda event: None
        self._changed: Callable[[], None] = lambda: None
        self._look_around: Callable[[], tuple[edge.AgentConfig, Sequence[remembered.Attempt]]] | None = None

    def start(
        self,
        *,
        post: GpuPost,
        changed: Callable[[], None],
        look_around: Callable[[], tuple[edge.AgentConfig, Sequence[remembered.Attempt]]],
        log: Log,
    ) -> None:
        """Begins to watch the devices. `post` takes faults and energy counters; `changed` is called when a
        device's condition has changed; `look_around` gives the agent's configuration and its running
        attempts."""
        self._post, self._changed, self._look_around, self._log = post, changed, look_around, log
        timing, heard, unanswered = self._timing, self._heard, self._note_silence
        self._watchers = [
            GpuWatcher(uuid, self._command, timing=timing, heard=heard, unanswered=unanswered)
            for uuid in self.health.uuids
        ]
        self.cuda.start(self._untried)

    def _command(self, uuid: str) -> list[str]:
        assert self._look_around is not None
        mps_runtime = self._look_around()[0].mps_runtime
        read = self.health.gpus[uuid].past.record
        return [
            *(sys.executable, "-m", "cotenant.agent.gpus.nvml_watch", "--gpu", uuid),
            *("--attempts", str(self._attempts), "--period-s", str(self._timing.probe_s)),
            *("--kernel-log", self._kernel_log),
            *(("--mps-runtime", mps_runtime) if mps_runtime else ()),
            *(("--read", str(read)) if read is not None else ()),
        ]

    def close(self) -> None:
        for watcher in self._watchers:
            watcher.close()
        for watcher in self._watchers:
            watcher.wait()
        self.cuda.close()
        if self.health.uuids:
            self._write()

    def conditions(self) -> dict[str, DeviceCondition]:
        """Returns the conditions of every watched device now, by UUID."""
        self._refresh()
        self.health.settle(now_s())
        noted, self._noted = self._noted, {mark.uuid for mark in self.health.marks}
        back = self.cuda.uuids & (noted - self._noted)
        self._keep_back(back)
        self.cuda.start(back)
        self._store()
        return self.health.conditions()

    def _keep_back(self, uuids: Collection[str]) -> None:
        """What is well by NVML's word is not offered before CUDA works there."""
        for uuid in uuids:
            self.health.note_cuda(uuid, UNTRIED, now_s())

    def _tried(self, uuid: str, why: str) -> None:
        self.health.note_cuda(uuid, why, now_s())
        if why and why not in self._told.get(uuid, DeviceCondition()).note:
            self._log(f"{self._names[uuid]}: {why}")
        self._tell()

    def memory_used_mib(self) -> dict[DeviceId, float]:
        """What is in use of each device that was probed, whoever uses it."""
        probes = (gpu.probe for gpu in self.health.gpus.values() if gpu.probe is not None)
        return {self._names[each.uuid]: float(each.used_mib) for each in probes if not each.code}

    @property
    def held(self) -> frozenset[str]:
        """Devices, by UUID, last reported because memory is held there without a job's right to it."""
        return frozenset(uuid for uuid, condition in self._told.items() if condition.held)

    def note_fault(self, fault: edge.GpuFault) -> None:
        """A fault was found elsewhere: its devices wait until those who were on them are gone."""
        self._refresh()
        self.health.note_fault(fault, now_s())
        self._tell()

    def trust(self) -> None:
        """A person says that all is well."""
        self.health.trust(now_s())
        self.cuda.pardon()
        self._tell()

    async def given_back(self, key: remembered.AttemptKey, uuids: Collection[str]) -> dict[str, str]:
        """Wait until the devices of an ended attempt have their memory back, by probes begun from now on;
        by UUID who holds what is not back in time, empty: all are free. Those are suspect by then, and errors
        that their watchers knew of have been posted. Devices without a watcher are not waited for: they are
        not offered."""
        known = [uuid for uuid in uuids if uuid in self.health.uuids]
        if not known:
            return {}
        since_s = now_s()
        until_s = since_s + self._patience_s
        self._ended.add(key)
        for watcher in self._watchers:
            watcher.probe_now()
        try:
            while left := self.health.not_free(known, since_s, self._ended):
                wait_s = until_s - now_s()
                if wait_s <= 0.0:
                    self._refresh()
                    self.health.not_given_back(key, left, now_s())
                    self._tell()
                    break
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), wait_s)
            return left
        finally:
            self._ended.discard(key)

    def _answer(self) -> None:
        """Has those who wait look again; after the faults of what was heard last."""
        self._news.set()
        self._news = asyncio.Event()

    # --- From the watchers -------------------------------------------------------------------------

    def _heard(self, line: AnyWatchLine) -> None:
        self._refresh()
        faults: list[edge.GpuFault] = []
        match line:
            case ProbeResult(uuid=uuid) if uuid in self.health.uuids:
                faults = self.health.note_probe(line, now_s())
                if line.energy_mj is not None and uuid not in self._instances:
                    self._post(edge.EnergyRead(uuid=uuid, counter_mj=line.energy_mj))
            case XidSeen(uuid=uuid, xid=xid, pid=pid):
                process = f" (process {pid})" if pid is not None else ""
                self._log(f"{self._names.get(uuid, uuid)}: Xid {xid}{process}")
                faults = self.health.xid(line, now_s())
            case Began(events=False, kernel_log=False):
                self._log(f"{self._names[line.uuid]}: nothing tells of Xids, its counters are watched")
            case _:
                pass
        # Take the device out before reporting the end of its jobs, so that no new job is placed there
        # meanwhile.
        self._tell()
        for fault in faults:
            self._post(fault)
        self._complain()
        if isinstance(line, XidSeen):
            self.health.dealt_with(line)
            self._write()
        self._answer()

    def _note_silence(self, uuid: str, why: str) -> None:
        self._log(f"{self._names[uuid]}: {why}")
        self._refresh()
        self.health.note_silence(uuid, why, now_s())
        self._tell()
        self._answer()

    def _tell(self) -> None:
        conditions = self.conditions()
        if conditions != self._told:
            self._told = conditions
            self._changed()

    def _complain(self) -> None:
        """Tells jobs what they do on GPUs that they were not given, or do not do on those they hold."""
        before, self._complaints = self._complaints, self.health.complaints(now_s())
        for (job_id, attempt), what in sorted(self._complaints - before):
            self._post(edge.TroubleNoticed(job_id=job_id, attempt=attempt, what=what))
        if (unused := self.health.attempts_on_no_gpu(now_s())) != self._unused:
            self._unused = unused
            self._post(edge.UnusedGpus(attempts=tuple(sorted(unused))))

    def _refresh(self) -> None:
        """Tell `health` who is where."""
        if self._look_around is None:
            return
        config, running = self._look_around()
        local = {d.device_id: d.local for d in config.report.devices}
        mps = {d.local for d in config.report.devices if d.sharing == "mps"}
        held = {each.key: [local[d] for d in each.devices if d in local] for each in running}
        for attempt in running:
            if attempt.mps:  # Also where its daemon is in trouble by now: its server need not be.
                mps |= {*held[attempt.key]}
        stepping = [each.key for each in running if each.first_step and not each.mps]
        self.health.surroundings(held, mps, now_s(), stepping)

    # --- The disk ----------------------------------------------------------------------------------

    def _store(self) -> None:
        if _lasting(self.health.marks) != self._written or now_s() >= self._stale_s:
            self._write()

    def _write(self) -> None:
        marks, others = self.health.marks, self._others
        file = DeviceStateStore(
            boot_id=boot_id(),
            marks=(*marks, *others.marks),
            pasts=(*self.health.pasts, *others.pasts),
        )
        try:
            write_record(self._path, file)
        except OSError as error:  # It is known until the agent ends; the next change tries again.
            self._log(f"cannot write {self._path}: {error.strerror}")
        else:
            self._written, self._stale_s = _lasting(marks), now_s() + FRESH_S


def _lasting(marks: Sequence[NotedCause]) -> tuple[object, ...]:
    """What makes it worth writing them again."""
    return tuple((mark.uuid, mark.cause, mark.why, mark.concerned) for mark in marks)


def offer_devices(
    devices: tuple[Device, ...], locks: DeviceLocks, conditions: Mapping[str, DeviceCondition] | None = None
) -> tuple[Device, ...]:
    """The devices, each with what its locks and its condition say now. A device without a condition that is
    broken stays as it is. `conditions`: of GPUs that are watched, by UUID."""
    known = conditions if conditions is not None else {}
    return tuple(_offer_device(device, locks, known.get(device.local)) for device in devices)


def _offer_device(device: Device, locks: DeviceLocks, condition: DeviceCondition | None) -> Device:
    if condition is None and not device.healthy and not device.note.startswith(TAKEN):
        return device
    why = locks.take(lock_names(device))  # Also of one that is out: it is ours while it recovers.
    note = f"{TAKEN}{why}" if why else ""
    state = device.state
    if condition is not None:
        state, note = condition.state, condition.note or note
    # In EXCLUSIVE_PROCESS mode the one process that may open it is the MPS server, which serves two.
    tenants = TENANTS_BY_MPS if device.sharing == "mps" else device.max_tenants
    return msgspec.structs.replace(device, state=state, healthy=not note, note=note, max_tenants=tenants)
