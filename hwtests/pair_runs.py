"""Measure pairs: each job alone, then two together in both orders.

Rule: the same commands, steps and device in every run; only the company and the environment of MPS differ.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.profiler.driver.library import Library, open_library
from cotenant.profiler.driver.reading import handle_of, memory_mib
from cotenant.profiler.indicators.cpu import CpuSource
from cotenant.profiler.indicators.gpu import GpuSource
from cotenant.profiler.indicators.sources import Indicator, MetricsSource, Summary, Windows
from hwtests.device import Device
from hwtests.driving import MANY_STEPS, Job, Life, Start, drive
from hwtests.pair_table import (
    REPORTS_MIN,
    WARM_UP_STEPS,
    Mode,
    Sharing,
    Solo,
    median_step_s,
    together,
    window,
)
from hwtests.private_mps import PrivateMps

DEADLINE_S: Final = 150.0
SAMPLE_S: Final = 0.5

JOBS: Final = (
    Job(model="cnn", batch_size=64),
    Job(model="transformer", batch_size=16),
    Job(model="lstm", batch_size=64),
    Job(model="mlp", batch_size=512),
    Job(model="embedding", batch_size=2048),
    Job(model="input_bound", batch_size=32),
)
PAIRS: Final = (
    ("cnn", "transformer"),
    ("cnn", "input_bound"),
    ("transformer", "embedding"),
    ("transformer", "lstm"),
    ("lstm", "mlp"),
    ("embedding", "mlp"),
    ("input_bound", "lstm"),
    ("cnn", "cnn"),
)


def jobs(device: Device) -> dict[str, Job]:
    """By model; small ones for a CPU."""
    if device.kind == "cuda":
        return {job.model: job for job in JOBS}
    return {job.model: Job(model=job.model, batch_size=8, precision="fp32", small=True) for job in JOBS}


class _Watch:
    """Samples a job that is alone on the device: indicators, and memory in use above what was before.

    Nothing here waits for a driver: whoever waits does not hear the job, and takes its end for later than it
    was. The source is chosen while the job loads, and samples on its own clock.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._source: MetricsSource | None = None
        self._at_s = -math.inf
        self._before_mib = used_mib(device)
        self._windows = Windows()
        self._counts = False
        self.memory_mib = math.nan

    def __call__(self, lives: Sequence[Life]) -> None:
        now_s = time.monotonic()
        if now_s - self._at_s < SAMPLE_S or not lives[0].pid:
            return
        self._at_s = now_s
        used = used_mib(self._device) - self._before_mib
        if not math.isnan(used):
            self.memory_mib = used if math.isnan(self.memory_mib) else max(self.memory_mib, used)
        if self._source is None:
            host = CpuSource([lives[0].pid], len(self._device.cores))
            self._source = GpuSource((self._device.uuid,), host) if self._device.kind == "cuda" else host
        new = self._source.samples()
        if self._counts:
            for sample in new:
                self._windows.add(sample)
        self._counts = lives[0].trains  # From the next time on: what is new now began while it loaded.

    def summaries(self) -> dict[Indicator, Summary]:
        return self._windows.summaries()

    def close(self) -> None:
        if self._source is not None:
            self._source.close()


def used_mib(device: Device) -> float:
    """Of the whole device, as nvidia-smi shows it; NaN on a CPU."""
    if device.kind != "cuda":
        return math.nan
    return float(memory_mib(*_opened(device.uuid)).taken_mib)


@cache
def _opened(uuid: str) -> tuple[Library, Any]:
    """The library and the device's handle. Opened once: asked often, and it may be slow to start."""
    nvml = open_library()
    return nvml, handle_of(nvml, uuid)


def alone(job: Job, device: Device, folder: Path, seconds: float) -> Solo:
    """How fast it is, how many steps fill the time, and then the whole run of these steps."""
    (calibrated,) = drive(
        [Start(job=job, steps=MANY_STEPS)],
        device,
        folder,
        deadline_s=DEADLINE_S,
        enough=lambda lives: _calibrated(lives[0], min(2.0, seconds)),
    )
    every = [report for report in calibrated.reports if report.step > report.count]
    steps = max(4 * WARM_UP_STEPS, math.ceil(seconds / median_step_s(every, job.model)))
    watch = _Watch(device)
    try:
        (life,) = drive([Start(job=job, steps=steps)], device, folder, deadline_s=DEADLINE_S, watch=watch)
    finally:
        watch.close()
    memory_mib = watch.memory_mib if device.kind == "cuda" else life.memory_mib
    return Solo(
        job=job,
        step_s=median_step_s(window(life, life.first_step_s, life.ended_s), job.model),
        wall_s=life.ended_s - life.started_s,
        hello_s=life.hello_s - life.started_s,
        load_s=life.first_step_s - life.started_s,
        steps=steps,
        memory_mib=memory_mib,
        indicators=watch.summaries(),
    )


def _calibrated(life: Life, seconds: float) -> bool:
    """It has trained for so long, and said so often enough that a median means something."""
    return len(life.reports) > REPORTS_MIN and life.reports[-1].at_s - life.first_step_s >= seconds


def shared(
    first: Solo, second: Solo, device: Device, folder: Path, mode: Mode, mps: PrivateMps | None = None
) -> Sharing:
    """Both together once: `second` starts when `first` has made its first step, and `first` stops after it.

    Raises:
        MpsFailed: under MPS one of them did not attach, and would have time-sliced unnoticed.
    """
    assert (mode == "mps") == (mps is not None)
    env = {} if mps is None else mps.environment()
    enough = folder / f"enough-{time.monotonic_ns()}"
    incumbent = msgspec.structs.replace(first.job, more=("--until", str(enough)))
    starts = [
        Start(job=incumbent, env=env),
        Start(job=second.job, steps=second.steps, env=env, after=0),
    ]
    attached = False

    def watch(lives: Sequence[Life]) -> None:
        nonlocal attached
        if mps is not None and not attached and all(life.trains for life in lives):
            mps.await_clients(*(life.pid for life in lives))
            attached = True
        if lives[1].over:  # It leaves as after its last step: a client of MPS is not killed at work.
            enough.touch()

    one, two = drive(starts, device, folder, deadline_s=2 * DEADLINE_S, watch=watch)
    return together(one, two, (first, second), mode)
