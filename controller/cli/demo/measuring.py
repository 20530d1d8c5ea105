"""Measure each of the demo's jobs once, alone, before anything is scheduled.

Rule: one-worker jobs are measured side by side, each on a core of its own; nothing is assumed.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from cotenant.controller.cli.demo.plan import DemoJob, MeasuredJob
from cotenant.profiler.ranks import RankCommand, Seat
from cotenant.profiler.run import ProfileFailed, RunPlan, RunProgress
from cotenant.profiler.solo import measure_solo

MANY_STEPS = 1_000_000
PLAN = RunPlan(accumulation_steps=(2, 1), warm_up_steps=2, steps_min=4, measured_s_min=0.8, deadline_s=60.0)


def job_environment() -> dict[str, str]:
    """What a job of the demo sees of this shell's environment."""
    names = ("PATH", "HOME", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR")
    return {name: os.environ[name] for name in names if name in os.environ}


def measure_jobs(
    jobs: Sequence[DemoJob], slots: Sequence[tuple[int, ...]], say: Callable[[str], None]
) -> dict[str, MeasuredJob]:
    """The measured form of every job, by name.

    Args:
        slots: the cores of each CPU slot, at least as many as the widest job has workers.

    Raises:
        ProfileFailed: a job could not be run; the text says why.
    """
    first = {job.measure_key: job for job in reversed(jobs)}
    single = [job for job in first.values() if job.workers == 1]
    gangs = [job for job in first.values() if job.workers > 1]
    profiles = {}
    with ThreadPoolExecutor(max_workers=len(slots)) as pool, _abandoned_together() as go_on:
        for start in range(0, len(single), len(slots)):
            batch = single[start : start + len(slots)]
            running = [
                (job, pool.submit(_measure, job, [slot], go_on))
                for job, slot in zip(batch, slots, strict=False)
            ]
            for job, future in running:
                profiles[job.measure_key] = future.result()
                say(_in_words(job, profiles[job.measure_key]))
    for job in gangs:
        profiles[job.measure_key] = _measure(job, slots[: job.workers])
        say(_in_words(job, profiles[job.measure_key]))
    return {job.name: MeasuredJob(job=job, profile=profiles[job.measure_key].profile) for job in jobs}


@contextmanager
def _abandoned_together() -> Iterator[Callable[[RunProgress], None]]:
    """Ctrl-C reaches the main thread alone, which then would wait for what the others measure."""
    over = threading.Event()

    def go_on(progress: RunProgress) -> None:
        if over.is_set():
            raise ProfileFailed("nobody waits for it any more")

    try:
        yield go_on
    except BaseException:
        over.set()
        raise


def _measure(
    job: DemoJob, slots: Sequence[tuple[int, ...]], progress: Callable[[RunProgress], None] = lambda _: None
) -> MeasuredJob:
    command = RankCommand(
        argv=job.argv(sys.executable, MANY_STEPS, None), workdir=os.getcwd(), env=job_environment()
    )
    run = measure_solo(command, [Seat(cores=cores) for cores in slots], plan=PLAN, progress=progress)
    return MeasuredJob(job=job, profile=run.profile(job.batch_size))


def _in_words(job: DemoJob, measured: MeasuredJob) -> str:
    whole, half = measured.profile.at(1), measured.profile.at(2)
    assert whole is not None
    duty = measured.profile.duty_cycle
    busy = "" if duty is None else f", busy {duty:.0%} of the time"
    smaller = "" if half is None else f" (half batch: {half.step_s * 1e3:.0f} ms, {half.memory_mib:.0f} MiB)"
    workers = f"{job.workers} worker" + ("s" if job.workers > 1 else "")
    return (
        f"{job.script:<15} {workers:<10} {whole.step_s * 1e3:5.0f} ms a step, "
        f"{whole.memory_mib:.0f} MiB{smaller}{busy}"
    )
