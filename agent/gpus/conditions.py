"""Whether a GPU takes work, and who or what is in the way: from what is known of it. Pure.

Rule: a note names somebody or something that a person can act on, and stays as it was said while nothing of
weight has changed: each new one is told to the controller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, Literal

import msgspec

from cotenant.agent.daemon.core.memory import Key
from cotenant.agent.gpus.device_state_store import DeviceMark, PastStates, RisingCounters
from cotenant.agent.gpus.held_memory import Held, who_holds
from cotenant.agent.gpus.probe_results import ProbeResult, Process
from cotenant.controller.domain.cluster import DeviceState

Foreign = Literal["avoid", "ignore"]
HELD_LOOKS: Final = 2
"""So many looks in a row must see memory held: it goes a little later than its process."""
HIDDEN_LOOKS: Final = 2
"""Likewise: one that cannot be seen may just have ended."""
LEAVE_GRACE_S: Final = 3.0
"""What is seen so soon after a job has left may have been asked before."""
PROCESSES_SHOWN: Final = 3


class DeviceCondition(msgspec.Struct, frozen=True, kw_only=True):
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

    def __init__(self, reserve_mib: int, mark: DeviceMark | None, past: PastStates | None = None) -> None:
        self.reserve_mib = reserve_mib
        self.mark = mark
        self.look: ProbeResult | None = None
        self.looked_s = 0.0
        self.live: frozenset[Key] = frozenset()
        """Attempts that hold it."""
        self.came_s: dict[Key, float] = {}
        """When each of them came."""
        self.left_s = -LEAVE_GRACE_S
        """When a job of ours left it last."""
        self.hidden: dict[int, int] = {}
        """Processes that cannot be seen from here -> in how many looks in a row."""
        self.held_looks = 0
        self.gist: Gist = ("free",)
        self.condition = DeviceCondition()
        self.counters = past.counters if past is not None else RisingCounters()
        """As of the last look that was answered."""
        self.is_pardoned = past is not None and past.is_pardoned
        self.was_silent = False
        """It did not answer when it was last asked. That proves nothing: its watcher may have been killed."""
        self.is_away = past is not None and past.is_away
        """NVML said that it is lost or wants a reset."""
        self.record = past.record if past is not None else None

    def past(self, uuid: str) -> PastStates:
        return PastStates(
            uuid=uuid,
            counters=self.counters,
            is_away=self.is_away,
            is_pardoned=self.is_pardoned,
            record=self.record,
        )

    @property
    def newcomers(self) -> frozenset[Key]:
        """Attempts that came after the last look: what is older than that is not theirs. There are none in an
        agent's new life before its first look, for nobody can have come while there was no agent."""
        if self.look is None:
            return frozenset()
        return frozenset(key for key in self.live if self.came_s.get(key, 0.0) > self.looked_s)

    @property
    def held(self) -> Held | None:
        """As the last look has it."""
        return who_holds(self.look, self.reserve_mib, self.live) if self.look is not None else None

    @property
    def is_settled(self) -> bool:
        """Whether the last look was taken long enough after a job of ours has left."""
        return self.looked_s >= self.left_s + LEAVE_GRACE_S


def condition_of(gpu: Gpu, *, foreign: Foreign, is_busy: bool) -> tuple[Gist, DeviceCondition]:
    """What counts in it, and the whole of it. `is_busy`: somebody computed there when the agent started."""
    if gpu.mark is not None:
        known = DeviceCondition(state=gpu.mark.state, note=f"{gpu.mark.state}: {gpu.mark.why}")
        return ("mark", known.note), known
    if gpu.look is None:
        unsure = is_busy and foreign == "avoid"
        return ("unseen", unsure), DeviceCondition(note="who uses it is not known yet" if unsure else "")
    theirs = strangers(gpu) if foreign == "avoid" else []
    if theirs:
        return _gist("foreign", theirs), DeviceCondition(note=f"in use by {_in_words(theirs)}")
    remains = list(_of_ended(gpu))
    if remains:
        note = f"not free yet: {_in_words(remains)}, of a job that has ended"
        return _gist("remains", remains), DeviceCondition(note=note, held=True)
    held = gpu.held if gpu.held_looks >= HELD_LOOKS and gpu.is_settled else None
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
        for process in (gpu.look.processes if gpu.look is not None else ())
        if process.computes
        and (
            process.owner.kind == "foreign"
            or (gpu.hidden.get(process.pid, 0) >= HIDDEN_LOOKS and not gpu.live)
        )
    ]


def _of_ended(gpu: Gpu) -> Iterator[Process]:
    """Processes of ours whose attempts do not hold the device any more."""
    for process in gpu.look.processes if gpu.look is not None and gpu.is_settled else ():
        if process.owner.kind == "attempt" and process.owner.key not in gpu.live:
            yield process


def _gist(kind: str, processes: Collection[Process]) -> Gist:
    """Who, and roughly how much."""
    amounts = ((p.used_mib or 0).bit_length() for p in processes)
    return (kind, *(p.pid for p in processes), *amounts)


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
