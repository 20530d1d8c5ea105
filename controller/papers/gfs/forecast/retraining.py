"""A policy's request for a forecaster, with the answer, both as the journal holds them.

Rule: the journal holds the question and the whole model, so that recovery needs no training and no file. Both
are bounded: one entry must stay far below what a message may be. With more series than a question holds it
asks about the largest, and about all others together.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from cotenant.controller.papers.gfs.forecast.demand import MONTH_H, Demand
from cotenant.controller.papers.gfs.forecast.model import (
    BYTES_MAX,
    ForecastModel,
    ForecastModelProblem,
    read,
    write,
)
from cotenant.controller.wire import Payload, decode_json

RETRAINING_KIND: Final = "forecast-train"
SERIES_ASKED_MAX: Final = 60
OTHERS: Final = "(others)"
PACKED_BYTES_MAX: Final = 2 * 1024 * 1024
TrainerName = Literal["xgboost-cqr", "orglinear"]


class TrainingQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for a model of this demand."""

    names: tuple[str, ...]
    values: list[float]
    """Series after series, hour after hour."""
    first_hour: int
    dated: bool
    horizon_h: int
    levels: list[float]
    trainer: TrainerName
    country: str = ""
    """Whose holidays are known; empty: none."""

    def __post_init__(self) -> None:
        if not self.names or len(self.values) % len(self.names):
            raise ValueError(f"{len(self.values)} hours do not belong to {len(self.names)} series")
        if not all(map(math.isfinite, self.values)):
            raise ValueError("an hour's demand is no number")

    @property
    def demand(self) -> Demand:
        values = np.array(self.values, np.float64).reshape(len(self.names), -1)
        return Demand(names=self.names, values=values, first_hour=self.first_hour, dated=self.dated)


def training_request(
    demand: Demand, *, horizon_h: int, levels: Sequence[float], trainer: TrainerName, country: str
) -> Payload:
    """The question as a payload; it holds no more than the last four weeks."""
    values = demand.values[:, -MONTH_H:]
    first_hour = demand.first_hour + demand.hours - values.shape[1]
    names, values = _largest(demand.names, values)
    return {
        "names": json.dumps(names),
        "values": values.ravel().tolist(),
        "first_hour": first_hour,
        "dated": int(demand.dated),
        "horizon_h": horizon_h,
        "levels": list(levels),
        "trainer": trainer,
        "country": country,
    }


def _largest(names: tuple[str, ...], values: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    if len(names) <= SERIES_ASKED_MAX:
        return names, values
    order = sorted(range(len(names)), key=lambda at: (names[at] == OTHERS, -values[at].sum(), names[at]))
    kept, rest = order[: SERIES_ASKED_MAX - 1], order[SERIES_ASKED_MAX - 1 :]
    together = values[rest].sum(axis=0, keepdims=True)
    return (*(names[at] for at in kept), OTHERS), np.vstack((values[kept], together))


def question_in(payload: Payload) -> TrainingQuestion:
    """Reads the training question in `payload`. Raises ValueError: the payload holds none."""
    names: tuple[str, ...] = decode_json(str(payload.get("names", "")).encode(), tuple[str, ...])
    return msgspec.convert({**payload, "names": names}, TrainingQuestion, strict=False)


def pack_model(model: ForecastModel) -> bytes:
    """Packs a model for a journal. Raises ForecastModelProblem: the model is too large to be kept in a
    journal."""
    data = zlib.compress(write(model), 6)
    if len(data) > PACKED_BYTES_MAX:
        raise ForecastModelProblem(f"a model of {len(data)} bytes is larger than {PACKED_BYTES_MAX}")
    return data


def unpack_model(document: bytes, name: str) -> ForecastModel:
    """Unpacks the forecast model in `document`. Raises ForecastModelProblem."""
    if len(document) > PACKED_BYTES_MAX:
        raise ForecastModelProblem(f"{name}: {len(document)} bytes are more than {PACKED_BYTES_MAX}")
    try:
        data = zlib.decompressobj().decompress(document, BYTES_MAX)
    except zlib.error as error:
        raise ForecastModelProblem(f"{name}: not a packed forecast model ({error})") from None
    return read(data, name)
