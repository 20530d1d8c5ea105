"""How sure a prediction is: margins that are wider for jobs unlike those of the training.

Rule: how strange a job is to the model decides how wide the answer's interval must be; no names count. A job
is as strange as its distance to the nearest job of the training: per feature in standard deviations,
logarithms where a feature spans orders of magnitude, over the root of the number of features. A missing value
counts as the training's mean. For a pair the stranger of the two counts. Errors also grow with what is
predicted: a pair that hardly slows down cannot be far off. So margins and residuals are measured in units of
`scale_of` the answer.

The factors are split conformal ones (Vovk et al., Algorithmic Learning in a Random World, section 4.6:
conditional on a category, here a band of novelty): the k-th smallest of n absolute out-of-fold residuals, k =
ceil((n + 1) * coverage). They hold as far as new pairs are like the ones left out; rows of one pair are not
independent, so the page of results shows the coverage that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from cotenant.controller.models.interference.features import UNLIMITED, Matrix
from cotenant.controller.performance import (
    Band,
    KnownJobs,
)

Vector = npt.NDArray[np.float64]

JOBS_MAX: Final = 256
"""Jobs kept of a training; more are thinned out evenly."""
BANDS_MAX: Final = 4
SCALE_MIN: Final = 0.2
ROWS_MIN: Final = 30
"""Residuals behind a band; fewer say nothing about a tail."""


def known_jobs(names: tuple[str, ...], jobs: Matrix) -> KnownJobs:
    """The distinct jobs of a training, scaled by their own spread."""
    values = _spread_out(np.unique(_even(names, jobs), axis=0))
    seen = ~np.isnan(values)
    counts = np.maximum(seen.sum(axis=0), 1)
    centre = np.where(seen, values, 0.0).sum(axis=0) / counts
    spread = np.sqrt((np.where(seen, values - centre, 0.0) ** 2).sum(axis=0) / counts)
    scale = np.where(spread > 0, spread, 1.0)
    rows = np.where(seen, (values - centre) / scale, 0.0)
    return KnownJobs(
        features=names,
        centre=tuple(map(_short, centre)),
        scale=tuple(map(_short, scale)),
        rows=tuple(tuple(map(_short, row)) for row in rows),
    )


class Novelty:
    """Distances to the known jobs."""

    def __init__(self, known: KnownJobs) -> None:
        self._names = known.features
        self._centre, self._scale = np.array(known.centre), np.array(known.scale)
        self._rows = np.array(known.rows).reshape(len(known.rows), len(known.features))
        self._squares = (self._rows**2).sum(axis=1)

    def score(self, jobs: Matrix) -> Vector:
        """The novelty of each of `jobs`, one number per job. `jobs`: [n, len(known.features)]."""
        scaled = np.nan_to_num((_even(self._names, jobs) - self._centre) / self._scale, nan=0.0)
        # |a - b|^2 by the binomial: one matrix product in place of a cube of differences.
        squares = (scaled**2).sum(axis=1)[:, None] + self._squares - 2.0 * scaled @ self._rows.T
        nearest: Vector = np.sqrt(np.maximum(squares.min(axis=1), 0.0) / max(1, len(self._names)))
        return nearest


def scale_of(xi: Vector) -> Vector:
    """The unit of an answer's margin: SCALE_MIN where nothing slows down, more the slower it gets."""
    scale: Vector = SCALE_MIN + np.maximum(xi - 1.0, 0.0)
    return scale


def bands(residuals: Vector, novelty: Vector, coverage: float) -> tuple[Band, ...]:
    """Factors by novelty, never smaller for a stranger job. `residuals`: over `scale_of` the answers.

    The limits are quantiles of the novelty of those rows that have any; rows of known jobs are a band of
    their own. A band that would hold fewer than ROWS_MIN rows goes to its neighbour.
    """
    off = np.abs(residuals)
    strange = novelty[novelty > KNOWN_MAX]
    shares = np.arange(1, BANDS_MAX - 1) / (BANDS_MAX - 1)
    limits = [KNOWN_MAX, *(float(each) for each in np.quantile(strange, shares))] if len(strange) else []
    made: list[Band] = []
    below = -math.inf
    for limit in limits:
        inside = (novelty > below) & (novelty <= limit)
        beyond = novelty > limit
        if min(inside.sum(), beyond.sum()) < ROWS_MIN or (made and made[-1].novelty_max == limit):
            continue
        made.append(_band(_short(limit), off[inside], coverage, made))
        below = limit
    made.append(_band(None, off[novelty > below], coverage, made))
    return tuple(made)


KNOWN_MAX: Final = 1e-3
"""A job that the training holds, but for rounding."""


def band_of(bands: Sequence[Band], novelty: Vector) -> npt.NDArray[np.intp]:
    """Which band each belongs to."""
    limits = [band.novelty_max for band in bands if band.novelty_max is not None]
    return np.searchsorted(np.array(limits), novelty, side="left")


def conformal(off: Vector, coverage: float) -> float:
    """The conformal quantile of the residuals `off`; the largest residual where there are too few for the
    `coverage`."""
    rank = math.ceil((len(off) + 1) * coverage)
    return float(np.sort(off)[min(rank, len(off)) - 1])


def _band(limit: float | None, off: Vector, coverage: float, before: Sequence[Band]) -> Band:
    factor = max([conformal(off, coverage), *(band.factor for band in before)])
    return Band(novelty_max=limit, factor=_short(factor), rows=len(off))


def _even(names: tuple[str, ...], jobs: Matrix) -> Vector:
    """Logarithms where a feature spans orders of magnitude."""
    values: Vector = jobs.astype(np.float64)
    for place, name in enumerate(names):
        if name in UNLIMITED:
            values[:, place] = np.log1p(values[:, place])
    return values


def _spread_out(jobs: Vector) -> Vector:
    if len(jobs) <= JOBS_MAX:
        return jobs
    thinned: Vector = jobs[np.linspace(0, len(jobs) - 1, JOBS_MAX).round().astype(int)]
    return thinned


def _short(value: float) -> float:
    """Rounds to the digits that matter: people read model files too."""
    return float(f"{value:.6g}")
