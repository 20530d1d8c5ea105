"""How long each attempt has held its devices without using them: from its steps, what its processes use, and
the devices' indicators together. Pure.

Rule: time counts as idle only while it is known that nothing happens. An attempt works if anything shows
that: a step, a kernel on its devices, processor time or reads of its processes, input, loading, a save,
leaving. What is not known, and what we ourselves hold back, neither counts as idle nor ends it:

    nothing is known of its processes, or of one of its GPUs     (no indicators, or old ones)
    a GPU is busy that others use as well                        (whose kernels they are, cannot be told)
    it is paced for a co-tenant, or somebody has stopped it      (SIGSTOP, a debugger)

A job that has no process on the GPUs it holds uses none of them, whatever steps it makes on the CPU.
On CPU slots what its processes use stands for kernels. An agent that starts anew knows of no activity before:
what it says then ends no idle time that the controller knows of.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.domain import Device, DeviceId, DeviceReading
from cotenant.controller.wire import IdleReading

KERNELS_MIN: Final = 0.0005
"""Of the time; an idle GPU has 0, and single short kernels are rounded to 1 % of a sample."""
OLD_S: Final = 10.0
"""An older reading of a device says nothing of now."""
GAP_S: Final = 10.0
"""A longer time between two looks counts as this much: we did not look."""


class AttemptSight(NamedTuple):
    """What is seen of an attempt at one moment."""

    marks: Hashable
    """Of its steps and saves: they change when it makes one."""
    activity: int | None
    """Counts what its processes do; None: not known."""
    has_kernels: bool | None
    """On any of its devices; None: not known, or whose they are is not."""
    is_busy: bool = False
    """It loads, saves or leaves."""
    is_held: bool = False
    """It is kept from working."""


class IdleWatch:
    """The watch over one attempt."""

    def __init__(self) -> None:
        self._seen: AttemptSight | None = None
        self._looked_s = 0.0
        self._active_s: float | None = None
        self._idle_s = 0.0

    def look(self, sight: AttemptSight, now_s: float) -> None:
        """Takes in what is seen now."""
        before, self._seen = self._seen, sight
        passed_s, self._looked_s = max(0.0, now_s - self._looked_s), now_s
        if before is None:
            passed_s = 0.0
        has_moved = before is not None and (before.marks, before.activity or 0) != (
            sight.marks,
            sight.activity or 0,
        )
        if sight.is_busy or sight.has_kernels or has_moved:
            self._active_s, self._idle_s = now_s, 0.0
        elif sight.activity is not None and sight.has_kernels is False and not sight.is_held:
            self._idle_s += min(passed_s, GAP_S)

    def read(self, now_s: float) -> IdleReading | None:
        """How long it has been idle by now; None: nothing is known of its processes."""
        if self._seen is None or self._seen.activity is None:
            return None
        active_ago_s = None if self._active_s is None else max(0.0, now_s - self._active_s)
        return IdleReading(idle_s=self._idle_s, active_ago_s=active_ago_s)


class Kernels:
    """The newest word on each device: whether anything runs there."""

    def __init__(self) -> None:
        self._read: dict[DeviceId, tuple[float, bool | None]] = {}
        self._quiet_since_s: dict[DeviceId, float] = {}

    def take(self, readings: Iterable[DeviceReading], now_s: float) -> tuple[DeviceReading, ...]:
        """Takes in what was read of devices; returns it with how long nothing has run there."""
        found = []
        for each in readings:
            used, at_s = each.values.get("GRACT", each.values.get("SMACT")), now_s - each.age_s
            self._read[each.device_id] = (at_s, None if used is None else used > KERNELS_MIN)
            if used is None or used > KERNELS_MIN:
                self._quiet_since_s.pop(each.device_id, None)
            quiet_since_s = self._quiet_since_s.setdefault(each.device_id, at_s) if used == 0.0 else now_s
            found.append(msgspec.structs.replace(each, quiet_s=max(0.0, now_s - quiet_since_s)))
        return tuple(found)

    def run_on(self, devices: Iterable[Device], now_s: float, *, shared: bool) -> bool | None:
        """Whether anything runs on these devices of an attempt. `shared`: others hold them as well."""
        found = [self._runs(each, now_s) for each in devices]
        if any(found):
            return None if shared else True
        return None if not found or None in found else False

    def _runs(self, device: Device, now_s: float) -> bool | None:
        if device.kind == "cpu":
            return False
        read_s, runs = self._read.get(device.device_id, (now_s, None))
        return runs if now_s - read_s <= OLD_S else None
