"""Every cause that keeps work from a GPU, as one table: what detects it, what it means, what ends it. Pure.

    ok        nothing is wrong with the device; somebody or something is in the way
    suspect   something happened to it: no new work until it has proven itself
    draining  what runs there may go on, nothing new comes; it wants a reset
    lost      it does not work any more: what ran there is ended

Rule: a new cause is a new row of `CAUSES`. A cause that nothing has to end counts while it is detected. Every
other cause is noted, on disk as well, and ends by a proof that its row names, never because the agent was
restarted: a device gets worse by itself and better only by proof.

    quiet    NVML answers, those whom it concerned are gone, no memory is held, and it was long enough ago
    person   `nodes resume`: a person may know better, except of a device that is lost
    reset    the device has begun anew: a boot of the host, or two signs of a reset

A device is as bad as the worst of its causes. A note names a process or a cause that a person can act on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.gpus import device_states, held_memory, probe_results, xid
from cotenant.controller.domain import FOREIGN, HELD_MIB_MIN, DeviceState
from cotenant.profiler.driver.facts import LOST, NOT_SUPPORTED, RESET_REQUIRED

Proof = Literal["quiet", "person", "reset"]
HELD_LOOKS: Final = 2
"""So many probes in a row must see memory held: it goes a little later than its process."""
HIDDEN_LOOKS: Final = 2
"""Likewise: a process that cannot be seen may just have ended."""
LEAVE_GRACE_S: Final = 3.0
"""NVML's answer so soon after a job has left may be older."""
UNASKED: Final = "its memory is unknown: NVML gave no answer"
PROCESSES_SHOWN: Final = 3


