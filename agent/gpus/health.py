"""What is known of this host's GPUs, and what follows from it for each: pure.

Rule: `Health` takes in what the watchers say and tells, when asked, which devices may get work and why not.
It ends nobody: a fault goes to the agent's state machine as a `GpuFault`. What is remembered over a restart
of the agent are the `marks`; nothing else in here may matter for longer than this process lives.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec

from cotenant.agent.edge import GpuFault
from cotenant.agent.gpus.device_states import BY_BUCKET, QUIET_S, Happening, after, held_mib
from cotenant.agent.gpus.looks import Look, Process, XidSeen
from cotenant.agent.gpus.xid import RESET, meaning
from cotenant.agent.memory import Key
from cotenant.controller.domain.cluster import DeviceState
from cotenant.profiler.driver.failures import LOST, RESET_REQUIRED

Foreign = Literal["avoid", "ignore"]
HELD_LOOKS: Final = 2
"""So many looks in a row must see memory held: it goes a little later than its process."""
HIDDEN_LOOKS: Final = 2
"""Likewise: one that cannot be seen may just have ended."""
LEAVE_GRACE_S: Final = 3.0
"""What is seen so soon after a job has left may have been asked before."""
PROCESSES_SHOWN: Final = 3
PIDS_KEPT: Final = 256


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """What is known against a device; kept on disk."""

    uuid: str
    state: DeviceState
    why: str
    since_s: float
    """Seconds since the boot."""
    quiet_s: float = 0.0
    """How long it must be without trouble, while it is suspect."""


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """The file: worth something only until the host is booted again."""

    version: int = 1
    boot_id: str
    marks: tuple[Mark, ...] = ()


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a device takes work; if not, why."""

    state: DeviceState = "ok"
    note: str = ""
    """Empty: it is offered."""
    held: bool = False
    """Its memory is in use, by nobody who may: by what is left of a job, or by nobody who can be seen."""


Gist = tuple[str | int | bool, ...]
"""Two conditions with the same gist are the same to everybody."""


class Gpu:
    """All that is known of one."""

    def __init__(self, reserve_mib: int, mark: Mark | None) -> None:
        self.reserve_mib = reserve_mib
        self.mark = mark
        self.look: Look | None = None
        self.looked_s = 0.0
        self.left_s = -LEAVE_GRACE_S
        """When a job of ours left it last."""
        self.hidden: dict[int, int] = {}
        """Processes that cannot be seen from here -> in how many looks in a row."""
        self.held_looks = 0
        self.gist: Gist = ("free",)
        self.condition = Condition()
        self.is_pardoned = False
        """A person knows that it wants a reset, and trusts it all the same."""
        self.was_silent = False
        """It did not answer when it was last asked."""
        self.concerned: frozenset[Key] = frozenset()
        """Whom the trouble concerned: they must be gone before it counts as over."""


