"""Generated jobs of small hosts: tries and sweeps of the few people who share one or two. SYNTHETIC.

Rule: no number below was recorded anywhere; all are chosen. They were set once so that under fifo at load .8
the median wait of a try is about a day on one host and half a day on two, and then left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Final, NamedTuple

import numpy as np

from cotenant.controller.sim import Cluster, Labels, SimulatedSubmission, Trace

LOAD: Final = 0.8
USERS: Final = 3
DAYS: Final = {1: 10.0, 2: 4.0}
"""That are generated, by hosts."""
TRIES_OF_WORK: Final = 0.15
"""The share of all GPU time that tries ask for; the rest is that of sweeps."""
TRIES: Final = (4, 16)
"""One after the other, as they would come if none waited."""
TRY_S_MEDIAN, TRY_SIGMA, TRY_S_MAX = 150.0, 0.9, 1800.0
PAUSE_S: Final = (60.0, 1800.0)
"""Between tries."""
WIDE_TRIES: Final = 0.1
"""The share of tries on two GPUs; the others take one."""
SWEEP_GPUS: Final = {1: (24, 96), 2: (96, 384)}
"""By hosts: jobs of a sweep times the GPUs of each; they are submitted at once."""
WIDTHS: Final = {1: (1, 1, 2, 4), 2: (1, 1, 2, 4, 8)}
"""By hosts: GPUs of a sweep's jobs, each as likely."""
SWEEP_S_MEDIAN, SWEEP_SIGMA, WITHIN_SIGMA = 9000.0, 0.8, 0.3
"""Lengths differ between sweeps, and less within one."""


class Job(NamedTuple):
    """A generated job."""

    submit_s: float
    duration_s: float
    gpus: int
    submission: SimulatedSubmission | None = None
    """None: it has no command."""


def generated(cluster: Cluster, seed: int) -> Trace:
    """Jobs whose work fills `LOAD` of the cluster for `DAYS`. None has a command."""
    return replace(with_commands(cluster, seed), submissions=())


def with_commands(cluster: Cluster, seed: int) -> Trace:
    """The same jobs: each sweep, and each row of tries, is a script of one user with other values."""
    draw = np.random.default_rng([seed, cluster.hosts])
    horizon_s = DAYS[cluster.hosts] * 86_400.0
    work_gpu_s = LOAD * cluster.gpus * horizon_s
    numbers = count()

    def of_one_script(jobs: list[Job]) -> list[Job]:
        number = next(numbers)
        argv, user = ("python", f"train{number}.py", "--lr"), f"user{number % USERS}"
        return [
            job._replace(submission=SimulatedSubmission((*argv, f"{place}e-5"), user))
            for place, job in enumerate(jobs, 1)
        ]

    jobs = upto(TRIES_OF_WORK * work_gpu_s, lambda: of_one_script(_tries(draw, draw.uniform(0.0, horizon_s))))
    jobs += upto(
        (1.0 - TRIES_OF_WORK) * work_gpu_s,
        lambda: of_one_script(_sweep(draw, draw.uniform(0.0, horizon_s), cluster.hosts)),
    )
    source = f"generated (seed {seed}): tries and sweeps, no recorded jobs"
    return as_trace(f"synthetic-small-hosts-{seed}", source, sorted(jobs))


def as_trace(name: str, source: str, jobs: Sequence[Job]) -> Trace:
    """In order of submission; all of them have a command, or none."""
    jobs, none = sorted(jobs, key=lambda job: job.submit_s), Labels.none(len(jobs))
    return Trace(
        name=name,
        synthetic=True,
        source=source,
        submit_s=np.array([job.submit_s for job in jobs]),
        duration_s=np.array([job.duration_s for job in jobs]),
        gpus=np.array([job.gpus for job in jobs], np.float64),
        submissions=tuple(job.submission for job in jobs if job.submission is not None),
        hp=np.zeros(len(jobs), np.bool_),
        user=none,
        vc=none,
        organisation=none,
        model=none,
        gpu_type=none,
        state=none,
    )


def upto(work_gpu_s: float, more: Callable[[], list[Job]]) -> list[Job]:
    """Jobs until they have so much work; the last that `more` drew may be left out."""
    found = list[Job]()
    while True:
        for job in more():
            if work_gpu_s <= 0.0:
                return found
            found.append(job)
            work_gpu_s -= job.duration_s * job.gpus


def _tries(draw: np.random.Generator, at_s: float) -> list[Job]:
    number = draw.integers(*TRIES, endpoint=True)
    lengths_s = np.minimum(TRY_S_MAX, draw.lognormal(np.log(TRY_S_MEDIAN), TRY_SIGMA, number))
    ends_s = at_s + np.cumsum(lengths_s + draw.uniform(*PAUSE_S, number))
    gpus = 1 + (draw.random(number) < WIDE_TRIES)
    return [*map(Job, [at_s, *ends_s.tolist()], lengths_s.tolist(), gpus.tolist())]


def _sweep(draw: np.random.Generator, at_s: float, hosts: int) -> list[Job]:
    width = int(draw.choice(WIDTHS[hosts]))
    number = int(draw.integers(*SWEEP_GPUS[hosts], endpoint=True)) // width
    middle_s = draw.lognormal(np.log(SWEEP_S_MEDIAN), SWEEP_SIGMA)
    return [
        Job(at_s, each_s, width) for each_s in (middle_s * draw.lognormal(0.0, WITHIN_SIGMA, number)).tolist()
    ]
