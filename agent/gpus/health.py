"""What is known of this host's GPUs, and what follows from it for each: pure.

Rule: `Health` takes in what the watchers say, holds it against the table of causes (`causes.py`), and answers
which devices may get work and why not. It ends no attempt: a fault goes to the agent's state machine as a
`GpuFault`. `device_states.py` has what survives a restart of the agent; nothing else in here may matter for
longer than this process lives.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from cotenant.agent.daemon.core.edge import GpuFault
from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.gpus.causes import BY_BUCKET, CAUSES, Gpu, Proof
from cotenant.agent.gpus.device_states import RENEWED, NotedCause, PastStates
from cotenant.agent.gpus.probe_results import ProbeResult, XidSeen
from cotenant.agent.gpus.xid import meaning
from cotenant.controller.domain import DeviceState
from cotenant.profiler.driver.facts import LOST, RESET_REQUIRED

Foreign = Literal["avoid", "ignore"]
USE_AFTER_S: Final = 60.0
"""So long after its first step a job that uses its GPUs has been seen there."""
NOT_GIVEN: Final = (
    "this job uses {}, which it was not given: it holds {}; a script must not set CUDA_VISIBLE_DEVICES, nor "
    "number devices as the host does"
)
INTRUDER: Final = "job {} uses {} as well without holding it: what that costs this job is not its own fault"
UNUSED: Final = (
    "this job holds {} and computes on no GPU: see why it takes the CPU (torch.cuda.is_available()), or ask "
    "for no GPU"
)
_AMOUNT: Final = re.compile(r"\d+(?= MiB)")


class DeviceCondition(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a device takes work; if not, why."""

    state: DeviceState = "ok"
    note: str = ""
    """Empty: it is offered."""
    held: bool = False
    """Its memory is in use without a right to it: by what is left of a job, or by a process that cannot be
    seen."""