class Health:
    def __init__(
        self,
        reserves_mib: Mapping[str, int],
        *,
        foreign: Foreign = "avoid",
        marks: Iterable[Mark] = (),
        busy: Collection[str] = (),
    ) -> None:
        """`reserves_mib`: the driver's part of each device's memory, by UUID. `busy`: devices on which
        somebody computes, whoever it is."""
        known = {mark.uuid: mark for mark in marks}
        self._gpus = {uuid: Gpu(mib, known.get(uuid)) for uuid, mib in reserves_mib.items()}
        self._foreign = foreign
        self._busy = frozenset(busy)
        self._owners: dict[int, Key] = {}
        """Processes of our jobs that were seen on a GPU, the newest last."""
        self._live: Mapping[str, frozenset[Key]] = {}
        self._mps: frozenset[str] = frozenset()

    # --- What happens ------------------------------------------------------------------------------

    def surroundings(self, live: Mapping[str, frozenset[Key]], mps: frozenset[str], now_s: float) -> None:
        """Which attempts hold which device, and which devices are shared by way of MPS."""
        for uuid, gpu in self._gpus.items():
            if self._live.get(uuid, frozenset()) - live.get(uuid, frozenset()):
                gpu.left_s = now_s
        self._live, self._mps = live, mps

    def looked(self, look: Look, now_s: float) -> list[GpuFault]:
        gpu = self._gpus.get(look.uuid)
        if gpu is None:
            return []
        before, gpu.look, gpu.looked_s = gpu.look, look, now_s
        hidden = [process.pid for process in look.processes if process.owner.kind == "hidden"]
        gpu.hidden = {pid: gpu.hidden.get(pid, 0) + 1 for pid in hidden}
        for process in look.processes:
            if process.owner.kind == "attempt":
                self._owners.pop(process.pid, None)
                self._owners[process.pid] = process.owner.key
        while len(self._owners) > PIDS_KEPT:
            del self._owners[next(iter(self._owners))]
        if look.code:
            gpu.was_silent = True
            return self._no_answer(gpu, look, now_s)
        if gpu.was_silent or _began_anew(before, look):
            gpu.was_silent = gpu.is_pardoned = False
            if gpu.mark is not None and gpu.mark.state != "suspect":
                self._happened(gpu, look.uuid, "renewed", "it was reset, or came back", now_s)
        if look.remap_failed and not gpu.is_pardoned:
            self._wants_reset(gpu, look.uuid, "its memory has no spare rows left", now_s)
        elif look.remap_pending and not gpu.is_pardoned:
            self._wants_reset(gpu, look.uuid, f"rows of its memory are to be replaced: {RESET}", now_s)
        elif _has_more_errors(before, look):
            self._wants_reset(gpu, look.uuid, f"uncorrectable memory errors: {RESET}", now_s)
        held = held_mib(look.used_mib, gpu.reserve_mib, look.processes)
        gpu.held_looks = gpu.held_looks + 1 if held else 0
        return []

    def _no_answer(self, gpu: Gpu, look: Look, now_s: float) -> list[GpuFault]:
        """NVML refuses to speak of it."""
        if look.code == RESET_REQUIRED:
            self._happened(gpu, look.uuid, "drain", look.problem, now_s)
        elif look.code != LOST:
            self._happened(gpu, look.uuid, "suspect", look.problem, now_s)
        elif gpu.mark is None or gpu.mark.state != "lost":
            self._happened(gpu, look.uuid, "lost", look.problem, now_s)
            return [GpuFault(uuids=(look.uuid,), why="the GPU is lost", device_failed=True)]
        return []

    def _wants_reset(self, gpu: Gpu, uuid: str, why: str, now_s: float) -> None:
        if gpu.mark is None or gpu.mark.state in ("ok", "suspect"):
            self._happened(gpu, uuid, "drain", why, now_s)

    def xid(self, seen: XidSeen, now_s: float) -> list[GpuFault]:
        """What an Xid means for its device, and whom it ends."""
        gpu = self._gpus.get(seen.uuid)
        row = meaning(seen.xid)
        happening = BY_BUCKET[row.bucket]
        if gpu is None or happening is None:
            return []
        shared = seen.uuid in self._mps
        if happening != "restart" or shared:
            why = f"{row}: {row.action}" if row.action else str(row)
            self._happened(gpu, seen.uuid, happening, why, now_s)
        if row.ends == "nobody":
            return []
        culprit = self._owners.get(seen.pid) if seen.pid is not None and row.by_program else None
        fault = GpuFault(
            uuids=(seen.uuid,),
            why=str(row),
            xid=seen.xid,
            culprit_pids=(seen.pid,) if seen.pid is not None else (),
            culprits=(culprit,) if culprit is not None else (),
            device_failed=not row.by_program,
            ends=row.ends == "everybody" or shared,
            strangers=self._has_strangers(gpu),
        )
        return [fault]

    def faulted(self, fault: GpuFault, now_s: float) -> GpuFault:
        """A fault that somebody else has found (an MPS server in FAULT): the devices wait until those who
        were on them are gone. Returns it with what is known of the processes that caused it."""
        for uuid in fault.uuids:
            gpu = self._gpus.get(uuid)
            if gpu is not None:
                self._happened(gpu, uuid, "restart", fault.why, now_s)
        found = {self._owners[pid] for pid in fault.culprit_pids if pid in self._owners}
        return msgspec.structs.replace(fault, culprits=tuple(sorted({*fault.culprits, *found})))

    def unanswered(self, uuids: Iterable[str], why: str, now_s: float) -> None:
        """A question about these was not answered."""
        for uuid in uuids:
            gpu = self._gpus.get(uuid)
            if gpu is not None:
                gpu.was_silent = True
                self._happened(gpu, uuid, "hung", why, now_s)

    def trusted(self, now_s: float) -> None:
        """A person says that all is well."""
        for uuid, gpu in self._gpus.items():
            if gpu.mark is not None:
                gpu.is_pardoned = True
                self._happened(gpu, uuid, "trusted", gpu.mark.why, now_s)

    def _happened(self, gpu: Gpu, uuid: str, happening: Happening, why: str, now_s: float) -> None:
        before: DeviceState = gpu.mark.state if gpu.mark is not None else "ok"
        state = after(before, happening)
        if state == "ok":
            gpu.mark, gpu.concerned = None, frozenset()
            return
        if gpu.mark is not None and before == state != "suspect":
            return
        quiet_s = QUIET_S.get(happening, 0.0)
        if gpu.mark is not None and before == state and gpu.mark.quiet_s > quiet_s:  # The graver one stands.
            why, quiet_s = gpu.mark.why, gpu.mark.quiet_s
        gpu.mark = Mark(uuid=uuid, state=state, why=why, since_s=now_s, quiet_s=quiet_s)
        gpu.concerned = self._live.get(uuid, frozenset())

    def settle(self, now_s: float) -> None:
        """Suspects that have proven themselves are suspects no more."""
        for uuid, gpu in self._gpus.items():
            mark = gpu.mark
            if mark is None or mark.state != "suspect" or gpu.look is None or gpu.look.code or gpu.was_silent:
                continue
            gone = not (gpu.concerned & self._live.get(uuid, frozenset()))
            if gone and now_s >= mark.since_s + mark.quiet_s and not self._held(gpu):
                self._happened(gpu, uuid, "proven", "", now_s)

    # --- What follows ------------------------------------------------------------------------------

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(self._gpus)

    @property
    def silent(self) -> tuple[str, ...]:
        """Devices that gave no answer: worth asking anew."""
        return tuple(uuid for uuid, gpu in self._gpus.items() if gpu.was_silent)

    @property
    def marks(self) -> tuple[Mark, ...]:
        return tuple(gpu.mark for gpu in self._gpus.values() if gpu.mark is not None)

    def conditions(self) -> dict[str, Condition]:
        """By UUID, as of the last `settle`. A note stays as it was said while nothing of weight has changed:
        each new one is told to the controller."""
        found: dict[str, Condition] = {}
        for uuid, gpu in self._gpus.items():
            gist, condition = self._condition(uuid, gpu)
            if gist != gpu.gist:
                gpu.gist, gpu.condition = gist, condition
            found[uuid] = gpu.condition
        return found

    def _condition(self, uuid: str, gpu: Gpu) -> tuple[Gist, Condition]:
        """What counts in it, and the whole of it."""
        if gpu.mark is not None:
            known = Condition(state=gpu.mark.state, note=f"{gpu.mark.state}: {gpu.mark.why}")
            return ("mark", known.note), known
        if gpu.look is None:
            unsure = uuid in self._busy and self._foreign == "avoid"
            return ("unseen", unsure), Condition(note="who uses it is not known yet" if unsure else "")
        strangers = self._strangers(gpu) if self._foreign == "avoid" else []
        if strangers:
            return _gist("foreign", strangers), Condition(note=f"in use by {_in_words(strangers)}")
        remains = list(self._of_ended(uuid, gpu))
        if remains:
            note = f"not free yet: {_in_words(remains)}, of a job that has ended"
            return _gist("remains", remains), Condition(note=note, held=True)
        held = self._held(gpu)
        if held:
            note = f"{held} MiB of its memory are held, and no process that can be seen here holds them"
            return ("held", held.bit_length()), Condition(note=note, held=True)
        return ("free",), Condition()

    def _held(self, gpu: Gpu) -> int:
        if gpu.look is None or gpu.held_looks < HELD_LOOKS or not _is_settled(gpu):
            return 0
        return held_mib(gpu.look.used_mib, gpu.reserve_mib, gpu.look.processes)

    def _has_strangers(self, gpu: Gpu) -> bool:
        return bool(self._strangers(gpu))

    def _strangers(self, gpu: Gpu) -> list[Process]:
        """Who computes there and is not ours. Where processes cannot be matched (another PID namespace) one
        that cannot be seen is taken for ours as long as a job of ours is there."""
        if gpu.look is None:
            return []
        ours_are_there = bool(self._live.get(gpu.look.uuid))
        return [
            process
            for process in gpu.look.processes
            if process.computes
            and (
                process.owner.kind == "foreign"
                or (gpu.hidden.get(process.pid, 0) >= HIDDEN_LOOKS and not ours_are_there)
            )
        ]

    def _of_ended(self, uuid: str, gpu: Gpu) -> Iterator[Process]:
        """Processes of ours whose attempts do not hold the device any more."""
        live = self._live.get(uuid, frozenset())
        for process in gpu.look.processes if gpu.look is not None and _is_settled(gpu) else ():
            if process.owner.kind == "attempt" and process.owner.key not in live:
                yield process


