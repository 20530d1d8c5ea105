"""The numbers of a run, as the simulator prints them (`sim-compare/1`).

Rule: a number that makes no sense for a run is null, never 0 and never NaN: no finished job has no mean.
Distributions are over finished jobs; percentiles interpolate linearly. Times are seconds.

* `bsld`, bounded slowdown: JCT / max(training time, 10 s), at least 1.
* `offered_load`: work that arrives / work the cluster could do meanwhile.
* `gpu_busy_ratio`: share of the GPU-time from first arrival to last end with at least one tenant.
* `futile_s`: load time that ended in a preemption, over three populations: all jobs, those that waited
  (`futile_s_waited`), those with at least one futile preemption (`futile_s_hit`).
* `hp`, `spot`: the same numbers by class; null, as are the next four, where no job has class hp.
* `eviction_rate`: runs of spot jobs that ended in a preemption / runs of spot jobs that ended;
  `broken_ratio`: likewise, of those that ended so within the time that the policy had promised (an hour,
  where it promises nothing).
* `allocation_ratio`: share of the GPU-time from first to last arrival with at least one tenant.
* `lost_gpu_s`: training that was done again, on all GPUs of its jobs.
* `fairness`: slowdown, rho and Jain's index, as below; null where nothing has finished.
* `sharing_benefit`: (completion time had the job waited) / (completion time that it had), over the finished
  jobs that began an attempt as a co-tenant, once per job, at its first such attempt (Castor eq. 24; what "had
  it waited" supposes stands in `devices.py`). Above 1 sharing was better for the newcomer; what it cost its
  partners is not in it. Null where nobody was a co-tenant. Read the median: a job of seconds that would have
  waited for days has a ratio of thousands, which makes the mean what it likes.
* `prediction_error`: |JCT - told| / told over the finished jobs that were told at their arrival; null where
  none was (`compare.py` fills it in). `unfairness` is null, and stays for those who read this form.

How evenly a policy treats jobs. Rule: a job is compared with what it would have had, never with other jobs:
long ones wait longer everywhere.

* *Slowdown*: JCT / time alone, which is one load and its training on devices of its own, at once.
* *rho*, finish-time fairness (Themis, NSDI '20), with the fair share as Shockwave (NSDI '23) takes it:
  JCT / (time alone x contention), contention being the mean over the job's own stay of max(1, GPUs wanted by
  all jobs that are there / GPUs). Above 1 it ended later than with its share of the cluster by GPUs wanted.
* *Jain's index* (1984) of 1 / slowdown: 1 if all are slowed alike, 1/n if one has everything.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.sim.world.outcome import RunResult

Floats = NDArray[np.float64]


class Fairness(NamedTuple):
    """Columns of shape (n,), NaN for jobs that have not finished."""

    slowdown: Floats
    rho: Floats


def fairness(outcome: RunResult) -> Fairness:
    """The fairness of each job."""
    workload = outcome.workload
    if not len(workload):
        return Fairness(np.empty(0), np.empty(0))
    alone_s = workload.load_s + workload.duration_s
    slowdown = outcome.jct_s / alone_s
    return Fairness(slowdown, slowdown / contention(outcome))


def contention(outcome: RunResult) -> Floats:
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


def jain(values: Floats) -> float | None:
    """(sum of x)^2 / (n x sum of x^2); None of nothing."""
    if not len(values):
        return None
    return float(values.sum() ** 2 / (len(values) * np.square(values).sum()))


def fairness_summary(each: Fairness, among: NDArray[np.bool_]) -> dict[str, Any] | None:
    """The fairness for a result: distributions over some finished jobs, and how many ended later than
    fair."""
    slowdown, rho = each.slowdown[among], each.rho[among]
    slowdown, rho = slowdown[np.isfinite(slowdown)], rho[np.isfinite(rho)]
    if not len(slowdown) or not len(rho):
        return None
    return {
        "slowdown": _spread(slowdown),
        "rho": {**_spread(rho), "above_1_ratio": float((rho > 1.0 + 1e-9).mean())},
        "jain": jain(1.0 / slowdown),
    }


def _spread(values: Floats) -> dict[str, float]:
    return {**(distribution(values) or {}), "max": float(values.max())}


Mask = NDArray[np.bool_]
BOUND_S = 10.0
DISTRIBUTIONS = ("jct_s", "wait_s", "load_s", "run_s", "pause_s", "rework_s")


def counted_mask(jobs: int, trim: float, warm: int = 0) -> Mask:
    """The jobs, in order of arrival, that numbers about jobs are made of: all but the first and the last
    `trim` of them, and but the first `warm`. Those run like the others, and keep an empty cluster at both
    ends out of the numbers."""
    edge = int(jobs * trim)
    mask: Mask = np.ones(jobs, dtype=np.bool_)
    mask[: max(edge, warm)] = mask[jobs - edge :] = False
    return mask


def summarise(outcome: RunResult, trim: float = 0.0, warm: int = 0) -> dict[str, Any]:
    """Summarises a run as a value for JSON. Equal runs give equal values, `decision_ms`, `wall_s`, `cpu_s`
    and `thinking_s` aside. `trim`, `warm`: see `counted_mask`; what is said of the whole run (makespan, load,
    busy devices, `finished`, `shared_jobs`, `sharing_benefit`) counts all jobs."""
    workload, cluster = outcome.workload, outcome.cluster
    everyone, even = counted_mask(len(workload), trim, warm), fairness(outcome)
    available_gpu_s = outcome.makespan_s * cluster.gpus
    return {
        "policy": outcome.policy,
        "parameters": dict(outcome.parameters),
        "seed": outcome.seed,
        "interrupted": outcome.interrupted,
        "jobs": len(workload),
        "finished": int(outcome.finished.sum()),
        "offered_load": _number(workload.offered_load(cluster.gpus)),
        "makespan_s": _number(outcome.makespan_s),
        "counted_jobs": int(everyone.sum()),
        **_times(outcome, everyone),
        "fairness": fairness_summary(even, everyone),
        "futile_s_waited": _futile(outcome, everyone & (outcome.wait_s > 0.0)),
        "futile_s_hit": _futile(outcome, everyone & (outcome.futile_preemptions > 0)),
        "gpu_busy_ratio": outcome.busy_gpu_s / available_gpu_s if available_gpu_s > 0.0 else None,
        "sharing_benefit": sharing_benefit(outcome),
        "shared_jobs": int(outcome.shared.sum()),
        "decision_ms": decision_ms(outcome),
        "events": outcome.events,
        "wall_s": outcome.wall_s,
        "cpu_s": outcome.cpu_s,
        "thinking_s": outcome.thinking_s,
        **dict.fromkeys(("prediction_error", "unfairness")),
        **_class_summaries(outcome, everyone),
        **({"resizes": int(outcome.resizes[everyone].sum())} if workload.speedups else {}),
        **({} if outcome.promises is None else {"promises": outcome.promises}),
    }


def _class_summaries(outcome: RunResult, everyone: Mask) -> dict[str, Any]:
    workload = outcome.workload
    if not workload.hp.any():
        return dict.fromkeys(("hp", "spot", "allocation_ratio", "lost_gpu_s"))
    arriving_gpu_s = outcome.arriving_s * outcome.cluster.gpus
    done = everyone & outcome.finished
    return {
        "hp": _class_summary(outcome, everyone & workload.hp),
        "spot": _class_summary(outcome, everyone & ~workload.hp, evictions=True),
        "allocation_ratio": outcome.arriving_gpu_s / arriving_gpu_s if arriving_gpu_s > 0.0 else None,
        "lost_gpu_s": float(np.dot(outcome.rework_s[done], workload.gpus[done])),
    }


def _class_summary(outcome: RunResult, mask: Mask, *, evictions: bool = False) -> dict[str, Any] | None:
    """Summarises the jobs of one class; None if there are none."""
    if not mask.any():
        return None
    finished = int(outcome.finished[mask].sum())
    block = {"jobs": int(mask.sum()), "finished": finished, **_times(outcome, mask)}
    if evictions:
        ended = block["preemptions"] + finished
        broken = int(outcome.early_preemptions[mask].sum())
        block["eviction_rate"] = block["preemptions"] / ended if ended else None
        block["broken_ratio"] = broken / ended if ended else None
    return block


def _times(outcome: RunResult, mask: Mask) -> dict[str, Any]:
    done = mask & outcome.finished
    return {
        **{name: distribution(getattr(outcome, name)[done]) for name in DISTRIBUTIONS},
        "bsld": distribution(bounded_slowdown(outcome)[done]),
        "preemptions": int(outcome.preemptions[mask].sum()),
        "futile_preemptions": int(outcome.futile_preemptions[mask].sum()),
        "aborted_preemptions": int(outcome.aborted_preemptions[mask].sum()),
        "futile_s": _futile(outcome, mask),
    }


def bounded_slowdown(outcome: RunResult) -> Floats:
    duration_s = np.maximum(outcome.workload.duration_s, BOUND_S)
    slowdown: Floats = np.maximum(outcome.jct_s / duration_s, 1.0)
    return slowdown


def distribution(values: Floats) -> dict[str, float] | None:
    """The mean and the percentiles of `values`; None where there are none."""
    if not len(values):
        return None
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return {"mean": float(values.mean()), "p50": float(p50), "p95": float(p95), "p99": float(p99)}


def sharing_benefit(outcome: RunResult) -> dict[str, float] | None:
    """Mean and median over such jobs that have finished, with their number."""
    known = outcome.sharing_benefit[np.isfinite(outcome.sharing_benefit)]
    if not len(known):
        return None
    return {"mean": float(known.mean()), "p50": float(np.median(known)), "jobs": len(known)}


def _futile(outcome: RunResult, mask: Mask) -> dict[str, float] | None:
    among = mask & outcome.finished
    futile_s = outcome.futile_s[among]
    if not len(futile_s):
        return None
    p50, p95 = np.percentile(futile_s, (50, 95))
    total_gpu_s = float(np.dot(futile_s, outcome.workload.gpus[among]))
    return {"mean": float(futile_s.mean()), "p50": float(p50), "p95": float(p95), "total_gpu_s": total_gpu_s}


def decision_ms(outcome: RunResult) -> dict[str, float] | None:
    """What an event cost the engine, policy included."""
    if not len(outcome.decision_ns):
        return None
    p50, p99 = np.percentile(outcome.decision_ns, (50, 99))
    return {"mean": float(outcome.decision_ns.mean()) / 1e6, "p50": float(p50) / 1e6, "p99": float(p99) / 1e6}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
