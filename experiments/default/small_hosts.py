"""Generated jobs of small hosts: tries and sweeps of the few people who share one or two. SYNTHETIC.

Rule: no number below was recorded anywhere; all are chosen. They were set once so that under fifo at load .8
the median wait of a try is about a day on one host and half a day on two, and then left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from cotenant.controller.sim import Cluster, Labels, Trace

LOAD: Final = 0.8
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

Job = tuple[float, float, int]
"""Submitted and length in seconds, GPUs."""


def generated(cluster: Cluster, seed: int) -> Trace:
    """Jobs whose work fills `LOAD` of the cluster for `DAYS`."""
    draw = np.random.default_rng([seed, cluster.hosts])
    horizon_s = DAYS[cluster.hosts] * 86_400.0
    work_gpu_s = LOAD * cluster.gpus * horizon_s
    jobs = _upto(TRIES_OF_WORK * work_gpu_s, lambda: _tries(draw, draw.uniform(0.0, horizon_s)))
    sweeps_gpu_s = (1.0 - TRIES_OF_WORK) * work_gpu_s
    jobs += _upto(sweeps_gpu_s, lambda: _sweep(draw, draw.uniform(0.0, horizon_s), cluster.hosts))
    submit_s, duration_s, gpus = np.array(sorted(jobs)).T
    none = Labels.none(len(jobs))
    return Trace(
        name=f"synthetic-small-hosts-{seed}",
        synthetic=True,
        source=f"generated (seed {seed}): tries and sweeps, no recorded jobs",
        submit_s=submit_s,
        duration_s=duration_s,
        gpus=gpus,
        hp=np.zeros(len(jobs), np.bool_),
        user=none,
        vc=none,
        organisation=none,
        model=none,
        gpu_type=none,
        state=none,
    )


def _upto(work_gpu_s: float, more: Callable[[], list[Job]]) -> list[Job]:
    """Jobs until they have so much work; the last that `more` drew may be left out."""
    found = list[Job]()
    while True:
        for job in more():
            if work_gpu_s <= 0.0:
                return found
            found.append(job)
            work_gpu_s -= job[1] * job[2]


def _tries(draw: np.random.Generator, at_s: float) -> list[Job]:
    count = draw.integers(*TRIES, endpoint=True)
    lengths_s = np.minimum(TRY_S_MAX, draw.lognormal(np.log(TRY_S_MEDIAN), TRY_SIGMA, count))
    ends_s = at_s + np.cumsum(lengths_s + draw.uniform(*PAUSE_S, count))
    gpus = 1 + (draw.random(count) < WIDE_TRIES)
    return list(zip([at_s, *ends_s.tolist()], lengths_s.tolist(), gpus.tolist(), strict=False))


def _sweep(draw: np.random.Generator, at_s: float, hosts: int) -> list[Job]:
    width = int(draw.choice(WIDTHS[hosts]))
    count = int(draw.integers(*SWEEP_GPUS[hosts], endpoint=True)) // width
    middle_s = draw.lognormal(np.log(SWEEP_S_MEDIAN), SWEEP_SIGMA)
    return [
        (at_s, each_s, width) for each_s in (middle_s * draw.lognormal(0.0, WITHIN_SIGMA, count)).tolist()
    ]
