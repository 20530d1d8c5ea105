"""Forecasters judged on the shared hourly demand, a seed at a time; kept in experiments/.cache/gfs-forecast/.

Rule: the last 28 days of the file are the test. What the models' settings were chosen on ends before them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, get_args

import msgspec
import numpy as np

from cotenant.controller.papers.gfs.forecast import DAY_H, MONTH_H
from experiments.gfs.training import (
    Answers,
    ForecastEvaluation,
    Judged,
    SeriesAggregation,
    evaluate,
    read,
)
from experiments.shared import paths
from experiments.shared.kept_runs import keep

CACHE: Final = paths.CACHE / "gfs-forecast"
SEEDS: Final = (0, 1, 2, 3, 4)
HORIZON_H: Final = 4
TEST_H: Final = MONTH_H
AGGREGATIONS: Final[tuple[SeriesAggregation, ...]] = get_args(SeriesAggregation)


class NoData(Exception):
    """The shared demand is not here; one line."""


class Row(Judged, frozen=True, kw_only=True):
    """Besides: what the page needs to say how sure a difference is, and what is reserved."""

    daily_gpus: tuple[float, ...]
    """Sum of absolute errors per day of the test."""
    over_90: float
    """Mean of (.9 quantile - truth) / mean truth: what is reserved beyond the demand."""


class Fan(msgspec.Struct, frozen=True, kw_only=True):
    """The total, as forecast for the last hour ahead by the default model."""

    truth: tuple[float, ...]
    median: tuple[float, ...]
    q90: tuple[float, ...]
    q95: tuple[float, ...]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    hours: int
    series: tuple[str, ...]
    rows: dict[str, tuple[Row, ...]]
    """By aggregation."""
    by_series: dict[str, dict[str, tuple[float, float]]]
    """Model -> series -> MAE and .9 coverage."""
    fan: Fan


def demand_file() -> Path:
    """Raises NoData."""
    folder = Path(os.environ.get("COTENANT_SHARED_DATA") or paths.ROOT.parent / "shared") / "traces"
    path = folder / "alibaba_spot_hourly.csv.gz"
    if not path.is_file():
        raise NoData(f"{path} is not there; set COTENANT_SHARED_DATA to the folder above traces/")
    return path


def file_of(seed: int) -> Path:
    return CACHE / f"seed-{seed}.json"


def load(seed: int) -> Run | None:
    file = file_of(seed)
    return msgspec.json.decode(file.read_bytes(), type=Run) if file.is_file() else None


def run(seed: int, tell: Callable[[int, str], None]) -> Run:
    path = demand_file()
    demand = read(path.read_bytes(), path.name).demand
    found = evaluate(demand, horizon_h=HORIZON_H, test_last_h=TEST_H, seed=seed, tell=tell)
    result = Run(
        seed=seed,
        hours=demand.hours,
        series=demand.names,
        rows={name: tuple(_rows(found, name)) for name in AGGREGATIONS},
        by_series={each.model: _by_series(found, each) for each in found.answers},
        fan=_fan(found),
    )
    keep(result, file_of(seed))
    return result


def _rows(found: ForecastEvaluation, aggregation: SeriesAggregation) -> list[Row]:
    rows = []
    for judged, answers in zip(found.judge(aggregation), found.answers, strict=True):
        truth, said = found.part(answers, aggregation)
        error, short = np.abs(truth - said[..., 0]), truth - said[..., 1]
        days = (np.arange(truth.shape[1]) // DAY_H).repeat(truth.shape[2])
        mean = float(truth.mean())
        rows.append(
            Row(
                **msgspec.structs.asdict(judged),
                daily_gpus=tuple(np.bincount(days, error.sum(axis=0).ravel()).tolist()),
                over_90=-float(short.mean()) / mean,
            )
        )
    return rows


def _by_series(found: ForecastEvaluation, answers: Answers) -> dict[str, tuple[float, float]]:
    return {
        name: (float(np.abs(truth - said[..., 0]).mean()), float((truth <= said[..., 1]).mean()))
        for name, truth, said in zip(found.names, found.truth, answers.quantiles, strict=True)
    }


def _fan(found: ForecastEvaluation) -> Fan:
    said = found.answers[0].quantiles[-1, :, -1]
    return Fan(
        truth=tuple(found.truth[-1, :, -1].tolist()),
        median=tuple(said[:, 0].tolist()),
        q90=tuple(said[:, 1].tolist()),
        q95=tuple(said[:, 2].tolist()),
    )
