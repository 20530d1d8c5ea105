"""A private controller and agent on the device under test, and jobs through them.

Rule: what is submitted is measured on this device first, by the profiler in place; nothing about a job's
speed or memory is assumed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.cli.demo.measuring import job_spec, measure_profiles
from cotenant.controller.cli.demo.plan import DemoJob, MeasuredJob
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId
from cotenant.controller.performance import Profile
from cotenant.controller.wire import clients as wire
from hwtests.device import Device
from hwtests.measuring import Measure

PROFILE_S: Final = 15.0
CPU_SLOT_MIB: Final = 8192


def cluster(folder: Path, device: Device, profile_s: float = 0.0) -> PrivateCluster:
    """One device, by its UUID; in a dry run one CPU slot."""
    if device.kind == "cuda":
        return PrivateCluster(folder, f"cuda:{device.uuid}", profile_s=profile_s)
    return PrivateCluster(folder, "cpu:1", slot_memory_mib=CPU_SLOT_MIB, profile_s=profile_s)


def measure(jobs: tuple[DemoJob, ...], device: Device, folder: Path) -> dict[str, MeasuredJob]:
    """Their step times, memory and load times, each alone on the device."""
    with cluster(folder, device, PROFILE_S) as private:
        found = measure_profiles(private, [job_spec(job) for job in jobs])
    return {job.name: MeasuredJob(job=job, profile=_whole(found[job.name])) for job in jobs}


def _whole(profile: Profile) -> Profile:
    """Without the duty cycle: two jobs that keep a device busy are to share it, by the default ratio."""
    point = profile.point_at(1)
    assert point is not None and point.memory_mib > 0, f"it used no device memory: {profile}"
    return Profile(points=(point,), load_s=profile.load_s, steps=profile.steps)


def submit(client: Client, measured: MeasuredJob, results: Path) -> JobId:
    """One of the demo's jobs, as it was measured."""
    result = results / f"{measured.job.name}.json"
    spec = job_spec(measured.job, measured.steps, result, measured.profile)
    return client.ask(wire.Submit(specs=(spec,))).job_ids[0]


def note_costs(name: str, attempts: tuple[wire.AttemptView, ...], measured: Measure) -> None:
    """What each launch, load and pause took, as the controller's journal has it."""
    for attempt in attempts:
        who = f"{name}, attempt {attempt.attempt}"
        if attempt.first_step_s is not None:
            what = "load" if attempt.attempt == 1 else "load from a checkpoint"
            measured(f"{who}: {what}", attempt.first_step_s - attempt.launched_s, "s", "launch to first step")
        if attempt.stop_requested_s is not None and attempt.ended_s is not None:
            pause_s = attempt.ended_s - attempt.stop_requested_s
            measured(f"{who}: pause and save", pause_s, "s", "request to device free")