class Gpu:
    """All that is known of one."""

    def __init__(
        self,
        reserve_mib: int | None,
        past: device_states.PastStates,
        marks: Iterable[device_states.NotedCause],
        *,
        avoids_strangers: bool = True,
        is_busy: bool = False,
    ) -> None:
        """`reserve_mib`: the driver's part of its memory; None: NVML cannot list all who use the memory.
        `is_busy`: a process computed there when the agent started."""
        self.reserve_mib = reserve_mib
        self.avoids_strangers, self.is_busy = avoids_strangers, is_busy
        self.past = past
        self.before = past.counters
        """The counters before the last answer."""
        self.marks = {mark.cause: mark for mark in marks if mark.cause in CAUSES}
        self.probe: probe_results.ProbeResult | None = None
        self.probed_s = 0.0
        self.was_silent = False
        """It did not answer when it was last asked. That proves nothing: its watcher may have been killed."""
        self.live: frozenset[AttemptKey] = frozenset()
        """Attempts that hold it."""
        self.elsewhere: dict[AttemptKey, str] = {}
        """Attempts that hold others, and the names of those."""
        self.came_s: dict[AttemptKey, float] = {}
        self.left_s = -LEAVE_GRACE_S
        """When a job of ours left it last."""
        self.hidden: dict[int, int] = {}
        """Processes that cannot be seen from here -> in how many probes in a row."""
        self.held_probes = 0
        self.cuda_problem = ""
        """Why CUDA does not work there, as the agent's last try has it."""

    @property
    def processes(self) -> tuple[probe_results.Process, ...]:
        return self.probe.processes if self.probe is not None else ()

    @property
    def attempts(self) -> frozenset[AttemptKey]:
        """Attempts that have a process there."""
        return frozenset(each.owner.key for each in self.processes if each.owner.kind == "attempt")

    @property
    def names_all(self) -> bool:
        """Whether it is known of everybody who computes there, as the last probe has it, whose process that
        is: also in a container where NVML lists nobody."""
        probe = self.probe
        if probe is None or probe.code or not probe.lists_computing or self.reserve_mib is None:
            return False
        if any(each.computes and each.owner.kind in ("foreign", "hidden") for each in probe.processes):
            return False
        named_mib = sum(each.used_mib or 0 for each in probe.processes)
        return probe.used_mib - self.reserve_mib - named_mib < HELD_MIB_MIN

    @property
    def newcomers(self) -> frozenset[AttemptKey]:
        """Attempts that came after the last probe: what is older is not theirs. There are none in an
        agent's new life before its first probe, for none can have started while there was no agent."""
        if self.probe is None:
            return frozenset()
        return frozenset(key for key in self.live if self.came_s.get(key, 0.0) > self.probed_s)

    @property
    def held(self) -> held_memory.Held | None:
        """Who holds memory that should be free, as the last probe has it."""
        if self.probe is None:
            return None
        return held_memory.who_holds(self.probe, self.reserve_mib, self.live, self.elsewhere)

    def why_not_free(self, since_s: float, ended: frozenset[AttemptKey]) -> str:
        """Why its memory is not back, by a probe that was begun at `since_s` or later; empty: it is.
        `ended`: attempts that wait for it and count as gone. A lost GPU is not waited for, since it is not
        given out anyway, once all that was known of it in an earlier life has been told."""
        if "lost" in self.marks and (self.probe is not None or self.was_silent):
            return ""
        if self.probe is None or self.probe.at_s < since_s:
            return UNASKED
        if self.probe.code:
            return f"its memory cannot be asked for: {self.probe.problem}"
        held = held_memory.who_holds(
            self.probe, self.reserve_mib, self.live - ended, self.elsewhere.keys() - ended
        )
        return held.text if held is not None else ""

    @property
    def strangers(self) -> list[probe_results.Process]:
        """Processes that compute there and are not ours. Where processes cannot be matched (another PID
        namespace) one that cannot be seen is taken for ours as long as a job of ours is there."""
        return [
            process
            for process in self.processes
            if process.computes
            and (
                process.owner.kind == "foreign"
                or (self.hidden.get(process.pid, 0) >= HIDDEN_LOOKS and not self.live)
            )
        ]

    @property
    def intruders(self) -> dict[AttemptKey, str]:
        """Attempts that run there and hold other devices, with the names of those."""
        return {key: where for key, where in self.elsewhere.items() if key in self.attempts}

    @property
    def remains(self) -> list[probe_results.Process]:
        """Processes of attempts that hold no device any more."""
        if self.probed_s < self.left_s + LEAVE_GRACE_S:
            return []
        ours = (process for process in self.processes if process.owner.kind == "attempt")
        return [p for p in ours if p.owner.key not in self.live and p.owner.key not in self.elsewhere]


class DeviceCause(msgspec.Struct, frozen=True, kw_only=True):
    state: DeviceState = "ok"
    """What it means."""
    detects: Callable[[Gpu], str] = lambda gpu: ""
    """Its note; empty: it is not there, or it cannot be seen in a probe and is told."""
    bucket: xid.Bucket | None = None
    """The Xids that tell it."""
    ended_by: frozenset[Proof] = frozenset()
    """Any of these; none: it ends when it is not detected any more."""
    quiet_s: float = 0.0
    """How long ago it must be."""
    holds_memory: bool = False
    """Memory is in use there without a right to it."""


# --- What detects them -----------------------------------------------------------------------------


def _refuses(code: int) -> Callable[[Gpu], str]:
    """NVML answers with this code."""
    return lambda gpu: gpu.probe.problem if gpu.probe is not None and gpu.probe.code == code else ""


def _find_need_of_reset(gpu: Gpu) -> str:
    probe = gpu.probe
    if probe is None or probe.code:
        return _refuses(RESET_REQUIRED)(gpu)
    if probe.remap_failed and not gpu.past.is_pardoned:
        return "its memory has no spare rows left"
    if probe.remap_pending and not gpu.past.is_pardoned:
        return f"rows of its memory are to be replaced: {xid.RESET}"
    if gpu.before.has_more_errors(gpu.past.counters):
        return f"uncorrectable memory errors: {xid.RESET}"
    return ""


