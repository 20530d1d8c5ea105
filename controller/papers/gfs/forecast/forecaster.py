"""A trained model in use: asked every hour, it learns from its own errors as soon as they are observed.

Rule: pure. The demand comes in, quantiles come out; the only memory is the errors so far, which `memory()`
gives back as a value. The median is the forecast and stays as the model made it;
the errors correct the other levels (`errors.py`), unless the model comes without any (OrgLinear as
published).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import numpy as np

from cotenant.controller.models.interference.forest import Forest
from cotenant.controller.papers.gfs.forecast import methods
from cotenant.controller.papers.gfs.forecast.demand import DAY_H, TOTAL, Calendar, Demand, Floats, Hours
from cotenant.controller.papers.gfs.forecast.errors import WINDOW, correction, enough, order_quantiles
from cotenant.controller.papers.gfs.forecast.model import ForecastModel, LastChange, QuantileTrees

Aggregation = Literal["pool", "paper"]
MEDIAN: Final = 0.5


class Asker:
    """A model's quantiles before any correction: of one series, at any origins."""

    def __init__(self, fitted: QuantileTrees | methods.LinearWeights | LastChange, horizon_h: int) -> None:
        self._fitted, self._horizon_h = fitted, horizon_h
        self._forests = (
            [Forest(trees, methods.COLUMNS) for trees in fitted.forests]
            if isinstance(fitted, QuantileTrees)
            else []
        )

    def quantiles(
        self,
        number: int | None,
        filled: Floats,
        origins: Hours,
        calendar: Calendar,
        levels: tuple[float, ...],
    ) -> Floats:
        """Shape (origins, hours ahead, levels).

        Args:
            number: of the series in the model; None: it was not there when the model was trained.
            filled: the series without gaps.
        """
        if self._forests:
            rows = methods.rows_of(filled, origins, self._horizon_h, calendar)
            each = [forest.predict(rows).reshape(self._horizon_h, -1).T for forest in self._forests]
            scaled = np.stack(each, axis=-1) * methods.units(filled, origins)[:, None, None]
            found: Floats = filled[origins][:, None, None] + scaled
            return found
        if isinstance(self._fitted, methods.LinearWeights) and number is not None:
            mean, spread = methods.mean_and_spread(self._fitted, number, filled, origins, calendar)
            assert spread is not None, "a document has it"
            return methods.gaussian(mean, spread, levels)
        point = methods.last_change(filled[None], origins, self._horizon_h)[0]
        return np.repeat(point[:, :, None], len(levels), axis=2)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast for the hours after `origin`. `quantiles`: shape (series, hours ahead, levels), in
    GPUs."""

    names: tuple[str, ...]
    origin: int
    levels: tuple[float, ...]
    quantiles: Floats
    note: str
    """A note for people: there is no trained model yet, or a series is new. Empty: none."""

    def pool_quantiles(self, aggregation: Aggregation = "pool") -> Floats:
        """Shape (hours ahead, levels): quantiles of the total, or the paper's sum of those of the
        organisations (eq. 9), which reserves for all of them peaking at once."""
        if TOTAL not in self.names:  # One series, or no hour of which all was known.
            return np.asarray(self.quantiles.sum(axis=0))
        at = self.names.index(TOTAL)
        summed = aggregation == "paper"
        found: Floats = np.delete(self.quantiles, at, axis=0).sum(axis=0) if summed else self.quantiles[at]
        return found


class MadeBefore(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast with some hour still to come. `raw`: by series, hours ahead, level."""

    origin: int
    names: tuple[str, ...]
    raw: list[list[list[float]]]
    unit: list[float]
    observed: int


class ForecasterMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What a forecaster has learned since its model was made."""

    newest: int = -1
    errors: tuple[tuple[str, int, int, list[float]], ...] = ()
    """Series, hours ahead, level."""
    made: tuple[MadeBefore, ...] = ()


class Forecaster:
    def __init__(self, model: ForecastModel) -> None:
        self.model = model
        self._asker = Asker(model.fitted, model.horizon_h)
        self._corrects = bool(model.errors) or isinstance(model.fitted, LastChange)
        self._errors: dict[tuple[str, int, int], deque[float]] = {}
        for name, by_ahead in zip(model.series, model.errors, strict=False):
            for ahead, by_level in enumerate(by_ahead):
                for level, errors in enumerate(by_level):
                    self._errors[name, ahead, level] = deque(errors, WINDOW)
        self._made: dict[int, _Made] = {}
        """By origin: forecasts with some hour still to come."""
        self._newest = -1

    def forecast(self, demand: Demand) -> Forecast:
        """The next hours after the last one of `demand`, which may have gaps, more series than the model
        knows, and another order of them."""
        demand = demand.demand_with_total()
        self._learn(demand)
        model, filled = self.model, demand.fill_gaps()
        origin = demand.first_hour + demand.hours - 1
        places = np.array([demand.hours - 1])
        calendar = Calendar.make(demand, model.holidays)
        numbers = {name: number for number, name in enumerate(model.series)}
        raw = np.concatenate(
            [
                self._asker.quantiles(numbers.get(name), series, places, calendar, model.levels)
                for name, series in zip(demand.names, filled, strict=True)
            ]
        )
        unit = np.array([methods.units(series, places)[0] for series in filled])
        if origin > self._newest:  # Asked again, it would count its errors again.
            self._made[origin], self._newest = _Made(demand.names, raw, unit), origin
        strangers = [name for name in demand.names if name not in numbers]
        return Forecast(
            names=demand.names,
            origin=origin,
            levels=model.levels,
            quantiles=self._correct(demand.names, raw, unit),
            note="; ".join(
                filter(None, (_note(model, strangers, demand.hours), self._too_few(demand.names)))
            ),
        )

    def memory(self) -> ForecasterMemory:
        """Returns the whole memory: a forecaster of the same model that `remembers` this memory goes on as
        this forecaster would."""
        return ForecasterMemory(
            newest=self._newest,
            errors=tuple((*key, list(errors)) for key, errors in sorted(self._errors.items())),
            made=tuple(
                MadeBefore(
                    origin=origin,
                    names=made.names,
                    raw=made.raw.tolist(),
                    unit=made.unit.tolist(),
                    observed=made.observed,
                )
                for origin, made in sorted(self._made.items())
            ),
        )

    def remember(self, memory: ForecasterMemory) -> None:
        self._newest = memory.newest
        self._errors = {
            (name, ahead, level): deque(errors, WINDOW) for name, ahead, level, errors in memory.errors
        }
        self._made = {}
        for each in memory.made:
            made = self._made[each.origin] = _Made(each.names, np.array(each.raw), np.array(each.unit))
            made.observed = each.observed

    def _too_few(self, names: tuple[str, ...]) -> str:
        """Which levels have too few errors to be corrected yet."""
        if not self._corrects:
            return ""
        last = self.model.horizon_h - 1
        count = min(
            len(self._errors.get((name, last, 0)) or self._errors_of_others(last, 0)) for name in names
        )
        levels = [f"{level:g}" for level in self.model.levels if not enough(count, level)]
        return f"too few errors yet for quantiles of {', '.join(levels)}" if levels else ""

    def _learn(self, demand: Demand) -> None:
        """Errors of hours that are known now; each counts once."""
        newest = demand.first_hour + demand.hours - 1
        kept = {*demand.names, *self.model.series}
        for gone in [key for key in self._errors if key[0] not in kept]:
            del self._errors[gone]  # Organisations come and go.
        for origin, made in list(self._made.items()):
            for number, name in enumerate(made.names):
                if name not in demand.names:
                    continue
                values = demand.values[demand.names.index(name)]
                for ahead in range(made.observed, min(self.model.horizon_h, newest - origin)):
                    place = origin + ahead + 1 - demand.first_hour
                    if place < 0 or not np.isfinite(values[place]):
                        continue
                    off = (values[place] - made.raw[number, ahead]) / made.unit[number]
                    for level, error in enumerate(off.tolist()):
                        self._errors.setdefault((name, ahead, level), deque(maxlen=WINDOW)).append(error)
            made.observed = max(made.observed, min(self.model.horizon_h, newest - origin))
            if made.observed >= self.model.horizon_h:
                del self._made[origin]

    def _correct(self, names: tuple[str, ...], raw: Floats, unit: Floats) -> Floats:
        found = raw.copy()
        for level, wanted in enumerate(self.model.levels):
            if wanted == MEDIAN or not self._corrects:
                continue
            for ahead in range(self.model.horizon_h):
                for number, name in enumerate(names):
                    errors = self._errors.get((name, ahead, level)) or self._errors_of_others(ahead, level)
                    found[number, ahead, level] += unit[number] * correction(np.array(errors), wanted)
        return order_quantiles(found, self.model.levels)

    def _errors_of_others(self, ahead: int, level: int) -> list[float]:
        """The others' errors, for a series that has none of its own yet."""
        return [
            error
            for (_, step, at), errors in self._errors.items()
            if (step, at) == (ahead, level)
            for error in errors
        ]


class _Made:
    """A forecast as it was made, and how many of its hours have been compared with the truth."""

    __slots__ = ("names", "observed", "raw", "unit")

    def __init__(self, names: tuple[str, ...], raw: Floats, unit: Floats) -> None:
        self.names, self.raw, self.unit, self.observed = names, raw, unit, 0


def _note(model: ForecastModel, strangers: list[str], hours: int) -> str:
    if isinstance(model.fitted, LastChange):
        if hours <= methods.CHANGE_DAYS_MIN * DAY_H:
            return f"{model.fitted.why}, and less than a week is known: the last value"
        return f"{model.fitted.why}: last value + median hourly change of the hour"
    if strangers and isinstance(model.fitted, methods.LinearWeights):
        shown = ", ".join(strangers[:3]) + (", ..." if len(strangers) > 3 else "")
        return f"not in the training: {shown}: last value + median hourly change of the hour"
    return ""