def _gist(kind: str, processes: list[Process]) -> Gist:
    """Who, and roughly how much."""
    amounts = ((p.used_mib or 0).bit_length() for p in processes)
    return (kind, *(p.pid for p in processes), *amounts)


def _is_settled(gpu: Gpu) -> bool:
    """Whether the last look was taken long enough after a job of ours has left."""
    return gpu.looked_s >= gpu.left_s + LEAVE_GRACE_S


def _began_anew(before: Look | None, look: Look) -> bool:
    """Counters that only grow while a driver lives have fallen."""
    if before is None or before.code:
        return False
    if before.energy_mj is not None and look.energy_mj is not None and look.energy_mj < before.energy_mj:
        return True
    return (
        before.ecc_uncorrected is not None
        and look.ecc_uncorrected is not None
        and look.ecc_uncorrected < before.ecc_uncorrected
    )


def _has_more_errors(before: Look | None, look: Look) -> bool:
    if before is None or before.ecc_uncorrected is None or look.ecc_uncorrected is None:
        return False
    return look.ecc_uncorrected > before.ecc_uncorrected


def _in_words(processes: list[Process]) -> str:
    told = []
    for process in processes[:PROCESSES_SHOWN]:
        owner = process.owner
        facts = [owner.command or "not visible here"]
        facts += [f"{process.used_mib} MiB"] if process.used_mib is not None else []
        of = f" of {owner.user}" if owner.user else ""
        told.append(f"pid {process.pid}{of} ({', '.join(facts)})")
    if len(processes) > PROCESSES_SHOWN:
        told.append(f"{len(processes) - PROCESSES_SHOWN} more")
    return ", ".join(told)
