"""How good forecasts were: what `forecast evaluate` counts.

Rule: only hours whose truth is known are counted, all of them alike: over series, origins and hours ahead. So
an error of a large pool weighs more than one of a small pool, as it does in GPUs.
"""

from __future__ import annotations

import msgspec
import numpy as np

from cotenant.controller.models.forecast.demand import Floats


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """In GPUs, but for `mape` and coverage, which are shares. Null where nothing can be said."""

    mae: float
    rmse: float
    mape: float | None
    """Over the hours with demand."""
    pinball_90: float
    pinball_95: float
    coverage_90: float
    """The share of hours at or below the .9 quantile."""
    coverage_95: float


def pinball(truth: Floats, quantile: Floats, level: float) -> Floats:
    """Each hour's loss: `level` per GPU that was missing, 1 - `level` per GPU reserved in vain."""
    short = truth - quantile
    loss: Floats = np.maximum(level * short, (level - 1) * short)
    return loss


def scores(truth: Floats, point: Floats, q90: Floats, q95: Floats) -> Scores:
    """All of one shape; NaN where the truth is unknown.

    Raises:
        ValueError: no truth is known at all.
    """
    known = np.isfinite(truth)
    if not known.any():
        raise ValueError("no hour that could be judged is known")
    y, error = truth[known], (truth - point)[known]
    positive = y > 0
    return Scores(
        mae=float(np.abs(error).mean()),
        rmse=float(np.sqrt((error**2).mean())),
        mape=float((np.abs(error)[positive] / y[positive]).mean()) if positive.any() else None,
        pinball_90=float(pinball(y, q90[known], 0.9).mean()),
        pinball_95=float(pinball(y, q95[known], 0.95).mean()),
        coverage_90=float((y <= q90[known]).mean()),
        coverage_95=float((y <= q95[known]).mean()),
    )
