"""Whether a GPU takes work, and who or what is in the way: from what is known of it. Pure. Rule: a note names
a process or a cause that a person can act on. It keeps its words while nothing important has changed, because
the agent reports each new one.

Memory that should be free is in the way as well. A device goes back into the ledger only when its memory
does, and only after its watcher has probed it anew: a probe comes after all errors that the watcher knew of
by then, so an end that has waited for one is told in the light of them. What visible, running processes use
is theirs (a co-tenant, an MPS server, a stranger); what is used beyond that and the driver's reserve is held
by somebody who should be gone. Where a driver does not say how much a process uses, only such a process is
proof.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, Literal

import msgspec

from cotenant.agent.daemon.core import AttemptKey
from cotenant.agent.gpus.device_states import NotedState, PastStates, RisingCounters
from cotenant.agent.gpus.probe_results import ProbeResult, Process
from cotenant.controller.domain import FOREIGN, HELD_MIB_MIN, DeviceState

Foreign = Literal["avoid", "ignore"]
HELD_LOOKS: Final = 2
"""So many probes in a row must see memory held: it goes a little later than its process."""
HIDDEN_LOOKS: Final = 2
"""Likewise: one that cannot be seen may just have ended."""
LEAVE_GRACE_S: Final = 3.0
"""NVML's answer so soon after a job has left may be older."""
PROCESSES_SHOWN: Final = 3
HOLDERS_NAMED: Final = 3
PATIENCE_S: Final = 60.0
"""Tearing a large context down takes seconds; a minute is a fault."""
_DEAD: Final[dict[str, str]] = {
    "Z": "a zombie, its context still open",
    "X": "dead, its context still open",
}
_STUCK: Final = "stuck in the kernel (state D)"
UNASKED: Final = "its memory is unknown: NVML gave no answer"


