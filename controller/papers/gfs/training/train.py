"""Demand -> a model document; and the controller's daily training: a policy's question -> that, packed.

Rule: pure given the seed: the same demand gives the same document, byte for byte. Too little demand is no
error: the document then says so and stands for last value + median hourly change. A model that has not seen
the last part of the demand makes the errors that correct the quantiles; only then the model trains on all of
it.

Quantile trees are XGBoost's, one forest per level over all series, hours ahead and origins together. Rule:
same demand, seed and levels, same trees. Their settings were chosen on hours before the last 28 days of the
only real demand at hand; nothing is chosen anew in a training. The page of results and
the controller do all of the work; tests of other things do less.

Rule: the daily one runs in the computing child, on one thread. Errors are its answer; the policy goes on as
before.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from cotenant.controller.papers.gfs import forecast
from cotenant.controller.papers.gfs.training.holidays import days_of
from cotenant.controller.training import boosting
from cotenant.controller.wire import ComputeResult, Payload


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    trees: int = 200
    """Trees per level, learned one after the other."""
    trees_rate: float = 0.04
    rows_max: int = 160_000
    """More rows are thinned out at random, so that hundreds of organisations do not take an hour to train."""


FULL: Final = Effort()


CALIBRATION_SHARE: Final = 4
"""At most one in so many hours is kept out for errors."""


def train(
    demand: forecast.Demand,
    horizon_h: int,
    seed: int,
    *,
    kind: forecast.TrainerName = "xgboost-cqr",
    levels: tuple[float, ...] = forecast.LEVELS,
    holidays: Iterable[int] = (),
    effort: Effort = FULL,
    errors_max: int = forecast.ERRORS_MAX,
    card: forecast.ForecastCard | None = None,
) -> forecast.ForecastModel:
    """A forecaster of each series and of their total.

    Raises:
        boosting.NoXGBoost: for `xgboost-cqr`, where XGBoost is missing.
        ImportError: for `orglinear`, where torch is missing.
    """
    demand, days = demand.demand_with_total(), tuple(sorted(holidays)) if demand.dated else ()
    calendar = forecast.Calendar.make(demand, days)
    known_h = int(demand.known_mask().any(axis=0).sum())
    fitted: forecast.QuantileTrees | forecast.LinearWeights | forecast.LastChange
    errors: forecast.Floats | None
    if known_h < forecast.HOURS_MIN:
        fitted = forecast.LastChange(
            why=f"{known_h} hours of demand are known, {forecast.HOURS_MIN} are needed to train"
        )
        origins = calibration_origins(demand.hours, horizon_h)
        errors = errors_of(fitted, demand, origins, horizon_h, calendar, levels)
    elif kind == "orglinear":
        from cotenant.controller.papers.gfs.training import linear

        fitted, errors = linear.fit(demand, horizon_h, seed, calendar), None
    else:
        errors = trees_errors(demand, horizon_h, levels, seed, calendar, effort)
        fitted = fit_trees(demand, horizon_h, levels, seed, calendar, effort)
    return forecast.ForecastModel(
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


def calibration_origins(hours: int, horizon_h: int) -> forecast.Hours:
    """The last origins whose forecasts can all be judged."""
    count = max(0, min(forecast.WINDOW, hours // CALIBRATION_SHARE) - horizon_h)
    return np.arange(hours - horizon_h - count, hours - horizon_h)


def trees_errors(
    demand: forecast.Demand,
    horizon_h: int,
    levels: tuple[float, ...],
    seed: int,
    calendar: forecast.Calendar,
    effort: Effort = FULL,
) -> forecast.Floats:
    """Errors of trees whose training ends where these origins begin."""
    origins = calibration_origins(demand.hours, horizon_h)
    fitted = fit_trees(demand.first(int(origins[0]) + 1), horizon_h, levels, seed, calendar, effort)
    return errors_of(fitted, demand, origins, horizon_h, calendar, levels)


def errors_of(
    fitted: forecast.QuantileTrees | forecast.LinearWeights | forecast.LastChange,
    demand: forecast.Demand,
    origins: forecast.Hours,
    horizon_h: int,
    calendar: forecast.Calendar,
    levels: tuple[float, ...],
) -> forecast.Floats:
    """Shape (series, origins, hours ahead, levels), in units of each series' hourly change; NaN where the
    truth is unknown."""
    asker, filled = forecast.Asker(fitted, horizon_h), demand.fill_gaps()
    ahead = origins[:, None] + np.arange(1, horizon_h + 1)
    each = [
        (values[ahead][..., None] - asker.quantiles(number, series, origins, calendar, levels))
        / forecast.units(series, origins)[:, None, None]
        for number, (values, series) in enumerate(zip(demand.values, filled, strict=True))
    ]
    return np.stack(each)


def _document(errors: forecast.Floats, errors_max: int) -> forecast.ErrorTable:
    """The table of errors by series, hours ahead, level; the errors are rounded, because they are kept as
    text."""
    rounded = np.round(np.moveaxis(errors, 1, -1), 5)
    series, horizon_h, levels = rounded.shape[:3]
    kept = forecast.errors_kept(series, horizon_h, levels, errors_max)
    return tuple(
        tuple(tuple(tuple(row[np.isfinite(row)][-kept:].tolist()) for row in rows) for rows in each)
        for each in rounded
    )


TREE_SETTINGS: Final = {
    "max_leaves": 16.0,
    "max_depth": 0.0,
    "min_child_weight": 60.0,
    "subsample": 0.7,
    "colsample_bytree": 0.6,
}
HISTORY_H_MIN: Final = forecast.DAY_H
"""Before the first origin that is learned from."""
LABEL_MAX: Final = 1000.0
"""A series that was idle for a month and then jumps is no lesson for the others."""


def fit_trees(
    demand: forecast.Demand,
    horizon_h: int,
    levels: tuple[float, ...],
    seed: int,
    calendar: forecast.Calendar,
    effort: Effort = FULL,
) -> forecast.QuantileTrees:
    """Fits a forest of trees to each level. Raises boosting.NoXGBoost."""
    rows, labels = tree_examples(demand, horizon_h, calendar, seed, effort.rows_max)
    settings = {
        **TREE_SETTINGS,
        "trees": float(effort.trees),
        "eta": effort.trees_rate,
        "min_child_weight": min(TREE_SETTINGS["min_child_weight"], len(rows) / 200),
    }
    forests = [boosting.fit(rows, labels, settings, seed, quantile=level).trees() for level in levels]
    return forecast.QuantileTrees(columns=forecast.COLUMNS, forests=tuple(forests))


def tree_examples(
    demand: forecast.Demand,
    horizon_h: int,
    calendar: forecast.Calendar,
    seed: int,
    rows_max: int = FULL.rows_max,
) -> tuple[forecast.Rows, forecast.Floats]:
    """Rows, and how far the truth was from the last value, in units of the series."""
    origins = np.arange(min(HISTORY_H_MIN, demand.hours - horizon_h - 1), demand.hours - horizon_h)
    kept = np.random.default_rng(seed)
    share = rows_max / (len(demand.names) * len(origins) * horizon_h)
    rows, labels = [], []
    for values, filled in zip(demand.values, demand.fill_gaps(), strict=True):
        some = origins if share >= 1 else origins[kept.random(len(origins)) < share]
        if not len(some):
            continue
        ahead = some + np.arange(1, horizon_h + 1)[:, None]
        label = np.clip(
            (values[ahead] - filled[some]) / forecast.units(filled, some), -LABEL_MAX, LABEL_MAX
        ).ravel()
        known = np.isfinite(label)
        rows.append(forecast.rows_of(filled, some, horizon_h, calendar)[known])
        labels.append(label[known])
    return np.concatenate(rows), np.concatenate(labels)


DAILY_SEED: Final = 0
DAILY_ERRORS_MAX: Final = 100_000
"""In the document, over all series: what is kept of errors grows with the organisations."""


def answer(payload: Payload, effort: Effort = FULL) -> ComputeResult:
    """Trains the model that the payload asks for.

    Raises:
        ValueError: the payload is no question.
        NoXGBoost, ImportError: a library is missing.
        NoHolidays: holidays were asked for that nobody knows.
        ForecastModelProblem: the model is too large.
    """
    question = forecast.question_in(payload)
    demand = question.demand
    days = days_of(question.country, demand) if question.country else ()
    model = train(
        demand,
        question.horizon_h,
        DAILY_SEED,
        kind=question.trainer,
        levels=tuple(question.levels),
        holidays=days,
        effort=effort,
        errors_max=DAILY_ERRORS_MAX,
    )
    return ComputeResult(document=forecast.pack_model(model))
