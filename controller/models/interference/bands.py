"""How sure a prediction is: margins that are wider for jobs unlike those of the training.

Rule: how strange a job is to the model decides how wide the answer's interval must be; no names count. A job
is as strange as its distance to the nearest job of the training: per feature in standard deviations,
logarithms where a feature spans orders of magnitude, over the root of the number of features. A missing value
counts as the training's mean. For a pair the stranger of the two counts. Errors also grow with what is
predicted: a pair that hardly slows down cannot be far off. So margins and residuals are measured in units of
`scale_of` the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from cotenant.controller import performance
from cotenant.controller.models.interference.features import UNLIMITED, Matrix

Vector = npt.NDArray[np.float64]

SCALE_MIN: Final = 0.2


class Novelty:
    """Distances to the known jobs."""

    def __init__(self, known: performance.KnownJobs) -> None:
        self._names = known.features
        self._centre, self._scale = np.array(known.centre), np.array(known.scale)
        self._rows = np.array(known.rows).reshape(len(known.rows), len(known.features))
        self._squares = (self._rows**2).sum(axis=1)

    def score(self, jobs: Matrix) -> Vector:
        """The novelty of each of `jobs`, one number per job. `jobs`: [n, len(known.features)]."""
        scaled = np.nan_to_num((even_out(self._names, jobs) - self._centre) / self._scale, nan=0.0)
        # |a - b|^2 by the binomial: one matrix product in place of a cube of differences.
        squares = (scaled**2).sum(axis=1)[:, None] + self._squares - 2.0 * scaled @ self._rows.T
        nearest: Vector = np.sqrt(np.maximum(squares.min(axis=1), 0.0) / max(1, len(self._names)))
        return nearest


def scale_of(xi: Vector) -> Vector:
    """The unit of an answer's margin: SCALE_MIN where nothing slows down, more the slower it gets."""
    scale: Vector = SCALE_MIN + np.maximum(xi - 1.0, 0.0)
    return scale


def band_of(bands: Sequence[performance.Band], novelty: Vector) -> npt.NDArray[np.intp]:
    """Which band each belongs to."""
    limits = [band.novelty_max for band in bands if band.novelty_max is not None]
    return np.searchsorted(np.array(limits), novelty, side="left")


def even_out(names: tuple[str, ...], jobs: Matrix) -> Vector:
    """Logarithms where a feature spans orders of magnitude."""
    values: Vector = jobs.astype(np.float64)
    for place, name in enumerate(names):
        if name in UNLIMITED:
            values[:, place] = np.log1p(values[:, place])
    return values