class DeviceCondition(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a device takes work; if not, why."""

    state: DeviceState = "ok"
    note: str = ""
    """Empty: it is offered."""
    held: bool = False
    """Its memory is in use without a right to it: by what is left of a job, or by a process that cannot be
    seen."""


Gist = tuple[str | int | bool, ...]
"""Two conditions with the same gist are the same to everybody."""


class Gpu:
    """All that is known of one."""

    def __init__(self, reserve_mib: int, noted: NotedState | None, past: PastStates | None = None) -> None:
        self.reserve_mib = reserve_mib
        self.noted = noted
        self.probe: ProbeResult | None = None
        self.probed_s = 0.0
        self.live: frozenset[AttemptKey] = frozenset()
        """Attempts that hold it."""
        self.came_s: dict[AttemptKey, float] = {}
        """When each of them came."""
        self.left_s = -LEAVE_GRACE_S
        """When a job of ours left it last."""
        self.hidden: dict[int, int] = {}
        """Processes that cannot be seen from here -> in how many probes in a row."""
        self.held_probes = 0
        self.gist: Gist = ("free",)
        self.condition = DeviceCondition()
        self.counters = past.counters if past is not None else RisingCounters()
        """As of the last probe that was answered."""
        self.is_pardoned = past is not None and past.is_pardoned
        self.was_silent = False
        """It did not answer when it was last asked. That proves nothing: its watcher may have been killed."""
        self.is_away = past is not None and past.is_away
        """NVML said that it is lost or wants a reset."""
        self.record = past.record if past is not None else None
        self.cuda_problem = ""
        """Why CUDA does not initialise there; empty: it does, or nobody has asked."""

    def past(self, uuid: str) -> PastStates:
        return PastStates(
            uuid=uuid,
            counters=self.counters,
            is_away=self.is_away,
            is_pardoned=self.is_pardoned,
            record=self.record,
        )

    @property
    def newcomers(self) -> frozenset[AttemptKey]:
        """Attempts that came after the last probe: what is older is not theirs. There are none in an
        agent's new life before its first probe, for none can have started while there was no agent."""
        if self.probe is None:
            return frozenset()
        return frozenset(key for key in self.live if self.came_s.get(key, 0.0) > self.probed_s)

    @property
    def held(self) -> Held | None:
        """Who holds the GPU, as the last probe has it."""
        return who_holds(self.probe, self.reserve_mib, self.live) if self.probe is not None else None

    @property
    def is_settled(self) -> bool:
        """Whether the last probe was taken long enough after a job of ours has left."""
        return self.probed_s >= self.left_s + LEAVE_GRACE_S


def condition_of(gpu: Gpu, *, foreign: Foreign, is_busy: bool) -> tuple[Gist, DeviceCondition]:
    """What counts in it, and the whole of it. `is_busy`: a process computed there when the agent started."""
    if gpu.noted is not None:
        known = DeviceCondition(state=gpu.noted.state, note=f"{gpu.noted.state}: {gpu.noted.why}")
        return ("mark", known.note), known
    if gpu.cuda_problem:
        return ("cuda", gpu.cuda_problem), DeviceCondition(state="suspect", note=f"suspect: {gpu.cuda_problem}")
    if gpu.probe is None:
        unsure = is_busy and foreign == "avoid"
        return ("unseen", unsure), DeviceCondition(note="who uses it is not known yet" if unsure else "")
    theirs = strangers(gpu) if foreign == "avoid" else []
    if theirs:
        return _gist("foreign", theirs), DeviceCondition(note=f"{FOREIGN}{_list_processes(theirs)}")
    remains = list(_list_ended(gpu))
    if remains:
        note = f"not free yet: {_list_processes(remains)}, of a job that has ended"
        return _gist("remains", remains), DeviceCondition(note=note, held=True)
    held = gpu.held if gpu.held_probes >= HELD_LOOKS and gpu.is_settled else None
    if held is not None:
        return ("held", (held.mib or 0).bit_length(), len(held.by)), DeviceCondition(
            note=held.text, held=True
        )
    return ("free",), DeviceCondition()


def strangers(gpu: Gpu) -> list[Process]:
    """Who computes there and is not ours. Where processes cannot be matched (another PID namespace) one that
    cannot be seen is taken for ours as long as a job of ours is there."""
    return [
        process
        for process in (gpu.probe.processes if gpu.probe is not None else ())
        if process.computes
        and (
            process.owner.kind == "foreign"
            or (gpu.hidden.get(process.pid, 0) >= HIDDEN_LOOKS and not gpu.live)
        )
    ]


def _list_ended(gpu: Gpu) -> Iterator[Process]:
    """Processes of ours whose attempts do not hold the device any more."""
    for process in gpu.probe.processes if gpu.probe is not None and gpu.is_settled else ():
        if process.owner.kind == "attempt" and process.owner.key not in gpu.live:
            yield process


def _gist(kind: str, processes: Collection[Process]) -> Gist:
    """Returns the gist of a finding: who, and roughly how much."""
    amounts = ((p.used_mib or 0).bit_length() for p in processes)
    return (kind, *(p.pid for p in processes), *amounts)


def _list_processes(processes: list[Process]) -> str:
    told = []
    for process in processes[:PROCESSES_SHOWN]:
        owner = process.owner
        facts = [owner.command or "not visible here"]
        facts += [f"{process.used_mib} MiB"] if process.used_mib is not None else []
        facts += [f"since {owner.since}"] if owner.since else []
        of = f" of {owner.user}" if owner.user else ""
        told.append(f"pid {process.pid}{of} ({', '.join(facts)})")
    if len(processes) > PROCESSES_SHOWN:
        told.append(f"{len(processes) - PROCESSES_SHOWN} more")
    return ", ".join(told)


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a device that should be free."""

    mib: int | None
    """None: the driver does not say how much."""
    by: tuple[str, ...] = ()
    """The processes, each in words; empty: none that the driver lists."""

    @property
    def text(self) -> str:
        amount = "memory is" if self.mib is None else f"{self.mib} MiB are"
        named = "; ".join(self.by[:HOLDERS_NAMED])
        more = f" and {len(self.by) - HOLDERS_NAMED} more" if len(self.by) > HOLDERS_NAMED else ""
        return f"{amount} still held by {named or 'no process that can be seen here'}{more}"


def who_holds(probe: ProbeResult, reserve_mib: int, live: Collection[AttemptKey]) -> Held | None:
    """Who holds memory that should be free; None if none is held, or it is unknown.

    reserve_mib: the driver's own part. live: attempts that still have the device. A process that cannot be
    seen from here (another PID namespace) is taken for theirs while there are any.
    """
    gone = [(process, why) for process in probe.processes if (why := _why_gone(process, live))]
    should_go = {process.pid for process, _ in gone}
    stay = [process.used_mib for process in probe.processes if process.pid not in should_go]
    by = tuple(f"process {process.pid}{_name(process)}, {why}" for process, why in gone)
    if None in stay:
        return Held(mib=None, by=by) if by else None
    held_mib = probe.used_mib - reserve_mib - sum(used for used in stay if used is not None)
    return Held(mib=held_mib, by=by) if held_mib >= HELD_MIB_MIN else None


def _why_gone(process: Process, live: Collection[AttemptKey]) -> str:
    """Why it should not hold anything; empty: it may."""
    if process.state in _DEAD:
        return _DEAD[process.state]
    if process.owner.kind == "hidden":
        return "" if live else "not visible from here: gone, or in another container"
    if process.owner.kind == "attempt" and process.owner.key not in live:
        return _STUCK if process.state == "D" else "of a job that has ended"
    return ""


def _name(process: Process) -> str:
    return f" ({process.owner.command})" if process.owner.command else ""


class MemoryWait:
    """The wait for the memory of one ended attempt's devices."""

    def __init__(self, uuids: Iterable[str], since_s: float, until_s: float) -> None:
        self.since_s, self.until_s = since_s, until_s
        self.left = dict.fromkeys(uuids, UNASKED)
        """Devices that are not known to be free -> why."""


class Waits:
    """Attempts that have ended, and the devices whose memory they wait for."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._waits: dict[AttemptKey, MemoryWait] = {}

    def add(self, key: AttemptKey, uuids: Iterable[str], *, since_s: float) -> float:
        """Only probes that were begun at `since_s` or later count. Returns when the wait ends at last."""
        wait = self._waits[key] = MemoryWait(uuids, since_s, since_s + self._patience_s)
        return wait.until_s

    def update(self, probe: ProbeResult, reserve_mib: int, live: Collection[AttemptKey]) -> None:
        """Updates the waits for a GPU by a probe of it. `live`: attempts that have the device; those that
        wait here have ended, and do not count."""
        stay = {key for key in live if key not in self._waits}
        for wait in self._waits.values():
            if probe.uuid not in wait.left or probe.at_s < wait.since_s:
                continue
            if probe.code:
                wait.left[probe.uuid] = f"its memory cannot be asked for: {probe.problem}"
            elif (held := who_holds(probe, reserve_mib, stay)) is not None:
                wait.left[probe.uuid] = held.text
            else:
                del wait.left[probe.uuid]

    def give_up(self, uuids: Collection[str]) -> None:
        """The memory of a lost GPU is not waited for: it is not given out anyway."""
        for wait in self._waits.values():
            for uuid in uuids:
                wait.left.pop(uuid, None)

    def take_ended(self, now_s: float) -> dict[AttemptKey, dict[str, str]]:
        """Waits that have ended, each returned once: by UUID who holds a device; empty: they are all free."""
        found = {
            key: wait.left for key, wait in self._waits.items() if not wait.left or now_s >= wait.until_s
        }
        for key in found:
            del self._waits[key]
        return found
