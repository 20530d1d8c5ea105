"""The scores of forecasts in a test, and the corrections that forecasts would have had there hour by hour.

Rule: a score counts only hours whose truth is known, all of them alike: over series, origins and hours ahead.
So an error of a large pool weighs more than one of a small pool, as it does in GPUs.
"""

from __future__ import annotations

import numpy as np

from cotenant.controller.papers.gfs.forecast import WINDOW, Floats, Scores, correction


def rolling(errors: Floats, hours_ahead: int, level: float, before: Floats | None = None) -> Floats:
    """The correction at each origin, from the errors of consecutive origins (NaN: none).

    Args:
        errors: of the forecasts made at these origins, `hours_ahead` each.
        before: errors from earlier, oldest first, all of them observed before the first origin.
    """
    earlier = np.empty(0) if before is None else before
    every, first = np.concatenate((earlier, errors)), len(earlier)
    found = np.empty(len(errors))
    for origin in range(len(errors)):
        # Made `hours_ahead` origins ago: its hour is this origin's own.
        end = first + max(0, origin - hours_ahead + 1)
        seen = every[max(0, end - 2 * WINDOW) : end]
        found[origin] = correction(seen[np.isfinite(seen)][-WINDOW:], level)
    return found


def pinball(truth: Floats, quantile: Floats, level: float) -> Floats:
    """The pinball loss of each hour: `level` per GPU that was missing, 1 - `level` per GPU reserved in
    vain."""
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
