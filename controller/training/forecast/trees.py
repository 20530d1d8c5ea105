"""Quantile trees: XGBoost, one forest per level over all series, hours ahead and origins together.

Rule: same demand, seed and levels, same trees. Settings were chosen on hours before the last 28 days of the
only real demand at hand; nothing is chosen anew in a training.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cotenant.controller.models.forecast import (
    COLUMNS,
    DAY_H,
    Calendar,
    Demand,
    Floats,
    QuantileTrees,
    Rows,
    rows_of,
    units,
)
from cotenant.controller.training import boosting
from cotenant.controller.training.forecast.effort import FULL, Effort

SETTINGS: Final = {
    "max_leaves": 16.0, "max_depth": 0.0, "min_child_weight": 60.0,
    "subsample": 0.7, "colsample_bytree": 0.6,
}  # fmt: skip
HISTORY_H_MIN: Final = DAY_H
"""Before the first origin that is learned from."""
LABEL_MAX: Final = 1000.0
"""A series that was idle for a month and then jumps is no lesson for the others."""


def fit(
    demand: Demand,
    horizon_h: int,
    levels: tuple[float, ...],
    seed: int,
    calendar: Calendar,
    effort: Effort = FULL,
) -> QuantileTrees:
    """Raises boosting.NoXGBoost."""
    rows, labels = examples(demand, horizon_h, calendar, seed, effort.rows_max)
    settings = {
        **SETTINGS,
        "trees": float(effort.trees),
        "eta": effort.trees_rate,
        "min_child_weight": min(SETTINGS["min_child_weight"], len(rows) / 200),
    }
    forests = [boosting.fit(rows, labels, settings, seed, quantile=level).trees() for level in levels]
    return QuantileTrees(columns=COLUMNS, forests=tuple(forests))


def examples(
    demand: Demand, horizon_h: int, calendar: Calendar, seed: int, rows_max: int = FULL.rows_max
) -> tuple[Rows, Floats]:
    """Rows, and how far the truth was from the last value, in units of the series."""
    origins = np.arange(min(HISTORY_H_MIN, demand.hours - horizon_h - 1), demand.hours - horizon_h)
    kept = np.random.default_rng(seed)
    share = rows_max / (len(demand.names) * len(origins) * horizon_h)
    rows, labels = [], []
    for values, filled in zip(demand.values, demand.filled(), strict=True):
        some = origins if share >= 1 else origins[kept.random(len(origins)) < share]
        if not len(some):
            continue
        ahead = some + np.arange(1, horizon_h + 1)[:, None]
        label = np.clip((values[ahead] - filled[some]) / units(filled, some), -LABEL_MAX, LABEL_MAX).ravel()
        known = np.isfinite(label)
        rows.append(rows_of(filled, some, horizon_h, calendar)[known])
        labels.append(label[known])
    return np.concatenate(rows), np.concatenate(labels)
