"""When jobs end: past lengths beside what was expected of them, past errors, and what follows from both.

Rule: the pools are values, bounded, oldest out first. They hold observations, draw nothing, and forget only
by age, so that a fold over the same events gives the same pools.

Rule: each level of an interval is shifted by its own quantile of its own last errors, log(actual / raw), of
the same policy and the same kind (conformal): errors of intervals told at submission correct intervals told
at submission, those of revisits correct revisits. Below `ENOUGH` outcomes nothing is shifted, and the answer
says so. Only intervals that were told as calibrated are scored; the score also says how many were not.

Rule: a ratio true / expected is drawn WITHIN the bucket of the nearest expectations from the same source,
never from all jobs: the longest expectations are most often too long, and ratios drawn independently of
them would make a backlog e^(sigma^2) times as long as it is.

Rule: users' estimates are wrong, also before any outcome is known. As many outcomes as are
missing to `ENOUGH` are made up: true lengths around what was said, as a lognormal factor with sigma
`USER_SIGMA`. Each outcome takes the place of one of them. What was measured needs none, nor does what a
simulation knows to be exact.

Rule: what a job has had already counts: only ratios by which it would not have ended yet are drawn from.
Where hardly any is left, it has outlived everything that is known, and what is left is drawn as Lindy's law
has it: as long again as it has lasted, half of the time.

Rule: for a job without any estimate there are only the run times of all jobs. With fewer than `ENOUGH` of
them its end is unknown, and so is that of everything that waits for it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from random import Random
from statistics import NormalDist, fmean, median
from typing import Any, Final

import msgspec

from cotenant.controller.domain import LEVELS, EtaInterval, EtaKind, JobSpec

LENGTHS_KEPT: Final = 1_000
ARRIVALS_KEPT: Final = 400
ERRORS_KEPT: Final = 300
"""Errors kept per policy and kind; older ones say what the policy was like then."""
POLICIES_KEPT: Final = 20


class KnownLength(msgspec.Struct, frozen=True, array_like=True):
    """A finished job: the length that some source expected, and the length it had, alone."""

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


def calibrated(raw: EtaInterval, errors: LogErrors) -> EtaInterval:
    """`raw` after correction by these errors; itself where there are too few."""
    if len(errors) < ENOUGH:
        return raw
    low, mid, high = (
        [error for error in column if math.isfinite(error)]
        for column in zip(*errors[-ERRORS_KEPT:], strict=True)
    )
    p50_s = _shifted(raw.p50_s, median(mid))
    # Bounds from finite samples: a rank further out than the level, so that they hold as often as they say.
    p10_s = _shifted(raw.p10_s, -_ranked([-error for error in low], 1.0 - LEVELS[0]))
    p90_s = _shifted(raw.p90_s, _ranked(high, LEVELS[2])) if high else raw.p90_s
    return EtaInterval(min(p10_s, p50_s), p50_s, max(p90_s, p50_s))


def no_earlier(end: EtaInterval, start: EtaInterval) -> EtaInterval:
    """An end as it can be told beside that start: their corrections know nothing of each other."""
    return EtaInterval(max(start.p10_s, end.p10_s), max(start.p50_s, end.p50_s), max(start.p90_s, end.p90_s))


def _shifted(bound_s: float, shift: float) -> float:
    return max(bound_s, LEAST_S) * math.exp(shift) if shift else bound_s


def _ranked(errors: list[float], level: float) -> float:
    """The k-th smallest of n, k = ceil((n + 1) * level); the largest where there are too few."""
    return sorted(errors)[min(len(errors), math.ceil((len(errors) + 1) * level - 1e-9)) - 1]


def errors_of(raw: EtaInterval, actual_s: float) -> tuple[float, float, float]:
    """The error at each level; NaN where the bound was infinite."""
    actual = math.log(max(actual_s, LEAST_S))
    low, mid, high = (
        actual - math.log(max(bound_s, LEAST_S)) if math.isfinite(bound_s) else math.nan
        for bound_s in (raw.p10_s, raw.p50_s, raw.p90_s)
    )
    return low, mid, high


NEAREST: Final = 60
"""Jobs in a bucket."""
POSSIBLE_MIN: Final = 3
"""With fewer lengths that are still possible, Lindy's law holds."""
LINDY_MAX: Final = 0.9
"""The highest quantile of Lindy's law that is drawn: its tail has no mean."""
LEFT_MIN_S: Final = 1e-3
USER: Final = "user"
"""The source of a length that a user has given."""
USER_SIGMA: Final = 0.7
"""Deviation of log(true / said) before anything is known; our simulations assume the same of users."""


