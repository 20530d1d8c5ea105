"""Made-up hourly demand: a day's and a week's rhythm, noise, and gaps where asked for."""

from __future__ import annotations

import numpy as np

from cotenant.controller.papers.gfs.forecast import DAY_H, WEEK_H, Demand


def rhythmic(hours: int, seed: int, *, series: int = 2, missing: float = 0.0, dated: bool = False) -> Demand:
    drawn = np.random.default_rng(seed)
    at = np.arange(hours)
    values = np.empty((series, hours))
    for number in range(series):
        level = 30.0 * (number + 1)
        day = np.sin(2 * np.pi * (at % DAY_H) / DAY_H + number)
        week = (at % WEEK_H >= 5 * DAY_H) * -0.2
        values[number] = level * (1 + 0.3 * day + week) + drawn.normal(0, 0.05 * level, hours)
    values = np.maximum(values, 0.0)
    if missing:
        values[drawn.random(values.shape) < missing] = np.nan
    first = 475_000 if dated else 0
    return Demand(
        names=tuple(f"team-{n}" for n in range(series)), values=values, first_hour=first, dated=dated
    )
