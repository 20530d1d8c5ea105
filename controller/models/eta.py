"""Pools of past lengths, arrivals and errors, and intervals corrected by them.

Rule: the pools are values, bounded, oldest out first. They hold observations, draw nothing, and forget only
by age, so that a fold over the same events gives the same pools.

Rule: each level of an interval is shifted by its own quantile of its own last errors, log(actual / raw), of
the same policy and the same kind (conformal): errors of intervals told at submission correct intervals told
at submission, those of revisits correct revisits. Below `ENOUGH` outcomes nothing is shifted, and the answer
says so. Only intervals that were told as calibrated are scored; the score also says how many were not.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import median
from typing import Any, Final

import msgspec

from cotenant.controller.domain import LEVELS, EtaInterval, EtaKind, JobSpec, ToldInterval

LENGTHS_KEPT: Final = 1_000
ARRIVALS_KEPT: Final = 400
ERRORS_KEPT: Final = 300
"""Errors kept per policy and kind; older ones say what the policy was like then."""
POLICIES_KEPT: Final = 20


class KnownLength(msgspec.Struct, frozen=True, array_like=True):
    """A finished job with the length that some source expected, and the length that the job had, alone."""

    source: str
    told_s: float
    true_s: float


class ArrivalSeen(msgspec.Struct, frozen=True, kw_only=True):
    """An arrival, without what only the launch needs."""

    gap_s: float
    """Since the arrival before it."""
    spec: JobSpec
    told_s: float | None
    """Its expected length then; None: no estimate was about this job."""
    source: str


class EtaError(msgspec.Struct, frozen=True, kw_only=True):
    """How wrong an interval was: log(actual / as the roll-outs gave it), at each level; NaN where that was
    infinite. Times count from one second on, so that nothing is divided by a start at once."""

    finish: tuple[float, float, float]
    start: tuple[float, float, float] | None = None
    """None: the job had already started."""
    was_calibrated: bool
    """This and all below is about the interval as it was told."""
    hit: bool
    bias: float
    """log(actual / told p50)."""
    width_s: float
    actual_s: float


class Pools(msgspec.Struct, kw_only=True):
    """Everything that is kept; the newest stands last."""

    lengths: list[KnownLength] = []
    run_times: list[float] = []
    """Run times of all finished jobs, in seconds alone."""
    arrivals: list[ArrivalSeen] = []
    last_arrival_s: float | None = None
    errors: dict[str, dict[EtaKind, list[EtaError]]] = {}
    """By policy, with its parameters: another policy's errors say nothing of this one's."""

    def errors_of(self, policy: str, kind: EtaKind) -> list[EtaError]:
        return self.errors.get(policy, {}).get(kind, [])

    def add_error(self, policy: str, kind: EtaKind, error: EtaError) -> None:
        of_policy = self.errors.pop(policy, {})
        self.errors[policy] = of_policy  # The one that was heard of last stands last.
        keep(of_policy.setdefault(kind, []), error, ERRORS_KEPT)
        while len(self.errors) > POLICIES_KEPT:
            del self.errors[next(iter(self.errors))]

    def add_length(self, length: KnownLength) -> None:
        keep(self.lengths, length, LENGTHS_KEPT)

    def add_run_time(self, true_s: float) -> None:
        keep(self.run_times, true_s, LENGTHS_KEPT)

    def add_arrival(self, arrival: ArrivalSeen, now_s: float) -> None:
        self.last_arrival_s = now_s
        keep(self.arrivals, arrival, ARRIVALS_KEPT)


def keep(pool: list[Any], one: Any, most: int) -> None:
    pool.append(one)
    if len(pool) > most:
        del pool[: len(pool) - most]


ENOUGH: Final = 15
LEAST_S: Final = 1.0
"""Shorter times count as this long."""

LogErrors = Sequence[tuple[float, float, float]]
"""log(actual / raw) at each level; NaN: the bound was infinite, and says nothing."""


def quantile(ordered: Sequence[float], level: float) -> float:
    """Interpolates linearly between rising values; infinite beside an infinite one."""
    place = level * (len(ordered) - 1)
    below = int(place)
    part = place - below
    if part <= 0.0:
        return ordered[below]
    return ordered[below] + part * (ordered[below + 1] - ordered[below])


def interval_of(samples_s: Sequence[float]) -> EtaInterval | None:
    """The interval of one number per roll-out; None where half of them or more are infinite.

    What comes is one more of n numbers: it is below the k-th of them k times in n + 1 (Weibull 1939).
    """
    ordered = sorted(samples_s)
    if not ordered or not math.isfinite(quantile(ordered, 0.5)):
        return None
    gaps = max(1, len(ordered) - 1)
    places = (min(max((level * (len(ordered) + 1) - 1.0) / gaps, 0.0), 1.0) for level in LEVELS)
    low_s, mid_s, high_s = (quantile(ordered, place) for place in places)
    return EtaInterval(low_s, mid_s, high_s)


def calibrated_interval(raw: EtaInterval, errors: LogErrors, floor_s: float = 0.0) -> EtaInterval:
    """`raw` after correction by these errors; itself where there are too few. Only the part of each bound
    beyond `floor_s` is scaled."""
    if len(errors) < ENOUGH:
        return raw
    low, mid, high = (
        [error for error in column if math.isfinite(error)]
        for column in zip(*errors[-ERRORS_KEPT:], strict=True)
    )
    p50_s = _shifted_bound_s(raw.p50_s, median(mid), floor_s)
    # Bounds from finite samples: a rank further out than the level, so that they hold as often as they say.
    p10_s = _shifted_bound_s(raw.p10_s, -_ranked_error([-error for error in low], 1.0 - LEVELS[0]), floor_s)
    p90_s = _shifted_bound_s(raw.p90_s, _ranked_error(high, LEVELS[2]), floor_s) if high else raw.p90_s
    return EtaInterval(min(p10_s, p50_s), p50_s, max(p90_s, p50_s))


def levelwise(function: Callable[..., float], *intervals: EtaInterval) -> EtaInterval:
    """Applies a function to the times of these intervals at each level."""
    return EtaInterval(*map(function, *map(msgspec.structs.astuple, intervals)))


def end_after(end: ToldInterval, start: EtaInterval, run_s: float) -> EtaInterval:
    """A corrected end as it can be told beside a corrected start. `run_s`: the least from start to end
    in any roll-out, seconds; what shortens the end shortens it as well, and never to 0."""
    told_s, raw_s = (max(each.p50_s - end.floor_s, LEAST_S) for each in (end.told, end.raw))
    least_s = run_s * min(1.0, told_s / raw_s)
    return levelwise(lambda end_s, start_s: max(end_s, start_s + least_s), end.told, start)


def end_moved(end: EtaInterval, start: ToldInterval) -> EtaInterval:
    """An uncorrected end, moved at each level by as much as its start was."""
    by_s = levelwise(
        lambda told_s, raw_s: told_s - raw_s if told_s < math.inf else 0.0, start.told, start.raw
    )
    return EtaInterval(*accumulate(msgspec.structs.astuple(levelwise(operator.add, end, by_s)), max))


def _shifted_bound_s(bound_s: float, shift: float, floor_s: float) -> float:
    return floor_s + max(bound_s - floor_s, LEAST_S) * math.exp(shift) if shift else bound_s


def _ranked_error(errors: list[float], level: float) -> float:
    """The k-th smallest of n, k = ceil((n + 1) * level); the largest where there are too few."""
    return sorted(errors)[min(len(errors), math.ceil((len(errors) + 1) * level - 1e-9)) - 1]


def errors_of(raw: EtaInterval, actual_s: float, floor_s: float = 0.0) -> tuple[float, float, float]:
    """The error at each level, of what lies beyond `floor_s`; NaN where the bound was infinite."""
    actual = math.log(max(actual_s - floor_s, LEAST_S))
    low, mid, high = (
        actual - math.log(max(bound_s - floor_s, LEAST_S)) if math.isfinite(bound_s) else math.nan
        for bound_s in (raw.p10_s, raw.p50_s, raw.p90_s)
    )
    return low, mid, high
