"""How sure a model is, from its training: the jobs that it has seen, and factors by how strange a job is.

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

from cotenant.controller.models.interference.bands import Vector, even_out
from cotenant.controller.models.interference.features import Matrix
from cotenant.controller.performance import Band, KnownJobs

JOBS_MAX: Final = 256
"""Jobs kept of a training; more are thinned out evenly."""
BANDS_MAX: Final = 4
ROWS_MIN: Final = 30
"""Residuals behind a band; fewer say nothing about a tail."""
KNOWN_MAX: Final = 1e-3
"""A job that the training holds, but for rounding."""


def known_jobs(names: tuple[str, ...], jobs: Matrix) -> KnownJobs:
    """The distinct jobs of a training, scaled by their own spread."""
    values = _spread_out(np.unique(even_out(names, jobs), axis=0))
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


def conformal(off: Vector, coverage: float) -> float:
    """The conformal quantile of the residuals `off`; the largest residual where there are too few for the
    `coverage`."""
    rank = math.ceil((len(off) + 1) * coverage)
    return float(np.sort(off)[min(rank, len(off)) - 1])


def _band(limit: float | None, off: Vector, coverage: float, before: Sequence[Band]) -> Band:
    factor = max([conformal(off, coverage), *(band.factor for band in before)])
    return Band(novelty_max=limit, factor=_short(factor), rows=len(off))


def _spread_out(jobs: Vector) -> Vector:
    if len(jobs) <= JOBS_MAX:
        return jobs
    thinned: Vector = jobs[np.linspace(0, len(jobs) - 1, JOBS_MAX).round().astype(int)]
    return thinned


def _short(value: float) -> float:
    """Rounds to the digits that matter: people read model files too."""
    return float(f"{value:.6g}")
