"""A forecaster at work, and its document: what is remembered, what is said, what is refused."""

from __future__ import annotations

import json
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.papers.gfs.forecast.demand import Demand
from cotenant.controller.papers.gfs.forecast.forecaster import Forecaster
from cotenant.controller.papers.gfs.forecast.methods import LinearWeights, last_change, units
from cotenant.controller.papers.gfs.forecast.model import (
    LEVELS,
    ForecastModel,
    ForecastModelProblem,
    LastChange,
    errors_kept,
    read,
    write,
)
from tests.controller.demands import rhythmic

HORIZON_H = 3


def untrained(demand: Demand, errors: float | None = 0.0) -> ForecastModel:
    """Last value + hourly change, with one error per series, hour and level."""
    names = demand.demand_with_total().names
    one = tuple(tuple((errors,) for _ in LEVELS) for _ in range(HORIZON_H)) if errors is not None else ()
    return ForecastModel(
        fitted=LastChange(why="nothing was trained"),
        series=names,
        horizon_h=HORIZON_H,
        dated=False,
        errors=tuple(one for _ in names) if one else (),
        hours=demand.hours,
        last_hour=demand.hours - 1,
        seed=0,
        made_by="a test",
    )


def linear_model() -> ForecastModel:
    """Says that nothing changes, with a spread."""
    rows = tuple((0.0,) * (30 + 4 + 1) for _ in range(HORIZON_H))
    weights = LinearWeights(
        input_h=30, kernel_h=25, deviations=(2.0,), organisations=((0.0,),), by_hour=((0.0,),) * 24,
        by_weekday=((0.0,),) * 7, by_holiday=((0.0,),) * 2, cycle=rows, trend=rows, spread=rows,
    )  # fmt: skip
    return msgspec.structs.replace(
        untrained(Demand(names=("a",), values=np.ones((1, 40))), None), fitted=weights, series=("a",)
    )


def errors_of(forecaster: Forecaster) -> dict[tuple[str, int, int], list[float]]:
    """What it has learned, by series, hours ahead and level."""
    return {(name, ahead, level): errors for name, ahead, level, errors in forecaster.memory().errors}


def test_it_says_that_nothing_was_trained(seed: int) -> None:
    demand = rhythmic(200, seed)
    found = Forecaster(untrained(demand)).forecast(demand)
    assert found.note == (
        "nothing was trained: last value + median hourly change of the hour; "
        "too few errors yet for quantiles of 0.8, 0.9, 0.95"
    )
    point = last_change(demand.demand_with_total().fill_gaps(), np.array([199]), HORIZON_H)[:, 0]
    assert np.allclose(found.quantiles[..., 0], point)
    assert found.names == ("team-0", "team-1", "total")


def test_each_error_counts_once_and_only_when_it_can_be_seen(seed: int) -> None:
    demand = rhythmic(300, seed, series=1)
    asked = Forecaster(untrained(demand, errors=0.0))
    for hours in (290, 290, 291, 292, 291, 290, 292, 293, 293):
        asked.forecast(demand.first(hours))
    errors = errors_of(asked)
    # Besides the one that it came with: three origins were judged 1 hour ahead, two 2 hours ahead, one 3.
    assert [len(errors["team-0", ahead, 0]) for ahead in range(HORIZON_H)] == [4, 3, 2]
    series = demand.fill_gaps()[0]
    point = last_change(series[None], np.array([289]), HORIZON_H)[0, 0]
    unit = units(series, np.array([289]))[0]
    assert errors["team-0", 2, 1][1] == pytest.approx((series[292] - point[2]) / unit)


def test_quantiles_move_by_the_errors_and_the_median_stays(seed: int) -> None:
    demand = rhythmic(300, seed, series=1)
    plain, moved = (Forecaster(untrained(demand, errors=each)).forecast(demand) for each in (0.0, 2.0))
    unit = units(demand.fill_gaps()[0], np.array([299]))[0]
    assert np.allclose(moved.quantiles[..., 0], plain.quantiles[..., 0])
    assert np.allclose(moved.quantiles[..., 1:], plain.quantiles[..., 1:] + 2.0 * unit)


def test_an_hour_that_stays_unknown_gives_no_error(seed: int) -> None:
    demand = rhythmic(300, seed, series=1)
    demand.values[0, 291] = np.nan
    asked = Forecaster(untrained(demand))
    for hours in range(290, 296):
        asked.forecast(demand.first(hours))
    counts = [len(errors_of(asked)["team-0", ahead, 0]) for ahead in range(HORIZON_H)]
    assert counts == [5, 4, 4], "of 6, 5 and 4: nobody was asked 3 hours before"


