"""From a trace to a workload: the window, the load, and what traces lack, drawn from a seed.

Rule: each thing that is drawn has its own stream, and draws for every row of the window in order. So an
option changes only what it names: another noise leaves the models as they are, another cluster the estimates,
and a longer window only adds jobs at its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.sim.traces.trace import Labels, Trace, TraceProblem
from cotenant.controller.sim.world.knowledge import COMPLETE, Knowledge
from cotenant.controller.sim.world.overheads import Overheads
from cotenant.controller.sim.world.workload import Cluster, Workload


class Stream(IntEnum):
    """The random streams, named by what is drawn. The numbers are part of every result: never reuse or
    renumber one."""

    ESTIMATE = 1
    OVERHEAD_CLASS = 2
    MODEL = 3
    HP = 4
    LIMIT = 6  # 5 is that of samples (`experiments/castor/periods.py`).
    TELLS = 8  # 7 is `world/jobs.py`'s.
    RESUMES = 9


LIMITS_S = np.array(
    [60.0 * m for m in (5, 10, 15, 30, 60, 120, 240, 480, 720)]
    + [86_400.0 * d for d in (1, 2, 3, 4, 7, 10, 14, 21, 30, 60, 90)]
)
"""Time limits as people write them."""
ACCURACY_MIN = 0.05
"""No limit is more than twenty times what the job takes, before it is rounded up."""


def stream(seed: int, purpose: Stream) -> np.random.Generator:
    """A generator of its own for each purpose."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(purpose),)))


def prepare(
    trace: Trace,
    *,
    cluster: Cluster,
    seed: int,
    vc: str | None = None,
    from_s: float | None = None,
    jobs: int | None = None,
    load_scale: float = 1.0,
    noise: float = 0.0,
    limits: bool = False,
    overheads: Overheads | None = None,
    hp_share: float | None = None,
    models: Sequence[str] = (),
    knowledge: Knowledge = COMPLETE,
) -> Workload:
    """The workload that a seed makes of a part of a trace.

    Args:
        vc: only this VC; needed where each VC has its own clock.
        from_s: only jobs submitted at or after it, on the trace's clock.
        jobs: only the first so many of those. Jobs wider than the cluster are among them and are then left
            out and counted, so that a window is the same whatever the cluster.
        load_scale: times between arrivals are divided by it.
        noise: sigma of the estimates' error: expected = true x lognormal(0, sigma), so half are too low.
        limits: expected is what a time limit would be: never too low, true / accuracy with the accuracy drawn
            evenly, rounded up to what people write.
        overheads: default: the modelled table. A job whose model is not in the table takes the times of one
            of the table's models, drawn.
        hp_share: this share of jobs, drawn, is hp; None = what the trace says.
        models: each job gets one of these, drawn (for a table of pairs that knows these names); default: the
            trace's own, and where it has none, the overheads' model classes.
        knowledge: what policies know beforehand; `noise` and `limits` count only where it is lengths.

    A job of less than one GPU asks for that part of one; more than one and a part count as one more.

    Raises:
        TraceProblem: an option is out of range, or no job is left.
    """
    _check(load_scale, noise, hp_share, jobs, from_s)
    window = _window(trace.single_clock_trace(vc), from_s, jobs)
    drawn = _draw(window, seed, noise, limits, overheads or Overheads(), hp_share, tuple(models))
    workload = _fitting(window, drawn, cluster, load_scale)
    return add_knowledge(workload, knowledge, seed, np.ceil(window.gpus) <= cluster.gpus)


def add_knowledge(workload: Workload, knowledge: Knowledge, seed: int, rows: NDArray[np.bool_]) -> Workload:
    """Returns the workload with what policies know of it. `rows`: whether each row became a job of the
    workload; all rows draw."""
    if knowledge == COMPLETE:
        return workload

    tells, resumes = (
        () if share == 1.0 else tuple((stream(seed, purpose).random(len(rows)) < share)[rows].tolist())
        for purpose, share in ((Stream.TELLS, knowledge.tells), (Stream.RESUMES, knowledge.resumable))
    )
    expected_s = workload.expected_s if knowledge.known == "exact" else np.full(len(workload), np.nan)
    return replace(workload, knowledge=knowledge, expected_s=expected_s, tells=tells, resumes=resumes)


class _Drawn(NamedTuple):
    """What no trace has, of every row of a window: shape (n,) each."""

    expected_s: NDArray[np.float64]
    model: Labels
    load_s: NDArray[np.float64]
    pause_s: NDArray[np.float64]
    hp: NDArray[np.bool_]


def _draw(
    window: Trace,
    seed: int,
    noise: float,
    limits: bool,
    times: Overheads,
    hp_share: float | None,
    models: tuple[str, ...],
) -> _Drawn:
    n = len(window)
    classes = _evenly(len(times.models), n, stream(seed, Stream.OVERHEAD_CLASS))
    model = _models(window, times, classes, models, seed)
    load_s, pause_s = _times(model, times, classes)
    error = np.exp(noise * stream(seed, Stream.ESTIMATE).standard_normal(n))
    expected_s = _time_limits(window.duration_s, seed) if limits else window.duration_s * error
    hp = window.hp if hp_share is None else stream(seed, Stream.HP).random(n) < hp_share
    return _Drawn(expected_s, model, load_s, pause_s, hp)


