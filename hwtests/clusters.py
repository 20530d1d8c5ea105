"""A private controller and agent on the device under test, and jobs through them.

Rule: what is submitted is measured on this device first; nothing about a job's speed or memory is assumed.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from pathlib import Path
from typing import Final

from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.cli.demo.measuring import MANY_STEPS, job_environment
from cotenant.controller.cli.demo.plan import DemoJob, MeasuredJob
from cotenant.controller.client import Client
from cotenant.controller.domain.ids import JobId
from cotenant.controller.domain.job import JobSpec, Launch
from cotenant.controller.domain.perf import Profile, ProfilePoint
from cotenant.controller.wire.clients import AttemptView, Submit
from cotenant.profiler.ranks import RankCommand, Seat
from cotenant.profiler.run import RunPlan
from cotenant.profiler.solo import measure_solo
from hwtests.device import Device
from hwtests.measuring import Measure
from hwtests.pair_runs import used_mib

DEADLINE_S: Final = 120.0
CPU_SLOT_MIB: Final = 8192


def cluster(folder: Path, device: Device) -> PrivateCluster:
    """One device, by its UUID; in a dry run one CPU slot."""
    if device.kind == "cuda":
        return PrivateCluster(folder, f"cuda:{device.uuid}")
    return PrivateCluster(folder, "cpu:1", slot_memory_mib=CPU_SLOT_MIB)


class PeakMemory:
    """The device's used memory above what it was at the start, sampled through NVML."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.peak_mib = math.nan

    def __enter__(self) -> PeakMemory:
        self._before_mib = used_mib(self._device)
        if self._device.kind == "cuda":
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        self.peak_mib = 0.0
        while not self._stop.wait(0.05):
            self.peak_mib = max(self.peak_mib, used_mib(self._device) - self._before_mib)


def measure(job: DemoJob, device: Device) -> MeasuredJob:
    """Its step time, memory and load time, alone on the device."""
    env = {**job_environment(), "CUDA_VISIBLE_DEVICES": device.uuid}
    command = RankCommand(argv=job.argv(sys.executable, MANY_STEPS, None), workdir=os.getcwd(), env=env)
    cores = tuple(sorted(os.sched_getaffinity(0)))
    plan = RunPlan(accumulation_steps=(1,), deadline_s=DEADLINE_S)
    with PeakMemory(device) as memory:
        run = measure_solo(command, [Seat(cores=cores)], plan=plan)
    assert run.points, f"{job.name} was not measured: {run.notes}"
    memory_mib = memory.peak_mib if device.kind == "cuda" else run.points[0].memory_mib
    assert memory_mib > 0, f"{job.name} used no device memory: does it run on the CPU?"
    point = ProfilePoint(
        sub_batch=job.batch_size,
        accumulation_steps=1,
        step_s=run.points[0].step_s,
        memory_mib=memory_mib,
    )
    # The duty cycle of a CUDA device is not the process's CPU time: left unknown, the default ratio serves.
    profile = Profile(points=(point,), load_s=run.load_s, steps=run.points[0].steps)
    return MeasuredJob(job=job, profile=profile)


def submit(client: Client, measured: MeasuredJob, results: Path) -> JobId:
    """One of the demo's jobs, as it was measured."""
    job = measured.job
    argv = job.argv(sys.executable, measured.steps, results / f"{job.name}.json")
    spec = JobSpec(
        job_id=JobId("new-0"),
        name=job.name,
        batch_size=job.batch_size,
        iterations=measured.steps,
        profile=measured.profile,
        launch=Launch(argv=argv, workdir=os.getcwd(), env=job_environment()),
    )
    return client.ask(Submit(specs=(spec,))).job_ids[0]


def note_costs(name: str, attempts: tuple[AttemptView, ...], measured: Measure) -> None:
    """What each launch, load and pause took, as the controller's journal has it."""
    for attempt in attempts:
        who = f"{name}, attempt {attempt.attempt}"
        if attempt.first_step_s is not None:
            what = "load" if attempt.attempt == 1 else "load from a checkpoint"
            measured(f"{who}: {what}", attempt.first_step_s - attempt.launched_s, "s", "launch to first step")
        if attempt.stop_requested_s is not None and attempt.ended_s is not None:
            pause_s = attempt.ended_s - attempt.stop_requested_s
            measured(f"{who}: pause and save", pause_s, "s", "request to device free")