@settings(max_examples=25)
@given(st.integers(1, 9), st.integers(0, 1000), st.randoms(use_true_random=False))
def test_the_order_of_the_organisations_means_nothing(count: int, seed: int, order: random.Random) -> None:
    demand = rhythmic(120, seed, series=count, missing=0.05)
    places = list(range(count))
    order.shuffle(places)
    other = Demand(names=tuple(demand.names[at] for at in places), values=demand.values[places])
    one, two = (Forecaster(untrained(demand, errors=1.0)).forecast(each) for each in (demand, other))
    for name in demand.names:
        assert np.allclose(one.quantiles[one.names.index(name)], two.quantiles[two.names.index(name)])
    assert np.allclose(one.pool_quantiles(), two.pool_quantiles())
    assert np.allclose(one.pool_quantiles("paper"), two.pool_quantiles("paper"))
    assert (np.diff(one.quantiles, axis=-1) >= 0).all()


def test_a_new_organisation_takes_the_errors_of_the_others(seed: int) -> None:
    demand = rhythmic(200, seed, series=3)
    known = Demand(names=demand.names[:2], values=demand.values[:2])
    found = Forecaster(untrained(known, errors=1.0)).forecast(demand)
    unit = units(demand.fill_gaps()[2], np.array([199]))[0]
    assert np.allclose(found.quantiles[2, :, 2] - found.quantiles[2, :, 0], unit)


def test_the_paper_sums_quantiles_and_reserves_more(seed: int) -> None:
    demand = rhythmic(300, seed, series=4)
    model = untrained(demand)
    asked = Forecaster(model)
    for hours in range(200, 300):
        asked.forecast(demand.first(hours))
    found = asked.forecast(demand)
    assert np.allclose(found.pool_quantiles("paper"), found.quantiles[:-1].sum(axis=0))
    assert (found.pool_quantiles("paper")[:, 2] > found.pool_quantiles()[:, 2]).all()


def test_a_linear_model_says_which_series_it_does_not_know(seed: int) -> None:
    demand = rhythmic(100, seed, series=1)
    found = Forecaster(linear_model()).forecast(Demand(names=("b",), values=demand.values))
    assert found.note == "not in the training: b: last value + median hourly change of the hour"
    known = Forecaster(linear_model()).forecast(Demand(names=("a",), values=demand.values))
    assert known.note == ""
    spread = 2.0 * np.log(2.0)  # softplus(0), in deviations.
    assert np.allclose(known.quantiles[0, :, 2], demand.values[0, -1] + 1.2815516 * spread)


# --- The document ------------------------------------------------------------------------------------


def test_hundreds_of_organisations_fit_into_a_document() -> None:
    assert [errors_kept(count, 4, 4) for count in (7, 84, 400, 2001)] == [672, 672, 312, 62]


def test_the_same_model_the_same_bytes() -> None:
    model = linear_model()
    assert write(model) == write(read(write(model), "it"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": "forecast-model/2"}, "upgrade cotenant"),
        ({"schema": "interference-model/1"}, "train it again"),
        ({"levels": [0.9, 0.5, 0.8, 0.95]}, "levels rise"),
        ({"levels": [0.8, 0.9]}, "median"),
        ({"horizon_h": 0}, "horizon"),
        ({"horizon_h": 2}, "weights"),
        ({"series": ["a", "a"]}, "each once"),
        ({"errors": [[[[0.0]]]]}, "per series"),
        ({"more": 1}, "unknown field"),
        ({"fitted": {"type": "trees", "columns": 3, "forests": []}}, "forests"),
    ],
)
def test_a_document_that_contradicts_itself_is_refused(change: dict[str, object], says: str) -> None:
    value = json.loads(write(linear_model())) | change
    with pytest.raises(ForecastModelProblem, match=says) as caught:
        read(json.dumps(value).encode(), "model.json")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("model.json: ")


def test_a_forest_that_is_no_forest_is_refused() -> None:
    tree = {"base": 0.0, "sizes": [1], "left": [-1], "right": [-1], "feature": [0], "threshold": [1e6],
            "missing_left": [False]}  # fmt: skip
    fitted = {"type": "trees", "columns": 35, "forests": [tree] * 4}
    value = json.loads(write(linear_model())) | {"fitted": fitted, "errors": []}
    with pytest.raises(ForecastModelProblem, match="leaf"):
        read(json.dumps(value).encode(), "model.json")


@settings(max_examples=200)
@given(st.data())
def test_whatever_the_bytes_there_is_a_model_or_a_line(data: st.DataObject) -> None:
    whole = bytearray(write(linear_model()))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.one_of(st.binary(max_size=3), st.sampled_from((b"1e999", b"[[[", b"null", b"-1", b'"')))
        )
    cut = data.draw(st.sampled_from((len(whole), len(whole) // 2)))
    said = ""
    try:
        read(bytes(whole[:cut]), "model.json")
    except ForecastModelProblem as error:
        said = str(error)
    assert "\n" not in said
