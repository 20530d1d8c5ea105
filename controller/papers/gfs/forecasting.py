"""The demand of hp jobs in the next hours, for the quota (GFS's estimator, section 3.3.1); and when a model
of it is trained anew: once a day per device type, on the controller's own hours.

Rule: the quota asks once an hour, with whole hours; what the forecaster has learned is a value. The model of
a file (`model=`) is asked about every type; else each type has the newest one that was trained on its own
hours. Where there is none, the forecast is the last value + the median change of that hour, corrected by its
own errors, and its note says so. A promise that begins in mid-hour touches H + 1 hours, and the whole hours
known end with the one before: so H + 1 are asked for.

Rule: a `Compute` action asks for a training, a `Computed` event with the whole model answers: both are in the
journal, so that a restart loses neither the model nor a training that is under way. One at a time. An answer
without a model leaves the one before in force, and says why.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cotenant.controller.domain import Compute, because
from cotenant.controller.papers.gfs.demand import DemandHistory
from cotenant.controller.papers.gfs.parameters import GfsParameters

if TYPE_CHECKING:
    from cotenant.controller.papers.gfs.forecast import Demand, Forecaster, ForecastModel, ModelFile


REASON: Final = "forecast-training"
FIRST_REQUEST: Final = 1_000_000_000
"""A policy below counts its own requests upwards from 1. To this the second is added, so that a policy that
is set anew does not take an answer to the one before for its own."""
HOURS_MIN: Final = 336
"""As `models.forecast.HOURS_MIN`, which brings numpy."""


class Retraining(msgspec.Struct, kw_only=True):
    """The state of the trainings by device type, as a value."""

    requests: int = 0
    """The number of the last request."""
    pending: int = 0
    """The number of the request that is not answered yet; 0: none."""
    pending_type: str = ""
    asked_hour: dict[str, int] = {}
    """Type -> hour of its last request."""
    failed: dict[str, str] = {}
    """Why the last training gave no model."""

    def due(self, history: DemandHistory, every_h: int) -> str | None:
        """The device type whose training is due."""
        if self.pending or not every_h:
            return None
        for type in sorted(history.hours):
            last = self.asked_hour.get(type)
            is_due = last is None or history.hour - last >= every_h
            if is_due and known_hours(history, type) >= HOURS_MIN:
                return type
        return None

    def request(
        self, history: DemandHistory, began_hour: int, now_s: float, parameters: GfsParameters
    ) -> Compute | None:
        """The request to make now, if any."""
        type = self.due(history, parameters.retrain_h)
        if type is None:
            return None
        from cotenant.controller.papers.gfs.forecast import RETRAINING_KIND, training_request

        demand = demand_of(history, type, began_hour)
        payload = training_request(
            demand,
            horizon_h=parameters.hours + 1,
            levels=parameters.levels,
            trainer=parameters.trainer,
            country=parameters.holidays,
        )
        number = max(self.requests + 1, FIRST_REQUEST + int(now_s))
        reason = because(REASON, parameters.trainer, type, demand.hours)
        return Compute(request_id=number, kind=RETRAINING_KIND, payload=payload, reason=reason)

    def was_asked(self, action: Compute, type: str, hour: int) -> None:
        self.requests = self.pending = action.request_id
        self.pending_type = type
        self.asked_hour[type] = hour

    def was_answered(self, why_not: str) -> None:
        """Notes the answer to the pending request. `why_not` is empty: the answer gave a model."""
        if why_not:
            self.failed[self.pending_type] = why_not
        else:
            self.failed.pop(self.pending_type, None)
        self.pending, self.pending_type = 0, ""

    def note(self, history: DemandHistory, type: str, parameters: GfsParameters) -> str:
        """What people should know of trainings; empty: nothing."""
        if why := self.failed.get(type):
            return f"the last training gave no model: {why}"
        if not parameters.retrain_h:
            return "no trainings are asked for (retrain_h=0)"
        if (known := known_hours(history, type)) < HOURS_MIN:
            return f"{known} of {HOURS_MIN} hours of demand are known that a training needs"
        return "its training is under way" if self.pending_type == type else ""


def known_hours(history: DemandHistory, type: str) -> int:
    return max(map(len, history.hours.get(type, {}).values()), default=0)


def demand_of(history: DemandHistory, type: str, began_hour: int) -> Demand:
    """All whole hours that are known; with dates if the date of the journal's beginning is known."""
    import numpy as np  # For those who use it.

    from cotenant.controller.papers.gfs.forecast import Demand

    series = history.hours[type]
    names = tuple(sorted(series))
    values = np.array([series[name] for name in names], np.float64)
    first_hour = began_hour + history.hour - values.shape[1]
    return Demand(names=names, values=values, first_hour=first_hour, dated=began_hour > 0)


