"""Demand -> a model document: the controller's daily training, in a process of its own.

Rule: pure given the seed: the same demand gives the same document, byte for byte. Too little demand is no
error: the document then says so and stands for last value + median hourly change. A model that has not seen
the last part of the demand makes the errors that correct the quantiles; only then the model trains on all of
it.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from typing import Final

import numpy as np

from cotenant.controller.models.forecast import (
    ERRORS_MAX,
    HOURS_MIN,
    LEVELS,
    WINDOW,
    Asker,
    Calendar,
    Demand,
    ErrorTable,
    Floats,
    ForecastCard,
    ForecastModel,
    Hours,
    LastChange,
    LinearWeights,
    QuantileTrees,
    TrainerName,
    errors_kept,
    units,
)
from cotenant.controller.training.forecast import trees
from cotenant.controller.training.forecast.effort import FULL, Effort

CALIBRATION_SHARE: Final = 4
"""At most one in so many hours is kept out for errors."""


def train(
    demand: Demand,
    horizon_h: int,
    seed: int,
    *,
    kind: TrainerName = "xgboost-cqr",
    levels: tuple[float, ...] = LEVELS,
    holidays: Iterable[int] = (),
    effort: Effort = FULL,
    errors_max: int = ERRORS_MAX,
    card: ForecastCard | None = None,
) -> ForecastModel:
    """A forecaster of each series and of their total.

    Raises:
        boosting.NoXGBoost: for `xgboost-cqr`, where XGBoost is missing.
        ImportError: for `orglinear`, where torch is missing.
    """
    demand, days = demand.with_total(), tuple(sorted(holidays)) if demand.dated else ()
    calendar = Calendar.of(demand, days)
    known_h = int(demand.known().any(axis=0).sum())
    fitted: QuantileTrees | LinearWeights | LastChange
    errors: Floats | None
    if known_h < HOURS_MIN:
        fitted = LastChange(why=f"{known_h} hours of demand are known, {HOURS_MIN} are needed to train")
        origins = calibration_origins(demand.hours, horizon_h)
        errors = errors_of(fitted, demand, origins, horizon_h, calendar, levels)
    elif kind == "orglinear":
        from cotenant.controller.training.forecast import linear

        fitted, errors = linear.fit(demand, horizon_h, seed, calendar), None
    else:
        errors = trees_errors(demand, horizon_h, levels, seed, calendar, effort)
        fitted = trees.fit(demand, horizon_h, levels, seed, calendar, effort)
    return ForecastModel(
        fitted=fitted,
        series=demand.names,
        horizon_h=horizon_h,
        levels=levels,
        dated=demand.dated,
        holidays=days,
        errors=() if errors is None else _document(errors, errors_max),
        hours=known_h,
        last_hour=demand.first_hour + demand.hours - 1,
        seed=seed,
        made_by=f"cotenant {importlib.metadata.version('cotenant')}",
        card=card,
    )


def calibration_origins(hours: int, horizon_h: int) -> Hours:
    """The last origins whose forecasts can all be judged."""
    count = max(0, min(WINDOW, hours // CALIBRATION_SHARE) - horizon_h)
    return np.arange(hours - horizon_h - count, hours - horizon_h)


def trees_errors(
    demand: Demand,
    horizon_h: int,
    levels: tuple[float, ...],
    seed: int,
    calendar: Calendar,
    effort: Effort = FULL,
) -> Floats:
    """Errors of trees whose training ends where these origins begin."""
    origins = calibration_origins(demand.hours, horizon_h)
    fitted = trees.fit(demand.first(int(origins[0]) + 1), horizon_h, levels, seed, calendar, effort)
    return errors_of(fitted, demand, origins, horizon_h, calendar, levels)


def errors_of(
    fitted: QuantileTrees | LinearWeights | LastChange,
    demand: Demand,
    origins: Hours,
    horizon_h: int,
    calendar: Calendar,
    levels: tuple[float, ...],
) -> Floats:
    """Shape (series, origins, hours ahead, levels), in units of each series' hourly change; NaN where the
    truth is unknown."""
    asker, filled = Asker(fitted, horizon_h), demand.filled()
    ahead = origins[:, None] + np.arange(1, horizon_h + 1)
    each = [
        (values[ahead][..., None] - asker.quantiles(number, series, origins, calendar, levels))
        / units(series, origins)[:, None, None]
        for number, (values, series) in enumerate(zip(demand.values, filled, strict=True))
    ]
    return np.stack(each)


def _document(errors: Floats, errors_max: int) -> ErrorTable:
    """By series, hours ahead, level; rounded, because they are kept as text."""
    rounded = np.round(np.moveaxis(errors, 1, -1), 5)
    series, horizon_h, levels = rounded.shape[:3]
    kept = errors_kept(series, horizon_h, levels, errors_max)
    return tuple(
        tuple(tuple(tuple(row[np.isfinite(row)][-kept:].tolist()) for row in rows) for rows in each)
        for each in rounded
    )
