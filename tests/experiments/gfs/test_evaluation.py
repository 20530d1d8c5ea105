"""Judging forecasters on demand that was kept out: nothing seen too early, and what is said of libraries."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cotenant.controller.papers.gfs.forecast import Demand, Forecaster
from cotenant.controller.papers.gfs.training.train import train as train_fully
from experiments.gfs.training.demand_file import read as read_demand
from experiments.gfs.training.evaluate import FITS, LEVELS, MODELS, Ask, StudyEffort, TooFewHours
from experiments.gfs.training.evaluate import evaluate as evaluate_fully
from tests.controller.demands import rhythmic

HOURS, TEST_H, HORIZON_H = 24 * 30, 24 * 5, 3
NO_TRAINING = ("last-change", "last-value", "seasonal-naive", "last-week-peak")
LITTLE = StudyEffort(trees=20, trees_rate=0.3, deepar_steps=20)
"""Takes no minute."""
train, evaluate = partial(train_fully, effort=LITTLE), partial(evaluate_fully, effort=LITTLE)


def test_all_models_are_judged(seed: int) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("xgboost")
    demand, told = rhythmic(HOURS, seed, missing=0.02), []
    found = evaluate(
        demand, horizon_h=HORIZON_H, test_last_h=TEST_H, seed=1, tell=lambda done, model: told.append(model)
    )
    assert told == [*MODELS, ""]
    rows = {row.model: row for row in found.judge()}
    assert list(rows) == list(MODELS), "the default first"
    assert rows["xgboost-cqr"].mae < 0.8 * rows["last-value"].mae
    assert 0.8 < rows["xgboost-cqr"].coverage_90 < 0.97
    assert rows["xgboost"].mae == rows["xgboost-cqr"].mae
    assert rows["xgboost-cqr"].train_cpu_s > rows["xgboost"].train_cpu_s > 0 == rows["last-value"].train_cpu_s
    assert rows["orglinear"].mae < rows["last-value"].mae
    for answers in found.answers:
        assert (np.diff(answers.quantiles, axis=-1) >= 0).all(), answers.model
    pool, paper = ({row.model: row for row in found.judge(name)} for name in ("pool", "paper"))
    assert paper["xgboost-cqr"].coverage_90 > pool["xgboost-cqr"].coverage_90


def test_nothing_is_seen_before_its_time(seed: int) -> None:
    """Other hours at the end change no forecast that was made before them."""
    pytest.importorskip("xgboost")
    demand = rhythmic(HOURS, seed)
    changed = Demand(names=demand.names, values=demand.values.copy())
    late = 40
    changed.values[:, -late:] *= 3.0
    one, two = (
        evaluate(each, horizon_h=HORIZON_H, test_last_h=TEST_H, seed=0, models=("xgboost-cqr", *NO_TRAINING))
        for each in (demand, changed)
    )
    before = one.origins < HOURS - late
    assert 0 < before.sum() < len(before)
    for mine, theirs in zip(one.answers, two.answers, strict=True):
        assert np.array_equal(mine.quantiles[:, before], theirs.quantiles[:, before]), mine.model
        assert not np.array_equal(mine.quantiles, theirs.quantiles), mine.model


def test_the_evaluation_is_what_a_forecaster_would_have_said_hour_by_hour(seed: int) -> None:
    """One code for both: trained on what comes before the test, then asked every hour of it."""
    pytest.importorskip("xgboost")
    demand = rhythmic(HOURS, seed)
    found = evaluate(demand, horizon_h=HORIZON_H, test_last_h=TEST_H, seed=5, models=("xgboost-cqr",))
    asked = Forecaster(train(demand.first(HOURS - TEST_H), HORIZON_H, 5, levels=LEVELS))
    for number, origin in enumerate(found.origins[:30].tolist()):
        said = asked.forecast(demand.first(origin + 1)).quantiles
        assert np.allclose(said, found.answers[0].quantiles[:, number], atol=1e-3), origin


def test_an_organisation_may_begin_late(seed: int) -> None:
    """Before that it is unknown, also to the training that only makes errors."""
    pytest.importorskip("xgboost")
    pytest.importorskip("torch")
    demand = rhythmic(HOURS, seed, series=3)
    demand.values[1, : HOURS - TEST_H - 50] = np.nan
    models = ("xgboost-cqr", "dlinear", *NO_TRAINING)
    found = evaluate(demand, horizon_h=HORIZON_H, test_last_h=TEST_H, seed=0, models=models)
    assert all(np.isfinite(answers.quantiles).all() for answers in found.answers)
    assert {row.model for row in found.judge()} == set(models)


def test_a_missing_library_is_told(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> Ask:
        raise ImportError("torch")

    monkeypatch.setitem(FITS, "orglinear", absent)
    found = evaluate(
        rhythmic(HOURS, seed), horizon_h=1, test_last_h=TEST_H, seed=0, models=("orglinear", "last-value")
    )
    assert found.left_out == {"orglinear": "torch"}
    assert [row.model for row in found.judge()] == ["last-value"]


def test_too_few_hours(seed: int) -> None:
    demand = rhythmic(400, seed)
    with pytest.raises(TooFewHours, match="400 hours of demand; without the last 100 there are 300 known"):
        evaluate(demand, horizon_h=4, test_last_h=100, seed=0)
    with pytest.raises(TooFewHours, match="no longer than the horizon"):
        evaluate(demand, horizon_h=4, test_last_h=4, seed=0)
    gone = Demand(names=demand.names, values=demand.values.copy())
    gone.values[1, -50:] = np.nan
    with pytest.raises(TooFewHours, match="team-1 has no known hour in the last 50"):
        evaluate(gone, horizon_h=4, test_last_h=50, seed=0)


@pytest.mark.no_cover
def test_the_shared_hours(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures to meet, on the last 28 days, by the default as it is."""
    pytest.importorskip("xgboost")
    monkeypatch.undo()
    path = shared_data / "traces" / "alibaba_spot_hourly.csv.gz"
    if not path.is_file():
        pytest.skip("the shared data has no hourly demand")
    demand = read_demand(path.read_bytes(), path.name).demand
    assert (len(demand.names), demand.hours) == (6, 3747)
    found = evaluate(demand, horizon_h=4, test_last_h=672, seed=0, models=("xgboost-cqr", "last-value"))
    for aggregation in ("series", "pool"):
        ours, last = found.judge(aggregation)
        assert ours.mae <= 0.87 * last.mae
        assert 0.88 <= ours.coverage_90 <= 0.93