DAY_H: Final = 24
WEEK_H: Final = 168
UNTRAINED: Final = "no model was trained"
WHOLE: Final = "total"


class PoolForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast for one type of device; in devices, by hours ahead."""

    reserved: float
    """What eq. 9 takes from the capacity: the sum over organisations of the highest quantile."""
    median: list[float]
    upper: list[float]
    """The quantile p of the total."""
    note: str
    model: str = ""
    """The trained model that made it; empty: none."""
    since_s: float = 0.0
    """When that model began to forecast."""


class TrainedForecast(msgspec.Struct, frozen=True, kw_only=True):
    """What is saved of one type's forecaster."""

    memory: Any = None
    """`ForecasterMemory`, as msgpack has it; None: nothing was forecast yet."""
    document: bytes = b""
    """The model that the controller trained; empty: there is none, or it comes from a file."""
    sha256: str = ""
    """Identifies the model to which the memory belongs; empty: none was trained."""
    since_s: float = 0.0


class DemandForecaster:
    """The forecasters of demand, one per device type."""

    def __init__(self, parameters: GfsParameters) -> None:
        """Reads the model of the parameters, where they name one.

        Raises:
            ValueError: the model of the parameters cannot be read, or does not suit them.
        """
        self._parameters = parameters
        self._given = _read_model(parameters) if parameters.model else None
        self._forecasters: dict[str, Forecaster] = {}
        self._kept: dict[str, TrainedForecast] = {}

    def forecast(self, history: DemandHistory, now_s: float, began_hour: int = 0) -> dict[str, PoolForecast]:
        """After the last whole hour. `began_hour`: from 1970 to the history's first; 0: not known."""
        if self._parameters.estimator == "last-week-peak":
            return {type: self._peak(series) for type, series in sorted(history.hours.items())}
        return {type: self._ask(type, history, now_s, began_hour) for type in sorted(history.hours)}

    def use(self, type: str, document: bytes, now_s: float) -> None:
        """Forecasts from now on with a model that was trained on the hours of this type.

        Raises:
            ForecastModelProblem: the model is damaged, or does not suit.
        """
        from cotenant.controller.papers.gfs.forecast import Forecaster, unpack_model

        model = unpack_model(document, "the trained model")
        check_suits(model, "the trained model", self._parameters)
        self._forecasters[type] = Forecaster(model)
        sha256 = hashlib.sha256(document).hexdigest()
        self._kept[type] = TrainedForecast(document=document, sha256=sha256, since_s=now_s)

    def _peak(self, series: dict[str, list[int]]) -> PoolForecast:
        """Forecasts as GFS-e does: what each organisation asked for at most in the last week."""
        peak = float(sum(max(hours[-WEEK_H:], default=0) for hours in series.values()))
        ahead = self._parameters.hours + 1
        return PoolForecast(
            reserved=peak, median=[peak] * ahead, upper=[peak] * ahead, note="peak of the last week"
        )

    def _ask(self, type: str, history: DemandHistory, now_s: float, began_hour: int) -> PoolForecast:
        ahead = self._parameters.hours + 1
        if known_hours(history, type) < DAY_H:
            last = float(sum(hours[-1] for hours in history.hours[type].values()))
            then = f", then {self._given.name}" if self._given is not None else ""
            note = f"less than a day of demand is known: the last value{then}"
            return PoolForecast(reserved=last, median=[last] * ahead, upper=[last] * ahead, note=note)
        demand = demand_of(history, type, began_hour)
        found = self._forecaster(type, now_s).forecast(demand)
        p = found.levels.index(self._parameters.p)
        middle = found.levels.index(0.5)
        total = found.pool_quantiles("pool")[:ahead]
        of_each = [
            row[:ahead]
            for name, row in zip(found.names, found.quantiles, strict=True)
            if name != WHOLE or len(demand.names) == 1
        ]
        paper = float(sum(row[:, p].max() for row in of_each))
        return PoolForecast(
            reserved=paper if self._parameters.aggregation == "paper" else float(total[:, p].max()),
            median=total[:, middle].tolist(),
            upper=total[:, p].tolist(),
            note=found.note,
            model=self._label(type),
            since_s=self._kept[type].since_s,
        )

    def _label(self, type: str) -> str:
        """Which trained model it is; empty: none."""
        kept, model = self._kept[type], self._forecasters[type].model
        if not kept.sha256:
            return ""
        if self._given is None:
            return f"{model.kind}, trained here on the last {model.hours} hours"
        of = model.card.file if model.card is not None else "demand"
        return f"{model.kind} of {self._given.name}, trained on {model.hours} hours of {of}"

    def _forecaster(self, type: str, now_s: float) -> Forecaster:
        if type not in self._forecasters:
            from cotenant.controller.papers.gfs.forecast import Forecaster

            model = self._given.model if self._given is not None else self._untrained_model()
            sha256 = self._given.sha256 if self._given is not None else ""
            self._forecasters[type] = Forecaster(model)
            self._kept[type] = TrainedForecast(sha256=sha256, since_s=now_s)
        return self._forecasters[type]

    def _untrained_model(self) -> ForecastModel:
        from cotenant.controller.papers.gfs.forecast import ForecastModel, LastChange

        return ForecastModel(
            fitted=LastChange(why=UNTRAINED),
            series=(WHOLE,),
            horizon_h=self._parameters.hours + 1,
            levels=self._parameters.levels,
            dated=False,
            errors=(),
            hours=0,
            last_hour=0,
            seed=0,
            made_by="gfs",
        )

    # --- Remembering -------------------------------------------------------------------------------

    def save(self) -> bytes:
        kept = {
            type: msgspec.structs.replace(self._kept[type], memory=each.memory())
            for type, each in sorted(self._forecasters.items())
        }
        return msgspec.msgpack.encode(kept)

    def load(self, state: bytes) -> None:
        for type, kept in msgspec.msgpack.decode(state, type=dict[str, TrainedForecast]).items():
            self._load(type, kept)

    def _load(self, type: str, kept: TrainedForecast) -> None:
        """Restores the memory of the forecaster of one type; what was learned with another model is
        dropped."""
        from cotenant.controller.papers.gfs.forecast import ForecasterMemory

        if kept.document and self._given is None:
            self.use(type, kept.document, kept.since_s)
        forecaster = self._forecaster(type, kept.since_s)
        if self._kept[type].sha256 == kept.sha256:
            self._kept[type] = msgspec.structs.replace(self._kept[type], since_s=kept.since_s)
            forecaster.remember(msgspec.convert(kept.memory, ForecasterMemory))


def _read_model(parameters: GfsParameters) -> ModelFile:
    """Reads the model file that the parameters name. Raises ForecastModelProblem."""
    from cotenant.controller.papers.gfs.forecast import read_model_file

    found = read_model_file(parameters.model)
    check_suits(found.model, parameters.model, parameters)
    return found


def check_suits(model: ForecastModel, name: str, parameters: GfsParameters) -> None:
    """Checks that a model suits the parameters. Raises ForecastModelProblem: the model does not say what the
    quota asks."""
    from cotenant.controller.papers.gfs.forecast import ForecastModelProblem

    ahead = parameters.hours + 1
    if model.horizon_h < ahead:
        raise ForecastModelProblem(
            f"{name}: looks {model.horizon_h} h ahead; hours={parameters.hours} needs {ahead}: train it with "
            f"--horizon-h {ahead}"
        )
    if parameters.p not in model.levels:
        levels = ", ".join(f"{level:g}" for level in model.levels)
        raise ForecastModelProblem(
            f"{name}: has quantiles of {levels}, and p={parameters.p:g} is none of them"
        )
