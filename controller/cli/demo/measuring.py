"""Measure the demo's jobs through the product: each is queued once to be profiled (`profiling="only"`), in a
private cluster of its own.

Rule: as `cotenant profile` has it: every job is alone on the devices that the agent gave it, and leaves when
its profile is complete; nothing is assumed, and a job without a profile is an error that says why.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.cli.demo.cluster import PrivateCluster
from cotenant.controller.cli.demo.plan import WARM_UP, WARM_UP_STEPS, DemoJob, MeasuredJob
from cotenant.controller.client.connection import Client
from cotenant.controller.client.profile_series import measured_only
from cotenant.controller.domain import JobId, JobSpec, Launch
from cotenant.controller.performance import Profile
from cotenant.controller.present.units import plural
from cotenant.controller.wire import clients as wire

MANY_STEPS: Final = 1_000_000
PROFILE_S: Final = (12.0, 24.0, 48.0)
"""T_prof of the demo's jobs: long enough for the slowest at s = 1 and 2; where other load on the cores kept
a job from being measured, twice more."""
WANTED: Final = (1, 2)
JOB_TIMEOUT_S: Final = 120.0
"""One job's load and start, on top of T_prof."""
LOOK_S: Final = 0.5
WARM_WITHIN_S: Final = 30.0
"""How long to wait for a fork server; without one the first jobs start cold."""
APART_MIB: Final = 50.0
LARGE_BLOCKS_APART: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(4 * 1024 * 1024),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""glibc gives large tensors back when they are freed, so that less memory at a larger s shows at once; in
huge pages, where the kernel offers them, for in small ones this would take most of the time."""
SLOW_DISK: Final = {"DEMO_LINK_KIB_PER_S": "48"}
"""Jobs that read from the slow disk leave their device idle more than half of the time."""


class NotMeasured(Exception):
    """A job could not be measured; the text says which and why."""


def job_environment() -> dict[str, str]:
    """What a job of the demo sees of this shell's environment."""
    names = ("PATH", "HOME", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR", "DEMO_DIGITS")
    return {name: os.environ[name] for name in names if name in os.environ} | LARGE_BLOCKS_APART | SLOW_DISK


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
    first: dict[tuple[str, int, int], DemoJob] = {}
    for job in jobs:  # Those that train side by side in the acts are measured side by side.
        first.setdefault(job.measure_key, job)
    left = {job.name: job for job in sorted(first.values(), key=lambda job: job.workers)}
    found: dict[str, Profile] = {}

    def told(name: str, profile: Profile) -> None:
        if _is_clear(left[name], profile, is_last=profile_s == PROFILE_S[-1]):
            found[name] = profile
            say(_describe_profile(left[name], profile))

    for number, profile_s in enumerate(PROFILE_S):
        specs = [job_spec(job) for name, job in left.items() if name not in found]
        if specs:
            with PrivateCluster(folder / str(number), f"cpu:{devices}", profile_s=profile_s) as cluster:
                cluster.check_devices(devices)
                with Client(cluster.endpoint) as client:
                    warm_up(client, devices)
                measure_profiles(cluster, specs, told)
    slow = ", ".join(name for name in left if name not in found)
    if slow:
        raise NotMeasured(
            f"{slow}: not seen with its whole batch, not even in {PROFILE_S[-1]:.0f} s. "
            "Others want the cores: try again when the machine is less busy"
        )
    return {job.name: MeasuredJob(job=job, profile=found[first[job.measure_key].name]) for job in jobs}


def warm_up(client: Client, devices: int) -> None:
    """Run a short gang on so many devices, so that the agent keeps a fork server with what the jobs import:
    later jobs start warm, and none is measured while a server's imports take its core."""
    gang = msgspec.structs.replace(WARM_UP, workers=devices)
    spec = msgspec.structs.replace(job_spec(gang, WARM_UP_STEPS), profiling="never")
    job_id = client.ask(wire.Submit(specs=(spec,))).job_ids[0]
    client.ask(wire.WaitJobs(job_ids=(job_id,), timeout_s=JOB_TIMEOUT_S))
    for _ in range(int(WARM_WITHIN_S / LOOK_S)):
        kept = [node.fork_servers for node in client.ask(wire.ListNodes()).nodes]
        if all(each is not None and each.count for each in kept):
            return
        time.sleep(LOOK_S)


def _is_clear(job: DemoJob, profile: Profile, *, is_last: bool) -> bool:
    """Whether all was measured: both splits of the batch, and how much less memory half a batch takes of the
    memory-heavy job. Memory that the process kept from before may hide the latter. At last the whole batch
    is enough: the demo then shows less."""
    whole, half = (profile.point_at(s) for s in WANTED)
    if whole is None or half is None:
        return is_last and whole is not None
    return is_last or job.script != "memory_heavy" or whole.memory_mib - half.memory_mib > APART_MIB


def measure_profiles(
    cluster: PrivateCluster,
    specs: Sequence[JobSpec],
    told: Callable[[str, Profile], None] = lambda name, profile: None,
) -> dict[str, Profile]:
    """Measures what each job needs, by name; several at a time where there are devices for it.

    Args:
        told: called with each, in order.

    Raises:
        NotMeasured: one has no step time at its whole batch.
    """
    within_s = len(specs) * (cluster.profile_s + JOB_TIMEOUT_S)
    found: dict[str, Profile] = {}
    with Client(cluster.endpoint) as client:
        asked = [client.ask(wire.Submit(specs=(measured_only(spec, cluster.profile_s),))) for spec in specs]
        for reply, spec in zip(asked, specs, strict=True):
            client.ask(wire.WaitJobs(job_ids=reply.job_ids, timeout_s=within_s))
            found[spec.name] = _profile_of(client.ask(wire.ShowJob(job_id=reply.job_ids[0])))
            told(spec.name, found[spec.name])
    return found


def _profile_of(shown: wire.Shown) -> Profile:
    job = shown.job
    measured = None if job.profile is None else job.profile.as_profile()
    if measured is None or measured.point_at(1) is None:
        raise NotMeasured(f"{job.name} was not measured: it is {job.phase}, {job.reason}")
    return measured


def _describe_profile(job: DemoJob, profile: Profile) -> str:
    whole, half = (profile.point_at(s) for s in WANTED)
    assert whole is not None
    halved = "not measured" if half is None else f"{half.step_s * 1e3:.0f} ms, {half.memory_mib:.0f} MiB"
    busy = "" if profile.duty_cycle is None else f", busy {profile.duty_cycle:.0%} of the time"
    return (
        f"{job.script:<15} {plural(job.workers, 'worker'):<10} {whole.step_s * 1e3:5.0f} ms a step, "
        f"{whole.memory_mib:.0f} MiB (half batch: {halved}){busy}"
    )


def schedule_of(attempts: Sequence[wire.AttemptView]) -> str:
    """Which s applied from which step on, over all attempts: `0:1,57:2`."""
    steps: dict[int, int] = {}
    for attempt in attempts:
        steps = {start: s for start, s in steps.items() if start < attempt.start_step}
        steps[attempt.start_step] = attempt.accumulation_steps
    return ",".join(f"{start}:{s}" for start, s in sorted(steps.items()))
