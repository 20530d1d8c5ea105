"""Measure jobs through the product: each is queued once to be profiled (`profiling="only"`), in a private
cluster of its own.

Rule: as `cotenant profile` has it: every job is alone on the devices that the agent gave it, and leaves when
its profile is complete; nothing is assumed, and a job without a profile is an error that says why.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.cli.demo.plan import DemoJob, MeasuredJob
from cotenant.controller.cli.profiles.series import measured_only
from cotenant.controller.client import Client
from cotenant.controller.domain import ENDED, JobId, JobSpec, Launch, Profile
from cotenant.controller.wire import ShowJob, Shown, Submit, WaitJobs

MANY_STEPS: Final = 1_000_000
PROFILE_S: Final = (10.0, 40.0, 60.0)
"""T_prof of the demo's jobs: long enough for the slowest at s = 1 and 2; where other load on the cores kept
a job from being measured, twice more."""
WANTED: Final = (1, 2)
JOB_TIMEOUT_S: Final = 120.0
"""One job's load and start, on top of T_prof."""
LOOK_S: Final = 0.5
APART_MIB: Final = 100.0
LARGE_BLOCKS_APART: Final = {"MALLOC_MMAP_THRESHOLD_": str(4 * 1024 * 1024)}
"""glibc gives large tensors back when they are freed, so that less memory at a larger s shows at once."""


class NotMeasured(Exception):
    """A job could not be measured; the text says which and why."""


def job_environment() -> dict[str, str]:
    """What a job of the demo sees of this shell's environment."""
    names = ("PATH", "HOME", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR")
    return {name: os.environ[name] for name in names if name in os.environ} | LARGE_BLOCKS_APART


def job_spec(
    job: DemoJob, steps: int = MANY_STEPS, result: Path | None = None, profile: Profile | None = None
) -> JobSpec:
    """The job as it is submitted; without a profile its length is not known."""
    return JobSpec(
        job_id=JobId("new-0"),
        name=job.name,
        gpus_min=job.workers,
        gpus_max=job.workers,
        batch_size=job.batch_size,
        iterations=steps if profile is not None else None,
        profile=profile,
        launch=Launch(
            argv=job.argv(sys.executable, steps, result), workdir=os.getcwd(), env=job_environment()
        ),
    )


def measure_jobs(
    jobs: Sequence[DemoJob], devices: int, folder: Path, say: Callable[[str], None]
) -> dict[str, MeasuredJob]:
    """The measured form of every job, by name.

    Raises:
        NotMeasured: a job did not run, or not long enough; the text says why.
        ProcessStartFailed: somebody else has the devices.
    """
    first = {job.measure_key: job for job in reversed(jobs)}
    left = {job.name: job for job in sorted(first.values(), key=lambda job: job.workers)}
    found: dict[str, Profile] = {}

    def told(name: str, profile: Profile) -> None:
        if _is_clear(left[name], profile, is_last=profile_s == PROFILE_S[-1]):
            found[name] = profile
            say(_in_words(left[name], profile))

    for number, profile_s in enumerate(PROFILE_S):
        specs = [job_spec(job) for name, job in left.items() if name not in found]
        if specs:
            with PrivateCluster(folder / str(number), f"cpu:{devices}", profile_s=profile_s) as cluster:
                cluster.check_devices(devices)
                profiled(cluster, specs, told)
    slow = ", ".join(name for name in left if name not in found)
    if slow:
        raise NotMeasured(
            f"{slow}: not seen with its whole batch and with half of it, not even in {PROFILE_S[-1]:.0f} s. "
            "Others want the cores: try again when the machine is less busy"
        )
    return {job.name: MeasuredJob(job=job, profile=found[first[job.measure_key].name]) for job in jobs}


def _is_clear(job: DemoJob, profile: Profile, *, is_last: bool) -> bool:
    """Whether all that the demo needs was measured: both splits of the batch, and how much less memory half a
    batch takes of the memory-heavy job. Memory that the process kept from before may hide the latter."""
    whole, half = (profile.at(s) for s in WANTED)
    if whole is None or half is None:
        return False
    return is_last or job.script != "memory_heavy" or whole.memory_mib - half.memory_mib > APART_MIB


def profiled(
    cluster: PrivateCluster,
    specs: Sequence[JobSpec],
    told: Callable[[str, Profile], None] = lambda name, profile: None,
) -> dict[str, Profile]:
    """What each needs, by name; several at a time where there are devices for it.

    Args:
        told: called as each is done.

    Raises:
        NotMeasured: one has no step time at its whole batch.
    """
    with Client(cluster.endpoint) as client:
        asked = [client.ask(Submit(specs=(measured_only(spec, cluster.profile_s),))) for spec in specs]
        left = {reply.job_ids[0]: spec.name for reply, spec in zip(asked, specs, strict=True)}
        return _collected(client, left, told, len(specs) * (cluster.profile_s + JOB_TIMEOUT_S))


def _collected(
    client: Client, left: Mapping[JobId, str], told: Callable[[str, Profile], None], within_s: float
) -> dict[str, Profile]:
    found: dict[str, Profile] = {}
    for _ in range(int(within_s / LOOK_S)):
        for job in client.ask(WaitJobs(job_ids=tuple(left), timeout_s=LOOK_S)).jobs:
            if job.phase in ENDED and left[job.job_id] not in found:
                profile = _profile_of(client.ask(ShowJob(job_id=job.job_id)))
                found[left[job.job_id]] = profile
                told(left[job.job_id], profile)
        if len(found) == len(left):
            return found
    late = ", ".join(name for name in left.values() if name not in found)
    raise NotMeasured(f"{late}: no end after {within_s:.0f} s")


def _profile_of(shown: Shown) -> Profile:
    job = shown.job
    measured = None if job.profile is None else job.profile.as_profile()
    if measured is None or measured.at(1) is None:
        raise NotMeasured(f"{job.name} was not measured: it is {job.phase}, {job.reason}")
    return measured


def _in_words(job: DemoJob, profile: Profile) -> str:
    whole, half = profile.at(1), profile.at(2)
    assert whole is not None and half is not None
    busy = "" if profile.duty_cycle is None else f", busy {profile.duty_cycle:.0%} of the time"
    workers = f"{job.workers} worker" + ("s" if job.workers > 1 else "")
    return (
        f"{job.script:<15} {workers:<10} {whole.step_s * 1e3:5.0f} ms a step, {whole.memory_mib:.0f} MiB "
        f"(half batch: {half.step_s * 1e3:.0f} ms, {half.memory_mib:.0f} MiB){busy}"
    )