def _find_oddity(gpu: Gpu) -> str:
    has_row = (0, LOST, RESET_REQUIRED, NOT_SUPPORTED)
    return gpu.probe.problem if gpu.probe is not None and gpu.probe.code not in has_row else ""


def _find_ignorance(gpu: Gpu) -> str:
    unsure = gpu.probe is None and gpu.is_busy and gpu.avoids_strangers
    return "who uses it is not known yet" if unsure else ""


def _find_strangers(gpu: Gpu) -> str:
    theirs = gpu.strangers if gpu.avoids_strangers else []
    return f"{FOREIGN}{_list_processes(theirs)}" if theirs else ""


def _find_intruders(gpu: Gpu) -> str:
    found = gpu.intruders.items() if gpu.avoids_strangers else ()
    return ", ".join(f"job {key[0]} uses it and holds {where}" for key, where in found)


def _find_remains(gpu: Gpu) -> str:
    found = gpu.remains
    return f"not free yet: {_list_processes(found)}, of a job that has ended" if found else ""


def _find_held_memory(gpu: Gpu) -> str:
    is_settled = gpu.probed_s >= gpu.left_s + LEAVE_GRACE_S
    held = gpu.held if gpu.held_probes >= HELD_LOOKS and is_settled else None
    return held.text if held is not None else ""


def _list_processes(processes: list[probe_results.Process]) -> str:
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


# --- The table -------------------------------------------------------------------------------------

_SUSPECT: Final[frozenset[Proof]] = frozenset({"quiet", "person", "reset"})
_DRAINING: Final[frozenset[Proof]] = frozenset({"person", "reset"})
_LOST: Final[frozenset[Proof]] = frozenset({"reset"})
CAUSES: Final[dict[str, DeviceCause]] = {
    "lost": DeviceCause(state="lost", detects=_refuses(LOST), bucket="lost", ended_by=_LOST),
    # The driver wants it reset, its memory is broken, or an error of the device asks for it.
    "reset": DeviceCause(state="draining", detects=_find_need_of_reset, bucket="drain", ended_by=_DRAINING),
    "odd": DeviceCause(
        state="suspect", detects=_find_oddity, bucket="suspect", ended_by=_SUSPECT, quiet_s=600.0
    ),
    # A question about it was not answered.
    "silent": DeviceCause(state="suspect", ended_by=_SUSPECT, quiet_s=300.0),
    # A program's error that hits all clients of an MPS server.
    "program": DeviceCause(state="suspect", bucket="restart", ended_by=_SUSPECT),
    # An MPS server that serves it is in FAULT.
    "server": DeviceCause(state="suspect", ended_by=_SUSPECT),
    # A job has ended long ago, and its memory is not back.
    "kept": DeviceCause(state="suspect", ended_by=_SUSPECT),
    # MIG was turned on, or the instance is gone: it passes when NVML answers again.
    "mode": DeviceCause(state="suspect", detects=_refuses(NOT_SUPPORTED), ended_by=_SUSPECT),
    # It has begun anew, and must show that it works.
    device_states.RENEWED: DeviceCause(state="suspect", ended_by=_SUSPECT, quiet_s=60.0),
    "cuda": DeviceCause(state="suspect", detects=lambda gpu: gpu.cuda_problem),
    "unknown": DeviceCause(detects=_find_ignorance),
    "foreign": DeviceCause(detects=_find_strangers),
    # A running job that was given another device.
    "intruder": DeviceCause(detects=_find_intruders),
    "remains": DeviceCause(detects=_find_remains, holds_memory=True),
    "held": DeviceCause(detects=_find_held_memory, holds_memory=True),
}
"""By name, the worst first: of two causes that mean the same, a device shows the first."""
BY_BUCKET: Final = {row.bucket: name for name, row in CAUSES.items() if row.bucket is not None}
