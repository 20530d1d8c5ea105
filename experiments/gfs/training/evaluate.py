"""Forecasters judged beside each other on demand that none of them was trained on.

Rule: no training and no choice sees the last hours of the demand. Each model trains once, on what comes
before; at each origin of the test it sees the demand up to there and nothing else. Quantiles of
models that have none of their own (a value, DLinear) come from their errors alone, errors correct those of
the trees: at the start errors on the end of the training, made by a model that was not trained on it; then
those of the test as they are observed. The quantiles of OrgLinear and DeepAR stay as trained. Last week's
peak is a bound and stands for every level.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from cotenant.controller.papers.gfs import forecast
from cotenant.controller.papers.gfs.training.train import Effort, calibration_origins, fit_trees
from cotenant.controller.training import NoXGBoost
from experiments.gfs.training import naive
from experiments.gfs.training.scores import rolling, scores

LEVELS: Final = (0.5, 0.9, 0.95)
MODELS: Final[dict[str, str]] = {
    "xgboost-cqr": "quantile trees, set right by their errors as these are seen (the default)",
    "xgboost": "the same trees without that",
    "orglinear": "GFS's own model",
    "dlinear": "linear in trend and rest; quantiles from its errors",
    "deepar": "like DeepAR: an LSTM with normal outputs",
    "last-change": "last value + median hourly change of the hour (where nothing is trained)",
    "last-value": "last value; quantiles from its errors",
    "seasonal-naive": "the same hour of the day before; quantiles from its errors",
    "last-week-peak": "the highest of the last 168 hours, for every level",
}
"""The default first."""
NEEDS: Final = {
    "orglinear": "torch",
    "dlinear": "torch",
    "deepar": "torch",
    "xgboost-cqr": "xgboost",
    "xgboost": "xgboost",
}
SeriesAggregation = Literal["series", "pool", "paper"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyEffort(Effort):
    deepar_steps: int = 1200


FULL: Final = StudyEffort()

Ask = Callable[[forecast.Demand, forecast.Hours], forecast.Floats]
"""Raw quantiles of a trained model: shape (series, origins, hours ahead, LEVELS)."""


class Judged(forecast.Scores, frozen=True, kw_only=True):
    """The scores of one model. `train_cpu_s`: CPU seconds of all its trainings here; 0 where nothing is
    trained."""

    model: str
    train_cpu_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """The answers of one model at every origin of the test; quantiles as they would be used."""

    model: str
    quantiles: forecast.Floats
    train_cpu_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastEvaluation:
    names: tuple[str, ...]
    """Of the series, the total last where there are several."""
    origins: forecast.Hours
    truth: forecast.Floats
    """Shape (series, origins, hours ahead); NaN where unknown."""
    answers: tuple[Answers, ...]
    left_out: dict[str, str]
    """Model -> the missing library that it needs."""

    def judge(self, aggregation: SeriesAggregation = "series") -> tuple[Judged, ...]:
        return tuple(self._judge(each, aggregation) for each in self.answers)

    def part(
        self, answers: Answers, aggregation: SeriesAggregation
    ) -> tuple[forecast.Floats, forecast.Floats]:
        """Truth and quantiles of: every series; the total; the total, as the sum of the series' forecasts."""
        truth, said = self.truth, answers.quantiles
        if forecast.TOTAL not in self.names:
            return truth, said
        if aggregation == "pool":
            return truth[-1:], said[-1:]
        if aggregation == "paper":
            return truth[-1:], said[:-1].sum(axis=0, keepdims=True)
        return truth[:-1], said[:-1]

    def _judge(self, answers: Answers, aggregation: SeriesAggregation) -> Judged:
        truth, said = self.part(answers, aggregation)
        found = scores(truth, said[..., 0], said[..., 1], said[..., 2])
        return Judged(
            **msgspec.structs.asdict(found), model=answers.model, train_cpu_s=round(answers.train_cpu_s, 3)
        )


class TooFewHours(ValueError):
    """Not enough demand to train and to judge; the text says what there is and what is needed."""


