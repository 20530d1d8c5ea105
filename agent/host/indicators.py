"""What the devices of this host do just now, read every so often for heartbeats and Prometheus.

Rule: the loop never waits for a driver. A process of its own samples the GPUs; here the agent collects its
answers when they have come. If it fails, the readings say why, and the agent starts it again later, ever less
often. No decision uses these readings.

On a CPU slot everything that runs on its cores counts, whoever does it, as everything that runs on a GPU
does: read from /proc/stat, in ticks of 10 ms; time that a hypervisor took away was not used.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.domain import TEXT_MAX, Device, DeviceId, DeviceReading
from cotenant.profiler.indicators import device_process, sources

LOOK_S: Final = 0.02
LOOKS_MAX: Final = 10
"""An answer that has not come by then is collected the next time."""
RETRY_S: Final = 30.0
RETRY_S_MAX: Final = 600.0
STARTING: Final = "the sources are being tried"
CPU_SOURCE: Final = "cpu"
CPU_LACKS: Final = "a CPU slot has no counters of pipes, memory or links"


class IndicatorReader:
    """Reads all devices of a host, again and again."""

    def __init__(
        self,
        devices: Callable[[], Sequence[Device]],
        memory_seen_mib: Callable[[], Mapping[DeviceId, float]],
        post: Callable[[tuple[DeviceReading, ...]], None],
        *,
        wanted: sources.Wanted,
        every_s: float,
        command: Sequence[str] = (),
    ) -> None:
        """`memory_seen_mib`: what is in use of the devices. `command` answers like
        `profiler.indicators.device_child`; by default it is that."""
        self._devices = devices
        self._memory_seen_mib = memory_seen_mib
        self._post = post
        self._every_s = every_s
        self._slots = SlotUse()
        self._gpus = Gpus(wanted, command)

    async def run(self) -> None:
        """Reads and posts the indicators until the task is cancelled."""
        try:
            self._slots.look()
            while True:
                await asyncio.sleep(self._every_s)
                self._post(await self.read())
        finally:
            self._gpus.close()

    async def read(self) -> tuple[DeviceReading, ...]:
        devices = self._devices()
        self._slots.look()
        memory_mib = self._memory_seen_mib()
        gpus = [device for device in devices if device.kind == "cuda" and device.state != "lost"]
        readings = [
            *(self._slot(device) for device in devices if device.kind == "cpu"),
            *(
                DeviceReading(device_id=each.device_id, why=device_process.MIG_HAS_NONE)
                for each in gpus
                if each.parent
            ),
            *await self._gpus.read([gpu for gpu in gpus if not gpu.parent]),
        ]
        return tuple(
            msgspec.structs.replace(each, memory_used_mib=memory_mib.get(each.device_id)) for each in readings
        )

    def _slot(self, device: Device) -> DeviceReading:
        values = self._slots.values(device)
        return DeviceReading(
            device_id=device.device_id,
            source=CPU_SOURCE if values else "",
            values=values,
            lasted_s=self._slots.lasted_s if values else None,
            why=CPU_LACKS if values else "its cores were not all counted",
        )


class Gpus:
    """The child that reads the GPUs, started when there are some."""

    def __init__(
        self, wanted: sources.Wanted, command: Sequence[str] = (), clock: Callable[[], float] = time.monotonic
    ):
        self._wanted, self._command, self._clock = wanted, list(command), clock
        self._child: device_process.DeviceProcess | None = None
        self._uuids: tuple[str, ...] = ()
        self._again_s = -math.inf
        self._retry_s = RETRY_S
        self._problem = ""
        self._fallback = ""
        """Why the sources are not tried in their order any more."""

    async def read(self, devices: Sequence[Device]) -> list[DeviceReading]:
        """Returns one reading per device; devices of which nothing new is known yet are left out."""
        self._start(tuple(device.local for device in devices))
        answer: device_process.DeviceAnswer | None = None
        try:
            for _ in range(LOOKS_MAX):
                answer = self._child.ask(0.0) if self._child is not None else None
                if self._child is None or answer is not None:
                    break
                await asyncio.sleep(LOOK_S)
        except device_process.NoIndicators as problem:
            self._fail(str(problem), problem.was_said)
        if answer is None:
            why = self._problem if self._child is None else "" if self._child.has_answered else STARTING
            return [DeviceReading(device_id=each.device_id, why=why) for each in devices if why]
        self._retry_s = RETRY_S
        readings = (
            reading_of(answer, at, each, self._clock(), self._fallback) for at, each in enumerate(devices)
        )
        return [reading for reading in readings if reading is not None]

    def _start(self, uuids: tuple[str, ...]) -> None:
        if uuids != self._uuids:
            self.close()
            self._uuids, self._again_s = uuids, -math.inf
        if uuids and self._child is None and self._clock() >= self._again_s:
            self._child = device_process.DeviceProcess(
                self._command or device_process.words_of(self._wanted, uuids)
            )

    def _fail(self, problem: str, was_said: bool) -> None:
        self._child, self._problem = None, problem[:TEXT_MAX]
        if not was_said and self._wanted.source == "auto":
            # What hung or died was mostly not plain NVML.
            self._wanted = msgspec.structs.replace(self._wanted, source="nvml")
            self._fallback = f" (after a try of all sources: {problem})"
        self._again_s = self._clock() + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_S_MAX)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None


def reading_of(
    answer: device_process.DeviceAnswer, number: int, device: Device, now_s: float, note: str = ""
) -> DeviceReading | None:
    """Returns one device's part of an answer; None if the answer says nothing new of the device. `note` is
    added to the reason."""
    windows = sources.Windows()
    for sample in answer.samples_of((number,)):
        windows.add(sample)
    values = {name.value: each.mean for name, each in windows.summaries().items() if each.count}
    problem = answer.problems[number] if number < len(answer.problems) else ""
    if not answer.samples and not problem:
        return None  # No new sample: the last one still counts, and ages.
    return DeviceReading(
        device_id=device.device_id,
        source=answer.source if values else "",
        values={name: value for name, value in values.items() if value >= 0.0},
        lasted_s=answer.samples[-1].at_s - answer.samples[0].since_s if values else None,
        age_s=max(0.0, now_s - answer.samples[-1].at_s) if answer.samples else 0.0,
        why=((problem or answer.why) + note)[:TEXT_MAX],
    )


PROC_STAT: Final = Path("/proc/stat")

Ticks = dict[int, tuple[int, int]]
"""Core -> (busy, all)."""


class SlotUse:
    """The use of all cores between two readings."""

    def __init__(
        self, read: Callable[[], str] = PROC_STAT.read_text, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._clock = read, clock
        self._before: Ticks = {}
        self._now: Ticks = {}
        self._before_s = self._now_s = clock()

    def look(self) -> None:
        """Reads the counters; from now on `values` is about the time since the last look."""
        self._before, self._before_s = self._now, self._now_s
        try:
            self._now, self._now_s = ticks_of(self._read()), self._clock()
        except (OSError, ValueError):
            self._now = {}

    @property
    def lasted_s(self) -> float:
        return self._now_s - self._before_s

    def values(self, device: Device) -> dict[str, float]:
        """Returns the use of a CPU slot by Table 2's names; empty where there is nothing to compare with, or
        a core has gone."""
        shares = [self._share(core) for core in device.cores]
        known = [share for share in shares if share is not None]
        if not known or len(known) < len(shares):
            return {}
        used = sum(known)
        return {"GRACT": min(1.0, used), "SMACT": used / len(known), "CPU": used}

    def _share(self, core: int) -> float | None:
        before, now = self._before.get(core), self._now.get(core)
        if before is None or now is None or now[1] <= before[1] or now[0] < before[0]:
            return None  # Counters that went back belong to a core that was off.
        return min(1.0, (now[0] - before[0]) / (now[1] - before[1]))


def ticks_of(text: str) -> Ticks:
    """Returns the ticks of each core from the text of /proc/stat. Raises ValueError: not what /proc/stat
    looks like."""
    found: Ticks = {}
    for line in text.splitlines():
        name, *counts = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, idle, wait, *rest = map(int, counts[:8])
            interrupts = sum(rest[:2])
            busy = user + nice + system + interrupts
            found[int(name[3:])] = (busy, busy + idle + wait + sum(rest[2:]))
    return found