class Lengths:
    """Draws what jobs have left. `u`: the quantile, 0 to 1."""

    def __init__(self, pools: Pools, *, is_exact: bool = False) -> None:
        """`is_exact`: users' estimates are exact."""
        by_source: dict[str, list[tuple[float, float]]] = {}
        for seen in pools.lengths:
            if seen.told_s > 0.0 and seen.true_s > 0.0:
                by_source.setdefault(seen.source, []).append((seen.told_s, seen.true_s / seen.told_s))
        said = by_source.get(USER, [])
        self._prior = () if is_exact else _made_up(ENOUGH - len(said))
        self._said = sorted(said)
        everything = [pair for pairs in by_source.values() for pair in pairs]
        self._by_source = {
            source: sorted(pairs) for source, pairs in by_source.items() if len(pairs) >= ENOUGH
        }
        self._all = sorted(everything) if len(everything) >= ENOUGH else []
        self._run_times = sorted(pools.run_times) if len(pools.run_times) >= ENOUGH else []

    @property
    def knows_run_times(self) -> bool:
        """Whether there are enough run times for jobs without any estimate."""
        return bool(self._run_times)

    def left_s(self, source: str, told_s: float, had_s: float, u: Sequence[float]) -> list[float]:
        """What a job has left, of which `told_s` were expected in all and which has had `had_s`."""
        if source == USER and self._prior:
            ratios = [*self._prior, *_nearest(self._said, told_s)]
        else:
            ratios = _nearest(self._by_source.get(source, self._all), told_s) or [1.0]
        return _beyond(sorted(ratio * told_s for ratio in ratios), had_s, u)

    def left_of_unknown_s(self, had_s: float, u: Sequence[float]) -> list[float]:
        """The same for a job without an estimate; infinite while too little is known of others."""
        if not self._run_times:
            return [math.inf] * len(u)
        return _beyond(self._run_times, had_s, u)


def _made_up(count: int) -> tuple[float, ...]:
    """So many ratios true / said that stand for all of them."""
    return tuple(math.exp(USER_SIGMA * NormalDist().inv_cdf((place + 0.5) / count)) for place in range(count))


def _nearest(pool: list[tuple[float, float]], told_s: float) -> list[float]:
    """The ratios of the jobs with the nearest expectations, as factors."""
    last = first = bisect_left(pool, (told_s, 0.0))
    while last - first < NEAREST and last - first < len(pool):
        is_below_nearer = first > 0 and (
            last == len(pool) or told_s * told_s <= pool[first - 1][0] * pool[last][0]
        )
        first, last = (first - 1, last) if is_below_nearer else (first, last + 1)
    return [ratio for _, ratio in pool[first:last]]


def _beyond(lengths_s: Sequence[float], had_s: float, u: Sequence[float]) -> list[float]:
    """What is left of a job that has had `had_s`, with one of these lengths, which rise."""
    possible = lengths_s[bisect_right(lengths_s, had_s) :] if had_s > 0.0 else lengths_s
    if len(possible) >= min(POSSIBLE_MIN, len(lengths_s)):
        return [max(quantile(possible, each) - had_s, LEFT_MIN_S) for each in u]
    shares = [min(each, LINDY_MAX) for each in u]
    return [max(had_s * share / (1.0 - share), LEFT_MIN_S) for share in shares]


def strata(random: Random, count: int) -> list[float]:
    """As many numbers in 0 to 1, one in each equal part of it, in random order: so few roll-outs see the
    whole of a distribution."""
    places = [(number + random.random()) / count for number in range(count)]
    random.shuffle(places)
    return places


COVERAGE: Final = 0.8
"""What p10 to p90 promises."""
FAIR: Final = (0.7, 0.9)
"""A coverage outside it is flagged."""


class EtaScore(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of the newest intervals."""

    predictions: int
    uncalibrated: int
    coverage_80: float | None
    """Share of ends within p10 to p90."""
    median_bias: float | None
    """Median of actual / p50 - 1: above 0 they ended later than was told."""
    median_abs_error: float | None
    """Median of |actual / p50 - 1|."""
    width_over_jct: float | None
    """Mean width / mean actual time."""


def score(errors: Sequence[EtaError], last: int | None = None) -> EtaScore:
    """`last`: only so many of the calibrated ones, the newest."""
    counted = [error for error in errors if error.was_calibrated]
    uncalibrated = len(errors) - len(counted)
    counted = counted if last is None else counted[-last:]
    if not counted:
        return EtaScore(
            predictions=0,
            uncalibrated=uncalibrated,
            coverage_80=None,
            median_bias=None,
            median_abs_error=None,
            width_over_jct=None,
        )
    ratios = [math.exp(error.bias) - 1.0 for error in counted]
    # An interval without a bound has no width: the mean is over the others.
    widths_s = [error.width_s for error in counted if math.isfinite(error.width_s)]
    actual_s = fmean(error.actual_s for error in counted)
    return EtaScore(
        predictions=len(counted),
        uncalibrated=uncalibrated,
        coverage_80=fmean(error.hit for error in counted),
        median_bias=median(ratios),
        median_abs_error=median(abs(ratio) for ratio in ratios),
        width_over_jct=fmean(widths_s) / actual_s if widths_s and actual_s > 0.0 else None,
    )