def evaluate(
    demand: forecast.Demand,
    *,
    horizon_h: int,
    test_last_h: int,
    seed: int,
    models: Sequence[str] = tuple(MODELS),
    holidays: frozenset[int] = frozenset(),
    effort: StudyEffort = FULL,
    tell: Callable[[int, str], None] = lambda _done, _model: None,
) -> ForecastEvaluation:
    """Judge `models` (of MODELS) on the last hours of the demand.

    Raises:
        TooFewHours: nothing would be left to train on, or to judge.
    """
    demand = demand.demand_with_total()
    cut = demand.hours - test_last_h
    check_hours(demand, cut, horizon_h, test_last_h)
    calendar = forecast.Calendar.make(demand, holidays)
    study = _Study(demand, cut, horizon_h, seed, calendar, effort)
    answers, left_out = [], {}
    for done, model in enumerate(models):
        tell(done, model)
        try:
            answers.append(study.answers(model))
        except (ImportError, NoXGBoost):
            left_out[model] = NEEDS[model]
    tell(len(models), "")
    ahead = study.origins[:, None] + np.arange(1, horizon_h + 1)
    return ForecastEvaluation(
        names=demand.names,
        origins=study.origins,
        truth=demand.values[:, ahead],
        answers=tuple(answers),
        left_out=left_out,
    )


def check_hours(demand: forecast.Demand, cut: int, horizon_h: int, test_last_h: int) -> None:
    """Checks that the demand has enough known hours for training and test. Raises TooFewHours."""
    if test_last_h <= horizon_h:
        raise TooFewHours(f"a test of {test_last_h} h is no longer than the horizon of {horizon_h} h")
    known = int(demand.known_mask()[:, : max(cut, 0)].any(axis=0).sum())
    if known < forecast.HOURS_MIN:
        raise TooFewHours(
            f"{demand.hours} hours of demand; without the last {test_last_h} there are {known} known ones to "
            f"train on, and {forecast.HOURS_MIN} are needed"
        )
    for name, values in zip(demand.names, demand.known_mask(), strict=True):
        if not values[:cut].any() or not values[cut:].any():
            where = (
                f"before the last {test_last_h}" if not values[:cut].any() else f"in the last {test_last_h}"
            )
            raise TooFewHours(f"{name} has no known hour {where}")


class _Asked(NamedTuple):
    """Answers of one model: before the test (by a training that ends earlier) and in it, and CPU seconds of
    both."""

    before: forecast.Floats
    raw: forecast.Floats
    early_s: float
    late_s: float


