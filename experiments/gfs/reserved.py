"""By how much eq. 9 reserves more than hp jobs then ask for: by organisation, or with one quantile of all."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cotenant.controller.models.forecast import Demand, Floats, Forecaster, ForecastModel, LastChange
from cotenant.controller.sim import synthesise_spot
from experiments.gfs.scheduling_runs import HOSTS

DAYS, HORIZON_H = 28, 2
"""A guaranteed hour that begins in mid-hour touches two."""


class Excess(NamedTuple):
    """Reserved / asked for at most in the hours ahead, less 1: means over hours."""

    day_2: float
    after_two_weeks: float


class Reserved(NamedTuple):
    organisations: int
    by_organisation: Excess
    of_the_total: Excess
    peak: float
    """Mean hourly peak of hp demand / GPUs of the cluster."""


def reserved(seed: int = 0) -> Reserved:
    """Of the generated hp demand, forecast as `gfs` does before a model is trained."""
    demand = hourly_peaks(seed)
    total = demand.sum(axis=0)
    return Reserved(
        len(demand),
        excess(demand, total),
        excess(total[np.newaxis], total),
        float(total.mean()) / (8 * HOSTS),
    )


def hourly_peaks(seed: int) -> Floats:
    """Hp demand, granted or not; shape (organisations, hours)."""
    trace = synthesise_spot(seed=seed, days=DAYS, spot_scale=0.0)
    found = np.zeros((len(trace.organisation.names), DAYS * 24))
    for number in range(len(found)):
        mine = trace.hp & (trace.organisation.codes == number)
        begins, gpus = trace.submit_s[mine], trace.gpus[mine]
        at_s = np.concatenate((begins, begins + trace.duration_s[mine]))
        change = np.concatenate((gpus, -gpus))
        order = np.lexsort((change, at_s))
        at_s, level = at_s[order], np.cumsum(change[order])
        for hour in range(DAYS * 24):
            first, after = np.searchsorted(at_s, (hour * 3600.0, (hour + 1) * 3600.0))
            found[number, hour] = level[max(first - 1, 0) : max(after, 1)].max(initial=0.0)
    return found


def excess(demand: Floats, total: Floats) -> Excess:
    """Of the sum of each row's highest .9 quantile over the highest total."""
    model = ForecastModel(
        fitted=LastChange(why=""), series=("total",), horizon_h=HORIZON_H, levels=(0.5, 0.9), dated=False,
        errors=(), hours=0, last_hour=0, seed=0, made_by="reserved",
    )  # fmt: skip
    forecaster, names, over = Forecaster(model), tuple(f"row{n}" for n in range(len(demand))), []
    for hour in range(24, DAYS * 24 - HORIZON_H):
        known = Demand(names=names, values=demand[:, : hour + 1], first_hour=0, dated=False)
        highest = forecaster.forecast(known).quantiles[: len(demand), :, 1].max(axis=1).sum()
        over.append(highest / total[hour + 1 : hour + 1 + HORIZON_H].max() - 1.0)
    return Excess(float(np.mean(over[:24])), float(np.mean(over[13 * 24 :])))
