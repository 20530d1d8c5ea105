"""The demand of hp jobs in the next hours, as GFS's estimator is asked by the quota (section 3.3.1).

Rule: asked once an hour, with whole hours; what it has learned is a value. Until it is given a trained model
it is last value + median hourly change of the hour, set right by its own errors, and says so. A promise that
begins in mid-hour touches H + 1 hours, and the whole hours known end with the one before: so H + 1 are asked
for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from cotenant.controller.policies.gfs.demand import DemandHistory
from cotenant.controller.policies.gfs.parameters import GfsParameters

if TYPE_CHECKING:
    from cotenant.controller.models.forecast import Forecaster

DAY_H: Final = 24
WEEK_H: Final = 168
UNTRAINED: Final = "no model was trained"
WHOLE: Final = "total"


class PoolForecast(msgspec.Struct, frozen=True, kw_only=True):
    """Of devices of one type; in devices, by hours ahead."""

    reserved: float
    """What eq. 9 takes from the capacity: the sum over organisations of the highest quantile."""
    median: list[float]
    upper: list[float]
    """The quantile p of the total."""
    note: str


class DemandForecaster:
    """One forecaster per type."""

    def __init__(self, parameters: GfsParameters) -> None:
        self._parameters = parameters
        self._forecasters: dict[str, Forecaster] = {}

    def forecast(self, history: DemandHistory) -> dict[str, PoolForecast]:
        """After the last whole hour."""
        if self._parameters.estimator == "last-week-peak":
            return {type: self._peak(series) for type, series in sorted(history.hours.items())}
        return {type: self._ask(type, history) for type in sorted(history.hours)}

    def _peak(self, series: dict[str, list[int]]) -> PoolForecast:
        """GFS-e: what each organisation asked for at most in the last week."""
        peak = float(sum(max(hours[-WEEK_H:], default=0) for hours in series.values()))
        ahead = self._parameters.hours + 1
        return PoolForecast(
            reserved=peak, median=[peak] * ahead, upper=[peak] * ahead, note="peak of the last week"
        )

    def _ask(self, type: str, history: DemandHistory) -> PoolForecast:
        import numpy as np  # For those who use it.

        from cotenant.controller.models.forecast import Demand

        series = history.hours[type]
        names = tuple(sorted(series))
        values = np.array([series[name] for name in names], np.float64)
        if values.shape[1] < DAY_H:
            last, ahead = float(values[:, -1].sum()), self._parameters.hours + 1
            note = "less than a day of demand is known: the last value"
            return PoolForecast(reserved=last, median=[last] * ahead, upper=[last] * ahead, note=note)
        demand = Demand(names=names, values=values, first_hour=history.hour - values.shape[1])
        found = self._forecaster(type).forecast(demand)
        p = found.levels.index(self._parameters.p)
        middle = found.levels.index(0.5)
        total = found.of_pool("pool")
        of_each = [
            row
            for name, row in zip(found.names, found.quantiles, strict=True)
            if name != WHOLE or len(names) == 1
        ]
        paper = float(sum(row[:, p].max() for row in of_each))
        return PoolForecast(
            reserved=paper if self._parameters.aggregation == "paper" else float(total[:, p].max()),
            median=total[:, middle].tolist(),
            upper=total[:, p].tolist(),
            note=found.note,
        )

    def _forecaster(self, type: str) -> Forecaster:
        if type not in self._forecasters:
            from cotenant.controller.models.forecast import Forecaster, ForecastModel, LastChange

            levels = tuple(sorted({0.5, self._parameters.p}))
            model = ForecastModel(
                fitted=LastChange(why=UNTRAINED),
                series=(WHOLE,),
                horizon_h=self._parameters.hours + 1,
                levels=levels,
                dated=False,
                errors=(),
                hours=0,
                last_hour=0,
                seed=0,
                made_by="gfs",
            )
            self._forecasters[type] = Forecaster(model)
        return self._forecasters[type]

    def save(self) -> bytes:
        memories = {type: each.memory() for type, each in sorted(self._forecasters.items())}
        return msgspec.msgpack.encode(memories)

    def load(self, state: bytes) -> None:
        from cotenant.controller.models.forecast import ForecasterMemory

        for type, memory in msgspec.msgpack.decode(state, type=dict[str, ForecasterMemory]).items():
            self._forecaster(type).remember(memory)