class _Study:
    """A demand, cut in two, and how each kind of model is trained on the first part and asked about the
    other."""

    def __init__(
        self,
        demand: forecast.Demand,
        cut: int,
        horizon_h: int,
        seed: int,
        calendar: forecast.Calendar,
        effort: StudyEffort,
    ) -> None:
        self.demand, self.known = demand, demand.first(cut)
        self.horizon_h, self.seed, self.calendar, self.effort = horizon_h, seed, calendar, effort
        self.origins = np.arange(cut - 1, demand.hours - horizon_h)
        self.before = calibration_origins(cut, horizon_h)
        self._asked: dict[str, _Asked] = {}

    def answers(self, model: str) -> Answers:
        trained = NEEDED_BY.get(model, model)
        asked = self._asked.get(trained) or self._ask(trained)
        self._asked[trained] = asked
        if model in UNCORRECTED:
            return Answers(
                model=model, quantiles=forecast.order_quantiles(asked.raw, LEVELS), train_cpu_s=asked.late_s
            )
        quantiles = self._correct(asked.before, asked.raw)
        return Answers(model=model, quantiles=quantiles, train_cpu_s=asked.early_s + asked.late_s)

    def _ask(self, model: str) -> _Asked:
        fit = FITS.get(model)
        if fit is None:
            ask = self._naive_ask(NAIVE[model])
            return _Asked(ask(self.demand, self.before), ask(self.demand, self.origins), 0.0, 0.0)
        began_s = time.process_time()
        late = fit(self, self.known)
        late_s = time.process_time() - began_s
        raw = late(self.demand, self.origins)
        if model in UNCORRECTED:
            return _Asked(raw[:, :0], raw, 0.0, late_s)
        began_s = time.process_time()
        early = fit(self, self.demand.first(int(self.before[0]) + 1))
        early_s = time.process_time() - began_s
        return _Asked(early(self.demand, self.before), raw, early_s, late_s)

    def _naive_ask(self, function: naive.Naive) -> Ask:
        def ask(demand: forecast.Demand, origins: forecast.Hours) -> forecast.Floats:
            point = function(demand.fill_gaps(), origins, self.horizon_h)
            return np.repeat(point[..., None], len(LEVELS), axis=-1)

        return ask

    def trees(self, demand: forecast.Demand) -> Ask:
        fitted = fit_trees(demand, self.horizon_h, LEVELS, self.seed, self.calendar, self.effort)
        asker = forecast.Asker(fitted, self.horizon_h)

        def ask(demand: forecast.Demand, origins: forecast.Hours) -> forecast.Floats:
            each = [
                asker.quantiles(number, series, origins, self.calendar, LEVELS)
                for number, series in enumerate(demand.fill_gaps())
            ]
            return np.stack(each)

        return ask

    def linear(self, demand: forecast.Demand, *, organised: bool = True) -> Ask:
        from cotenant.controller.papers.gfs.training import linear

        weights = linear.fit(demand, self.horizon_h, self.seed, self.calendar, organised=organised)

        def ask(demand: forecast.Demand, origins: forecast.Hours) -> forecast.Floats:
            return np.stack(
                [self._forecast(weights, n, s, origins) for n, s in enumerate(demand.fill_gaps())]
            )

        return ask

    def _forecast(
        self, weights: forecast.LinearWeights, number: int, series: forecast.Floats, origins: forecast.Hours
    ) -> forecast.Floats:
        mean, spread = forecast.mean_and_spread(weights, number, series, origins, self.calendar)
        if spread is None:
            return np.repeat(mean[..., None], len(LEVELS), axis=-1)
        return forecast.gaussian(mean, spread, LEVELS)

    def deepar(self, demand: forecast.Demand) -> Ask:
        from experiments.gfs.training import deepar

        steps = self.effort.deepar_steps
        trained = deepar.fit(demand, self.horizon_h, self.seed, self.calendar, steps)
        return lambda demand, origins: trained.quantiles(
            demand, origins, self.horizon_h, LEVELS, self.calendar
        )

    def _correct(self, before: forecast.Floats, raw: forecast.Floats) -> forecast.Floats:
        """Corrects all levels but the median by errors as they are observed."""
        found = raw.copy()
        filled = self.demand.fill_gaps()
        for number, (values, series) in enumerate(zip(self.demand.values, filled, strict=True)):
            early, late = (
                _errors(values, series, origins, quantiles)
                for origins, quantiles in ((self.before, before[number]), (self.origins, raw[number]))
            )
            unit = forecast.units(series, self.origins)
            for ahead in range(self.horizon_h):
                for level in range(1, len(LEVELS)):
                    moved = rolling(late[:, ahead, level], ahead + 1, LEVELS[level], early[:, ahead, level])
                    found[number, :, ahead, level] += unit * moved
        return forecast.order_quantiles(found, LEVELS)


def _errors(
    values: forecast.Floats, series: forecast.Floats, origins: forecast.Hours, quantiles: forecast.Floats
) -> forecast.Floats:
    ahead = origins[:, None] + np.arange(1, quantiles.shape[1] + 1)
    errors: forecast.Floats = (values[ahead][..., None] - quantiles) / forecast.units(series, origins)[
        :, None, None
    ]
    return errors


NAIVE: Final[dict[str, naive.Naive]] = {
    "last-change": forecast.last_change,
    "last-value": forecast.last_value,
    "seasonal-naive": naive.seasonal,
    "last-week-peak": naive.last_week_peak,
}
FITS: Final[dict[str, Callable[[_Study, forecast.Demand], Ask]]] = {
    "trees": _Study.trees,
    "orglinear": _Study.linear,
    "dlinear": lambda study, demand: study.linear(demand, organised=False),
    "deepar": _Study.deepar,
}
NEEDED_BY: Final = {"xgboost-cqr": "trees", "xgboost": "trees"}
UNCORRECTED: Final = frozenset(("xgboost", "orglinear", "deepar", "last-week-peak"))
"""Their quantiles are taken as they are."""
