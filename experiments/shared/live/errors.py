"""A real run beside another real run and beside the simulator: errors of each job's completion time. Pure.

Rule: the simulator is told arrivals and times (one load, one pause and the training time of each job, as one
real run measured them) and nothing of what was decided; it decides anew with the same policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Final, NamedTuple

import msgspec
import numpy as np

from cotenant.controller.sim import Cluster, Physics, RunResult, Workload, simulate
from experiments.shared.live.run import DEVICES, JobRow, LiveRun

PARTS: Final = ("wait_s", "load_s", "run_s", "pause_s")


class Told(NamedTuple):
    """One job as one run, or the simulator, tells it. Seconds."""

    job_id: str
    name: str
    gpus: int
    arrived_s: float
    jct_s: float
    wait_s: float
    load_s: float
    run_s: float
    pause_s: float
    futile_s: float
    preemptions: int
    futile_preemptions: int


class Errors(msgspec.Struct, frozen=True, kw_only=True):
    """|other - one| / one of each job's completion time."""

    what: str
    jobs: int
    median: float
    p90: float
    mean_jct_s: tuple[float, float]
    mean_difference_s: dict[str, float]
    """Mean |other - one| of each part of the completion time."""


def told_live(rows: Sequence[JobRow]) -> list[Told]:
    """Each job of a real run."""
    first_s = rows[0].arrived_s
    return [
        Told(
            job_id=row.job_id,
            name=row.name,
            gpus=row.gpus,
            arrived_s=row.arrived_s - first_s,
            jct_s=row.jct_s,
            wait_s=row.wait_s,
            load_s=row.load_s,
            run_s=row.run_s,
            pause_s=row.pause_s,
            futile_s=row.futile_s,
            preemptions=row.preemptions,
            futile_preemptions=row.futile_preemptions,
        )
        for row in rows
    ]


def told_simulated(run: LiveRun, *, foreseen: bool = False) -> list[Told]:
    """The same arrivals in the simulator, under the run's policy and parameters.

    Args:
        foreseen: with nothing but what was known before the first job arrived; else with the run's times.
    """
    # What no job's own times say: a load's end by force, and how long a fit takes, as this run measured them.
    physics = Physics(
        pairs="none",
        kill_s=median(run.kill_s) if run.kill_s else 0.0,
        charge_s=median(run.fit_s) if run.fit_s else 1.0,
    )
    cluster = Cluster(hosts=1, gpus_per_host=DEVICES, max_tenants=1)
    outcome = simulate(workload(run, foreseen), cluster, run.policy, run.parameters, physics=physics)
    assert bool(np.all(outcome.finished)), "a simulated job did not finish"
    return [simulated_job(outcome, i, row) for i, row in enumerate(run.rows)]


def workload(run: LiveRun, foreseen: bool) -> Workload:
    """What arrived in a real run, and the times it measured, or those its warm-up let expect."""
    jobs = run.rows
    count, first_s = len(jobs), jobs[0].arrived_s
    none = np.full(count, -1, np.int16)
    return Workload(
        name="a real run",
        synthetic=False,
        submit_s=np.array([job.arrived_s - first_s for job in jobs]),
        duration_s=np.array([job.expected_s if foreseen else job.run_s for job in jobs]),
        expected_s=np.array([job.expected_s for job in jobs]),
        gpus=np.array([job.gpus for job in jobs], np.int32),
        load_s=np.array([job.foreseen.load_s if foreseen else job.one_load_s for job in jobs]),
        pause_s=np.array([job.foreseen.pause_s if foreseen else job.one_pause_s for job in jobs]),
        model=none,
        models=(),
        hp=np.zeros(count, np.bool_),
        organisation=none,
        organisations=(),
        job_ids=tuple(job.name for job in jobs),
        excluded={},
    )


def simulated_job(outcome: RunResult, i: int, row: JobRow) -> Told:
    return Told(
        job_id=row.job_id,
        name=row.name,
        gpus=int(outcome.workload.gpus[i]),
        arrived_s=float(outcome.workload.submit_s[i]),
        jct_s=float(outcome.jct_s[i]),
        wait_s=float(outcome.wait_s[i]),
        load_s=float(outcome.load_s[i]),
        run_s=float(outcome.run_s[i]),
        pause_s=float(outcome.pause_s[i]),
        futile_s=float(outcome.futile_s[i]),
        preemptions=int(outcome.preemptions[i]),
        futile_preemptions=int(outcome.futile_preemptions[i]),
    )


def compare(what: str, one: Sequence[Told], other: Sequence[Told]) -> Errors:
    """`one` is the yardstick."""
    assert [job.name for job in one] == [job.name for job in other], "not the same jobs"
    errors = [error(a, b) for a, b in zip(one, other, strict=True)]
    return Errors(
        what=what,
        jobs=len(one),
        median=float(np.median(errors)),
        p90=float(np.percentile(errors, 90)),
        mean_jct_s=(fmean(a.jct_s for a in one), fmean(b.jct_s for b in other)),
        mean_difference_s={
            part: fmean(abs(getattr(b, part) - getattr(a, part)) for a, b in zip(one, other, strict=True))
            for part in PARTS
        },
    )


def error(one: Told, other: Told) -> float:
    return abs(other.jct_s - one.jct_s) / one.jct_s