def _fitting(window: Trace, drawn: _Drawn, cluster: Cluster, load_scale: float) -> Workload:
    """The rows that are no wider than the cluster. Raises TraceProblem: there are none."""
    gpus = np.ceil(window.gpus)
    fits = gpus <= cluster.gpus
    excluded = dict(window.excluded)
    if wide := int(np.count_nonzero(~fits)):
        excluded[f"wider than {cluster.gpus} GPUs"] = wide
    if not np.any(fits):
        raise TraceProblem(
            f"{window.name}: none of the {len(window):,} chosen jobs fits on {cluster.gpus} GPUs",
            hint=f"the narrowest asks for {int(gpus.min())}: use a larger cluster or another window",
        )
    submit_s = window.submit_s[fits]
    organisation = (window.organisation if window.organisation.known else window.vc).take(fits).used()
    if len(organisation.names) > np.iinfo(np.int16).max:
        raise TraceProblem(f"{window.name}: {len(organisation.names):,} organisations are too many")
    rows = np.flatnonzero(fits).tolist()
    return Workload(
        name=window.name,
        synthetic=window.synthetic,
        submit_s=(submit_s - submit_s[0]) / load_scale,
        duration_s=window.duration_s[fits],
        expected_s=drawn.expected_s[fits],
        gpus=gpus[fits].astype(np.int32),
        load_s=drawn.load_s[fits],
        pause_s=drawn.pause_s[fits],
        model=drawn.model.codes[fits].astype(np.int16),
        models=drawn.model.names,
        fractions=_fractions(window.gpus[fits]),
        hp=drawn.hp[fits],
        organisation=organisation.codes.astype(np.int16),
        organisations=organisation.names,
        job_ids=tuple(window.job_ids[row] for row in rows) if window.job_ids else (),
        submissions=tuple(window.submissions[row] for row in rows) if window.submissions else (),
        excluded=excluded,
    )


def _fractions(gpus: NDArray[np.float64]) -> tuple[float, ...]:
    """Parts of one GPU, to a thousandth and none below a hundredth; empty if nobody asks for one."""
    parts = np.where(gpus < 1.0, np.maximum(0.01, np.round(gpus, 3)), 1.0)
    return tuple(parts.tolist()) if np.any(parts < 1.0) else ()


def _time_limits(duration_s: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """The time limits of jobs, shape (n,). Beyond the longest that people write, the duration is the
    limit."""
    accuracy = stream(seed, Stream.LIMIT).uniform(ACCURACY_MIN, 1.0, len(duration_s))
    asked_s = duration_s / accuracy
    rounded_s = LIMITS_S[np.minimum(np.searchsorted(LIMITS_S, asked_s), len(LIMITS_S) - 1)]
    limits: NDArray[np.float64] = np.maximum(rounded_s, duration_s)
    return limits


def _check(
    load_scale: float, noise: float, hp_share: float | None, jobs: int | None, from_s: float | None
) -> None:
    if not (math.isfinite(load_scale) and load_scale > 0.0):
        raise TraceProblem(f"a load scale of {load_scale} makes no sense", hint="it must be above 0")
    if not (math.isfinite(noise) and 0.0 <= noise <= 10.0):
        raise TraceProblem(
            f"a noise of {noise} makes no sense", hint="it is the sigma of a lognormal, 0 to 10"
        )
    if hp_share is not None and not 0.0 <= hp_share <= 1.0:
        raise TraceProblem(
            f"a share of hp jobs of {hp_share} makes no sense", hint="it must be within 0 to 1"
        )
    if jobs is not None and jobs < 1:
        raise TraceProblem(f"{jobs} jobs are too few", hint="ask for at least 1")
    if from_s is not None and not math.isfinite(from_s):
        raise TraceProblem(f"a start of {from_s} s makes no sense")


def _window(trace: Trace, from_s: float | None, jobs: int | None) -> Trace:
    first = 0 if from_s is None else int(np.searchsorted(trace.submit_s, from_s, side="left"))
    last = len(trace) if jobs is None else min(first + jobs, len(trace))
    if first >= len(trace):
        raise TraceProblem(
            f"{trace.name}: no job was submitted at or after {from_s:g} s",
            hint=f"its submissions go from {trace.submit_s[0]:.0f} to {trace.submit_s[-1]:.0f} s",
        )
    return trace if (first, last) == (0, len(trace)) else trace.take(np.arange(first, last))


def _evenly(choices: int, n: int, generator: np.random.Generator) -> NDArray[np.int32]:
    """Shape (n,), each of range(choices) as likely; the first draws do not depend on n."""
    return (generator.random(n) * choices).astype(np.int32)


def _models(
    window: Trace, times: Overheads, classes: NDArray[np.int32], given: tuple[str, ...], seed: int
) -> Labels:
    if given:
        return Labels(codes=_evenly(len(given), len(window), stream(seed, Stream.MODEL)), names=given)
    own = window.model.used()
    absent = own.codes < 0
    if not np.any(absent):
        return own
    names = tuple(dict.fromkeys((*own.names, *times.models)))
    place = np.array([names.index(name) for name in times.models], np.int32)
    return replace(own, codes=np.where(absent, place[classes], own.codes), names=names)


def _times(
    model: Labels, times: Overheads, classes: NDArray[np.int32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Load and pause times in seconds, shape (n,)."""
    known = np.array([times.models.index(name) if name in times.table else -1 for name in model.names] + [-1])
    own = known[model.codes]
    row = np.where(own >= 0, own, classes)
    load_s = np.array([times.load_s(name) for name in times.models])
    pause_s = np.array([times.pause_s(name) for name in times.models])
    return load_s[row], pause_s[row]
