"""A trained forecaster as a document: who trains one writes it, and the controller reads it.

Rule: bytes from elsewhere are bounded and checked before anything is done with them; one that is damaged, of
another version or contradicts itself is refused in one line. The same training gives the same bytes.
"""

from __future__ import annotations

import hashlib
import math
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import msgspec

from cotenant.controller.models.interference.forest import Forest
from cotenant.controller.papers.gfs.forecast.demand import DAY_H
from cotenant.controller.papers.gfs.forecast.errors import WINDOW
from cotenant.controller.papers.gfs.forecast.methods import COLUMNS, HORIZON_H_MAX, LinearWeights
from cotenant.controller.performance import Trees
from cotenant.controller.wire import BadMessage, decode_json

FORECAST_SCHEMA: Final = "forecast-model/1"
HOURS_MIN: Final = 14 * DAY_H
"""Hours of known demand; with fewer nothing is trained."""
BYTES_MAX: Final = 32 * 1024 * 1024
SERIES_MAX: Final = 2_001
"""Including the total."""
ERRORS_MAX: Final = 2_000_000
"""Errors in a document: with many hundreds of series each has fewer of them."""
LEVELS: Final = (0.5, 0.8, 0.9, 0.95)
"""The median is the forecast; the others are the guarantees that policies ask for."""

ErrorTable = tuple[tuple[tuple[tuple[float, ...], ...], ...], ...]
"""By series, hours ahead and level."""


class QuantileTrees(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="trees"):
    """A forest per level; its rows are those of `rows_of`."""

    columns: int
    forests: tuple[Trees, ...]


class LastChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="last-change"):
    """The model where nothing was trained: last value + median hourly change of the hour."""

    why: str
    """For people: what is missing."""


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of a forecast in GPUs, but for `mape` and coverage, which are shares. Null where nothing can
    be said."""

    mae: float
    rmse: float
    mape: float | None
    """Over the hours with demand."""
    pinball_90: float
    pinball_95: float
    coverage_90: float
    """The share of hours at or below the .9 quantile."""
    coverage_95: float


class ForecastCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a model comes from, and how good its kind was on hours that were kept out. The model itself was
    then trained on all hours."""

    file: str
    """Of the demand."""
    sha256: str
    licence: str
    """Of the demand."""
    test_last_h: int
    """The last so many hours were kept out of a training, and judged."""
    scores: Scores
    last_value: Scores
    """The scores of the last value on the same hours."""


class ForecastModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal["forecast-model/1"] = FORECAST_SCHEMA
    fitted: QuantileTrees | LinearWeights | LastChange
    series: tuple[str, ...]
    """In order; the last is the total where there are several."""
    horizon_h: int
    levels: tuple[float, ...] = LEVELS
    dated: bool
    holidays: tuple[int, ...] = ()
    """Days from 1970-01-01, of the training and of the year to come."""
    errors: ErrorTable
    """Per series, hours ahead and level: made on hours that the training had left out, oldest first, in units
    of the series' hourly change; empty where the model is not corrected."""
    hours: int
    """Hours of demand that it was trained on."""
    last_hour: int
    """The last hour of that demand."""
    seed: int
    made_by: str
    card: ForecastCard | None = None
    """None: the controller trained it on its own demand."""

    @property
    def kind(self) -> str:
        """The kind of the model, as `trainer=` names it."""
        names = {QuantileTrees: "xgboost-cqr", LinearWeights: "orglinear", LastChange: "last-change"}
        return names[type(self.fitted)]

    def __post_init__(self) -> None:
        if not 1 <= len(self.series) <= SERIES_MAX or len(set(self.series)) != len(self.series):
            raise ValueError(f"a model needs 1 to {SERIES_MAX} series, each once")
        if not 1 <= self.horizon_h <= HORIZON_H_MAX:
            raise ValueError(f"a horizon is 1 to {HORIZON_H_MAX} hours, not {self.horizon_h}")
        if not self.levels or not all(0 < level < 1 for level in self.levels):
            raise ValueError("levels lie between 0 and 1")
        if any(a >= b for a, b in pairwise(self.levels)) or 0.5 not in self.levels:
            raise ValueError("levels rise, and the median is one of them")
        self._check_errors()
        match self.fitted:
            case QuantileTrees(columns=columns, forests=forests):
                if columns != COLUMNS or len(forests) != len(self.levels):
                    raise ValueError(
                        f"{len(forests)} forests of {columns} columns; this version reads "
                        f"{len(self.levels)} of {COLUMNS}"
                    )
            case LinearWeights(deviations=deviations, cycle=cycle, spread=spread):
                if len(deviations) != len(self.series) or len(cycle) != self.horizon_h or not spread:
                    raise ValueError("the weights are not those of these series and hours ahead")

    def _check_errors(self) -> None:
        if not self.errors:
            return
        tables = [levels for aheads in self.errors for levels in aheads]
        if (
            len(self.errors) != len(self.series)
            or any(len(aheads) != self.horizon_h for aheads in self.errors)
            or any(len(levels) != len(self.levels) for levels in tables)
        ):
            raise ValueError("errors must be given per series, hours ahead and level")
        if not all(math.isfinite(error) for levels in tables for errors in levels for error in errors):
            raise ValueError("an error is not a finite number")


def errors_kept(series: int, horizon_h: int, levels: int, errors_max: int = ERRORS_MAX) -> int:
    """How many errors of each series, hours ahead and level fit into a document."""
    return max(1, min(WINDOW, errors_max // (series * horizon_h * levels)))


class ForecastModelProblem(ValueError):
    """Bytes that are no usable model; the text says why, in one line."""


class _Tag(msgspec.Struct):
    schema: str


def write(model: ForecastModel) -> bytes:
    return msgspec.json.encode(model) + b"\n"


def read(data: bytes, name: str) -> ForecastModel:
    """The model in a file's bytes.

    Raises:
        ForecastModelProblem: no JSON, no model, of another version, or with numbers that contradict each
        other.
    """
    if len(data) > BYTES_MAX:
        raise ForecastModelProblem(f"{name}: more than {BYTES_MAX} bytes; is it a forecast model?")
    try:
        tag: _Tag = decode_json(data, _Tag, bytes_max=BYTES_MAX)
    except BadMessage as error:
        raise ForecastModelProblem(f"{name}: not a forecast model ({error}); train it again") from None
    if tag.schema != FORECAST_SCHEMA:
        kind, _, version = tag.schema.partition("/")
        newer = kind == FORECAST_SCHEMA.partition("/")[0] and version.isdecimal()
        hint = "upgrade cotenant" if newer else "train it again"
        text = f"{name}: its schema is {tag.schema!r}, this version reads {FORECAST_SCHEMA!r}; {hint}"
        raise ForecastModelProblem(text)
    try:
        model: ForecastModel = decode_json(data, ForecastModel, bytes_max=BYTES_MAX)
        if isinstance(model.fitted, QuantileTrees):
            for trees in model.fitted.forests:
                Forest(trees, COLUMNS)
    except ValueError as error:  # BadMessage is one.
        raise ForecastModelProblem(f"{name}: a damaged forecast model: {error}") from None
    return model


class ModelFile(NamedTuple):
    """A model, and which file it was."""

    model: ForecastModel
    name: str
    sha256: str


def read_model_file(path: str) -> ModelFile:
    """Reads the forecast model in a file.

    Raises:
        ForecastModelProblem: the file cannot be read, or holds no usable model.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ForecastModelProblem(f"{path} cannot be read: {error.strerror}") from None
    return ModelFile(read(data, path), path.rpartition("/")[2], hashlib.sha256(data).hexdigest())