class Health:
    def __init__(
        self,
        reserves_mib: Mapping[str, int | None],
        *,
        names: Mapping[str, str] | None = None,
        foreign: Foreign = "avoid",
        marks: Iterable[NotedCause] = (),
        pasts: Iterable[PastStates] = (),
        busy: Collection[str] = (),
    ) -> None:
        """Sets up the watched GPUs with what is known of them. `reserves_mib`: the driver's part of each
        device's memory, by UUID; None: NVML cannot list all who use it. `names`: of all devices, for a
        person. `busy`: devices on which any process computes."""
        known, kept = {past.uuid: past for past in pasts}, list(marks)
        self.gpus = {
            uuid: Gpu(
                reserve_mib,
                known.get(uuid, PastStates(uuid=uuid)),
                (mark for mark in kept if mark.uuid == uuid),
                avoids_strangers=foreign == "avoid",
                is_busy=uuid in busy,
            )
            for uuid, reserve_mib in reserves_mib.items()
        }
        self._names = names if names is not None else {}
        self._conditions = dict.fromkeys(self.gpus, DeviceCondition())
        self._mps: Collection[str] = ()
        self._held: Mapping[AttemptKey, Sequence[str]] = {}
        self._stepping_s: dict[AttemptKey, float] = {}
        """Since when attempts are known to make steps."""

    # --- What happens ------------------------------------------------------------------------------

    def surroundings(
        self,
        held: Mapping[AttemptKey, Sequence[str]],
        mps: Collection[str],
        now_s: float,
        stepping: Collection[AttemptKey] = (),
    ) -> None:
        """Which devices each attempt holds, which devices are shared by way of MPS, and which attempts make
        steps and are no clients of MPS."""
        self._held = held
        for uuid, gpu in self.gpus.items():
            now_live = frozenset(key for key, uuids in held.items() if uuid in uuids)
            if gpu.live - now_live:
                gpu.left_s = now_s
            gpu.live = now_live
            gpu.came_s = {key: gpu.came_s.get(key, now_s) for key in now_live}
            gpu.elsewhere = {key: self._names_of(key) for key in held if key not in now_live}
        self._mps = mps
        self._stepping_s = {key: self._stepping_s.get(key, now_s) for key in stepping}

    def note_probe(self, probe: ProbeResult, now_s: float) -> list[GpuFault]:
        gpu = self.gpus.get(probe.uuid)
        if gpu is None:
            return []
        gpu.probe, gpu.probed_s = probe, now_s
        self._keep(gpu, record=_newest(gpu.past.record, probe.record))
        hidden = [process.pid for process in probe.processes if process.owner.kind == "hidden"]
        gpu.hidden = {pid: gpu.hidden.get(pid, 0) + 1 for pid in hidden}
        gpu.was_silent, was_lost = bool(probe.code), "lost" in gpu.marks
        if probe.code:
            self._keep(gpu, is_away=probe.code in (LOST, RESET_REQUIRED))
        else:
            self._note_answer(gpu, probe, now_s)
        for name, cause in CAUSES.items():
            if cause.ended_by and (why := cause.detects(gpu)):
                self._note(gpu, name, why, now_s)
        if probe.code == LOST and not was_lost:
            return [GpuFault(uuids=(probe.uuid,), why="the GPU is lost", device_failed=True)]
        return []

    def _note_answer(self, gpu: Gpu, probe: ProbeResult, now_s: float) -> None:
        gpu.before = gpu.past.counters
        counters = gpu.before.merge(probe)
        if gpu.past.is_away or gpu.before.began_anew(counters):
            self._keep(gpu, is_away=False, is_pardoned=False)
            if any(mark.state != "suspect" for mark in gpu.marks.values()):
                gpu.marks = {name: mark for name, mark in gpu.marks.items() if not _ends(mark, "reset")}
                self._note(gpu, RENEWED, "it was reset, or came back", now_s, ())
        self._keep(gpu, counters=counters)
        gpu.held_probes = gpu.held_probes + 1 if gpu.held is not None else 0

    def xid(self, seen: XidSeen, now_s: float) -> list[GpuFault]:
        """What an Xid means for its device, and whom it ends. It stays open until `dealt_with` closes it."""
        gpu = self.gpus.get(seen.uuid)
        row = meaning(seen.xid, seen.recovery)
        if gpu is None or row.bucket == "note":
            return []
        shared = seen.uuid in self._mps
        spared = gpu.newcomers if seen.is_late else frozenset()
        if row.bucket != "restart" or shared:
            self._note(gpu, BY_BUCKET[row.bucket], row.advice, now_s, gpu.live - spared)
        if row.ends == "nobody":
            return []
        owner = seen.owner if row.by_program else None
        fault = GpuFault(
            uuids=(seen.uuid,),
            why=str(row),
            xid=seen.xid,
            culprits=(owner.key,) if owner is not None and owner.kind == "attempt" else (),
            device_failed=not row.by_program,
            ends=row.ends == "everybody" or shared,
            strangers=bool(gpu.strangers or gpu.intruders),
            spared=tuple(sorted(spared)),
        )
        return [fault]

    def dealt_with(self, seen: XidSeen) -> None:
        """All consequences of an Xid were reported: no need to read it again."""
        for gpu in self._known([seen.uuid]):
            self._keep(gpu, record=_newest(gpu.past.record, seen.record))

    def note_fault(self, fault: GpuFault, now_s: float) -> None:
        """A fault found elsewhere (an MPS server in FAULT): its devices wait until those who were on them
        are gone."""
        for gpu in self._known(fault.uuids):
            self._note(gpu, "server", fault.why, now_s)

    def note_silence(self, uuid: str, why: str, now_s: float) -> None:
        """A question about it was not answered."""
        for gpu in self._known([uuid]):
            gpu.was_silent = True
            self._note(gpu, "silent", why, now_s)

    def not_given_back(self, key: AttemptKey, holders: Mapping[str, str], now_s: float) -> None:
        """An attempt has ended, and long after it these devices still do not have their memory back."""
        for gpu in self._known(holders):
            self._note(gpu, "kept", holders[gpu.past.uuid], now_s, (key,))

    def note_cuda(self, uuid: str, why: str, now_s: float) -> None:
        """What a CUDA probe of a device found. `why`: CUDA does not work there, and why; empty: it works."""
        for gpu in self._known([uuid]):
            gpu.cuda_problem = why

    def trust(self, now_s: float) -> None:
        """A person says that all is well."""
        for gpu in self.gpus.values():
            if gpu.marks:
                self._keep(gpu, is_pardoned=True)
                gpu.marks = {name: mark for name, mark in gpu.marks.items() if not _ends(mark, "person")}

    def _known(self, uuids: Iterable[str]) -> list[Gpu]:
        return [self.gpus[uuid] for uuid in uuids if uuid in self.gpus]

    def _keep(self, gpu: Gpu, **changes: object) -> None:
        gpu.past = msgspec.structs.replace(gpu.past, **changes)

    def _note(
        self, gpu: Gpu, name: str, why: str, now_s: float, concerned: Collection[AttemptKey] | None = None
    ) -> None:
        """Notes a cause. `concerned`: attempts that have to be gone before it can be over; None: all on the
        device."""
        state, old = CAUSES[name].state, gpu.marks.get(name)
        if old is not None and state != "suspect":
            return
        whom = set(gpu.live if concerned is None else concerned)
        whom |= gpu.live.intersection(old.concerned if old is not None else ())
        gpu.marks[name] = NotedCause(
            uuid=gpu.past.uuid,
            cause=name,
            state=state,
            why=why,
            since_s=now_s,
            concerned=tuple(sorted(whom)),
        )

    def settle(self, now_s: float) -> None:
        """Suspects that have proven themselves are suspects no more."""
        for gpu in self.gpus.values():
            if gpu.probe is None or gpu.probe.code or gpu.was_silent or gpu.held is not None:
                continue
            for name, mark in list(gpu.marks.items()):
                is_new = gpu.probed_s > mark.since_s  # Observations from before the trouble prove nothing.
                is_quiet = is_new and now_s >= mark.since_s + CAUSES[name].quiet_s
                if is_quiet and _ends(mark, "quiet") and gpu.live.isdisjoint(mark.concerned):
                    del gpu.marks[name]

    # --- What follows ------------------------------------------------------------------------------

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(self.gpus)

    def not_free(self, uuids: Iterable[str], since_s: float, ended: Collection[AttemptKey]) -> dict[str, str]:
        """By UUID why devices that ended attempts had do not have their memory back, by probes begun at
        `since_s` or later."""
        waited = {uuid: self.gpus[uuid].why_not_free(since_s, frozenset(ended)) for uuid in uuids}
        return {uuid: why for uuid, why in waited.items() if why}

    def is_used(self, uuid: str) -> bool:
        """Whether any process computes there, as the last probe has it."""
        return any(process.computes for process in self.gpus[uuid].processes)

    @property
    def marks(self) -> tuple[NotedCause, ...]:
        return tuple(mark for gpu in self.gpus.values() for mark in gpu.marks.values())

    @property
    def pasts(self) -> tuple[PastStates, ...]:
        return tuple(gpu.past for gpu in self.gpus.values())

    def conditions(self) -> dict[str, DeviceCondition]:
        """Returns the conditions of the GPUs by UUID, as of the last `settle`. A note keeps its words while
        nothing but amounts has changed, and those by less than half: the agent reports each new one."""
        for uuid, gpu in self.gpus.items():
            found, before = _condition_of(gpu), self._conditions[uuid]
            if _gist(found.note) != _gist(before.note) or found.state != before.state:
                self._conditions[uuid] = found
        return dict(self._conditions)

    # --- Jobs that use what they do not hold, or do not use what they hold ---------------------------

    def attempts_on_no_gpu(self, now_s: float) -> frozenset[AttemptKey]:
        """Attempts that make steps and have no process on any GPU, though they hold some."""
        seen = {key for gpu in self.gpus.values() for key in gpu.attempts}
        return frozenset(
            key
            for key, since_s in self._stepping_s.items()
            if now_s >= since_s + USE_AFTER_S
            and key not in seen
            and self._held[key]
            and all(uuid in self.gpus and self.gpus[uuid].names_all for uuid in self._held[key])
        )

    def complaints(self, now_s: float) -> frozenset[tuple[AttemptKey, str]]:
        """What the users of attempts should be told now."""
        found = {(key, UNUSED.format(self._names_of(key))) for key in self.attempts_on_no_gpu(now_s)}
        for uuid, gpu in self.gpus.items():
            name = self._names.get(uuid, uuid)
            for key, where in gpu.intruders.items():
                found.add((key, NOT_GIVEN.format(name, where)))
                found |= {(other, INTRUDER.format(key[0], name)) for other in gpu.live}
        return frozenset(found)

    def _names_of(self, key: AttemptKey) -> str:
        return ", ".join(self._names.get(uuid, uuid) for uuid in self._held.get(key, ()))


def _condition_of(gpu: Gpu) -> DeviceCondition:
    """The first row of the table that was noted of the device or is seen there."""
    for name, cause in CAUSES.items():
        if (mark := gpu.marks.get(name)) is not None:
            return DeviceCondition(state=mark.state, note=f"{mark.state}: {mark.why}")
        if not cause.ended_by and (note := cause.detects(gpu)):
            prefix = f"{cause.state}: " if cause.state != "ok" else ""
            return DeviceCondition(state=cause.state, note=prefix + note, held=cause.holds_memory)
    return DeviceCondition()


def _gist(note: str) -> str:
    """Two notes with the same gist are the same to everybody."""
    return _AMOUNT.sub(lambda amount: str(int(amount[0]).bit_length()), note)


def _ends(mark: NotedCause, proof: Proof) -> bool:
    return proof in CAUSES[mark.cause].ended_by


def _newest(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)
