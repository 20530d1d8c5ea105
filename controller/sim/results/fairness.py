"""How evenly a policy treats jobs: slowdown, finish-time fairness, Jain's index.

Rule: a job is compared with what it would have had, never with other jobs: long ones wait longer everywhere.

* *Slowdown*: JCT / time alone, which is one load and its training on devices of its own, at once.
* *rho*, finish-time fairness (Themis, NSDI '20), with the fair share as Shockwave (NSDI '23) takes it:
  JCT / (time alone x contention), contention being the mean over the job's own stay of max(1, GPUs wanted by
  all jobs that are there / GPUs). Above 1 it ended later than with its share of the cluster by GPUs wanted.
* *Jain's index* (1984) of 1 / slowdown: 1 if all are slowed alike, 1/n if one has everything.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.sim.world.outcome import Outcome

Numbers = NDArray[np.float64]


class Fairness(NamedTuple):
    """Columns of shape (n,), NaN for jobs that have not finished."""

    slowdown: Numbers
    rho: Numbers


def fairness(outcome: Outcome) -> Fairness:
    """Of each job."""
    workload = outcome.workload
    if not len(workload):
        return Fairness(np.empty(0), np.empty(0))
    alone_s = workload.load_s + workload.duration_s
    slowdown = outcome.jct_s / alone_s
    return Fairness(slowdown, slowdown / contention(outcome))


def contention(outcome: Outcome) -> Numbers:
    """Mean of max(1, GPUs wanted / GPUs) from each job's arrival to its end. Jobs that have not finished
    count as wanting GPUs to the end, and have no mean of their own."""
    workload = outcome.workload
    begin_s, gpus = workload.submit_s, workload.gpus.astype(np.float64)
    end_s = begin_s + outcome.jct_s
    known = np.isfinite(end_s)
    moments_s = np.concatenate((begin_s, end_s[known]))
    order = np.argsort(moments_s, kind="stable")
    times_s = moments_s[order]
    wanted = np.cumsum(np.concatenate((gpus, -gpus[known]))[order])
    level = np.maximum(1.0, wanted / outcome.cluster.gpus)
    area = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(times_s))))  # Up to each moment.
    spent_s = end_s - begin_s
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = (np.interp(end_s, times_s, area) - np.interp(begin_s, times_s, area)) / spent_s
    return np.where(known & (spent_s > 0.0), np.maximum(mean, 1.0), np.nan)


def jain(values: Numbers) -> float | None:
    """(sum of x)^2 / (n x sum of x^2); None of nothing."""
    if not len(values):
        return None
    return float(values.sum() ** 2 / (len(values) * np.square(values).sum()))


def told(each: Fairness, among: NDArray[np.bool_]) -> dict[str, Any] | None:
    """For a result: distributions over some finished jobs, and how many ended later than fair."""
    slowdown, rho = each.slowdown[among], each.rho[among]
    slowdown, rho = slowdown[np.isfinite(slowdown)], rho[np.isfinite(rho)]
    if not len(slowdown) or not len(rho):
        return None
    return {
        "slowdown": _spread(slowdown),
        "rho": {**_spread(rho), "above_1_ratio": float((rho > 1.0 + 1e-9).mean())},
        "jain": jain(1.0 / slowdown),
    }


def _spread(values: Numbers) -> dict[str, float]:
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return {
        "mean": float(values.mean()),
        "p50": float(p50),
        "p95": float(p95),
        "p99": float(p99),
        "max": float(values.max()),
    }
