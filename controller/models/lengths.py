"""What a job has left, drawn from what became of jobs like it.

Rule: a ratio true / expected is drawn WITHIN the bucket of the nearest expectations from the same source,
never from all jobs: the longest expectations are most often too long, and ratios drawn independently of them
would make a backlog e^(sigma^2) times as long as it is.

Rule: users' estimates are wrong, also before any outcome is known. As many outcomes as are missing to
`ENOUGH` are made up: true lengths around what was said, as a lognormal factor with sigma `USER_SIGMA`. Each
outcome takes the place of one of them. What was measured needs none, nor does what a simulation knows to be
exact.

Rule: what a job has had already counts: only ratios by which it would not have ended yet are drawn from.
Where hardly any is left, it has outlived everything that is known, and what is left is drawn as Lindy's law
has it: as long again as it has lasted, half of the time.

Rule: where an estimate comes with its spread, from its own siblings, that is what is drawn from.

Rule: for a job without any estimate there are only the run times of all jobs. With fewer than `ENOUGH` of
them its end is unknown, and so is that of everything that waits for it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from random import Random
from statistics import NormalDist
from typing import Final

from cotenant.controller.models.eta import ENOUGH, Pools, quantile

NEAREST: Final = 60
"""Jobs in a bucket."""
POSSIBLE_MIN: Final = 3
"""With fewer lengths that are still possible, Lindy's law holds."""
LINDY_MAX: Final = 0.9
"""The highest quantile of Lindy's law that is drawn: its tail has no mean."""
LEFT_MIN_S: Final = 1e-3
TENTH_OUT: Final = NormalDist().inv_cdf(0.9)
"""Beyond so many standard deviations lies a tenth."""
USER: Final = "user"
"""The source of a length that a user has given."""
USER_SIGMA: Final = 0.7
"""Deviation of log(true / said) before anything is known; our simulations assume the same of users."""


class Lengths:
    """Draws what jobs have left. `u`: the quantile, 0 to 1."""

    def __init__(self, pools: Pools, *, is_exact: bool = False) -> None:
        """Sorts the lengths in `pools` by their sources. `is_exact`: users' estimates are exact."""
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
        return _remaining_s(sorted(ratio * told_s for ratio in ratios), had_s, u)

    def left_of_unknown_s(self, had_s: float, u: Sequence[float]) -> list[float]:
        """The seconds that a job without an estimate has left; infinite while too little is known of other
        jobs."""
        if not self._run_times:
            return [math.inf] * len(u)
        return _remaining_s(self._run_times, had_s, u)


def left_of_spread_s(
    low_s: float, mid_s: float, high_s: float, had_s: float, u: Sequence[float]
) -> list[float]:
    """What is left, after `had_s`, of a length with these three quantiles (a tenth, half, nine tenths), which
    is lognormal on each side of the middle."""
    below, above = max(mid_s / max(low_s, LEFT_MIN_S), 1.0), max(high_s / mid_s, 1.0)
    deviations = (NormalDist().inv_cdf((place + 0.5) / NEAREST) / TENTH_OUT for place in range(NEAREST))
    return _remaining_s([mid_s * (above if z > 0.0 else below) ** z for z in deviations], had_s, u)


def _made_up(count: int) -> tuple[float, ...]:
    """Returns `count` ratios true / said that stand for all such ratios."""
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


def _remaining_s(lengths_s: Sequence[float], had_s: float, u: Sequence[float]) -> list[float]:
    """What is left of a job that has had `had_s`, with one of these lengths, which rise."""
    possible = lengths_s[bisect_right(lengths_s, had_s) :] if had_s > 0.0 else lengths_s
    if len(possible) >= min(POSSIBLE_MIN, len(lengths_s)):
        return [max(quantile(possible, each) - had_s, LEFT_MIN_S) for each in u]
    shares = [min(each, LINDY_MAX) for each in u]
    return [max(had_s * share / (1.0 - share), LEFT_MIN_S) for share in shares]


def strata(random: Random, count: int) -> list[float]:
    """Draws `count` numbers in 0 to 1, one in each equal part of that range, in random order: so few
    roll-outs see the whole of a distribution."""
    places = [(number + random.random()) / count for number in range(count)]
    random.shuffle(places)
    return places
