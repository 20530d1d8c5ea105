"""Training forecasters: numerics against torch and XGBoost, seeds, and what a controller asks for."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from cotenant.controller.papers.gfs.forecast import (
    HOURS_MIN,
    Calendar,
    Demand,
    Forecaster,
    LastChange,
    QuantileTrees,
    mean_and_spread,
    moving_average,
    question_in,
    read,
    training_request,
    unpack_model,
    write,
)
from cotenant.controller.papers.gfs.training.holidays import NoHolidays, days_of
from cotenant.controller.papers.gfs.training.train import TREE_SETTINGS, Effort, answer, tree_examples
from cotenant.controller.papers.gfs.training.train import train as train_fully
from tests.controller.demands import rhythmic

HORIZON_H = 3
LITTLE = Effort(trees=20, trees_rate=0.3)
"""Takes no minute."""
train = partial(train_fully, effort=LITTLE)


# --- OrgLinear in torch ------------------------------------------------------------------------------


def test_the_loss_is_the_whole_gaussian_likelihood(seed: int) -> None:
    """Log sigma included: without it a larger sigma would always be better."""
    torch = pytest.importorskip("torch")
    from cotenant.controller.papers.gfs.training.linear import likelihood

    torch.manual_seed(seed)
    targets, mean, spread = torch.randn(50, 4), torch.randn(50, 4), torch.rand(50, 4) + 0.1
    wanted = -torch.distributions.Normal(mean, spread).log_prob(targets).mean()
    assert float(likelihood(targets, mean, spread)) == pytest.approx(float(wanted), rel=1e-5)
    unknown = targets.clone()
    unknown[:10] = math.nan
    wanted = -torch.distributions.Normal(mean, spread).log_prob(targets)[10:].mean()
    assert float(likelihood(unknown, mean, spread)) == pytest.approx(float(wanted), rel=1e-5)
    off = (targets - mean).abs()
    least = [float(likelihood(targets, mean, off * share)) for share in (0.8, 1.0, 1.25)]
    assert least[1] == min(least), "sigma = |error| is the best sigma"


def test_a_gap_leaves_no_nan_in_the_gradients() -> None:
    torch = pytest.importorskip("torch")
    from cotenant.controller.papers.gfs.training.linear import likelihood, squared_loss

    mean = torch.zeros(3, requires_grad=True)
    targets = torch.tensor([1.0, math.nan, 2.0])
    loss = likelihood(targets, mean, torch.ones(3)) + squared_loss(targets, mean)
    loss.backward()  # type: ignore[no-untyped-call]
    assert mean.grad.tolist() == pytest.approx([-0.5 - 1.0, 0.0, -1.0 - 2.0])


def test_orglinear_in_numpy_is_orglinear_in_torch(seed: int) -> None:
    torch = pytest.importorskip("torch")
    from cotenant.controller.papers.gfs.training import linear

    demand = rhythmic(300, seed, series=2, dated=True)
    demand = Demand(
        names=("a100/vision", "a100/speech/eu"), values=demand.values, first_hour=475_000, dated=True
    )
    calendar = Calendar.make(demand, (475_000 // 24 + 6,))
    deviations = np.array([3.0, 5.0])
    given, origins = linear.examples(demand, HORIZON_H, 100, deviations, calendar, seed)
    torch.manual_seed(seed)
    model = linear.OrgLinear(demand.names, 100, HORIZON_H, organised=True)
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.1)
    with torch.no_grad():
        mean, spread = model(given)
    plain = linear.plain(model, deviations)
    half = len(origins) // 2
    for number in range(2):
        rows = slice(number * half, (number + 1) * half)
        series = demand.fill_gaps()[number]
        found = mean_and_spread(plain, number, series, origins[rows], calendar)
        last = series[origins[rows]][:, None]
        assert found[1] is not None
        assert np.allclose(found[0], last + deviations[number] * mean[rows].numpy(), atol=1e-3)
        assert np.allclose(found[1], deviations[number] * spread[rows].numpy(), atol=1e-3)
    assert given.holiday.sum() > 0
    trend = linear.input_trend(given.inputs)
    assert np.allclose(trend.numpy(), moving_average(given.inputs.double().numpy(), 25), atol=1e-4)


def test_attention_sees_all_attributes_and_no_padding() -> None:
    torch = pytest.importorskip("torch")
    from cotenant.controller.papers.gfs.training.linear import OrgLinear

    torch.manual_seed(1)
    context = OrgLinear(("a/x", "b/x/z", "a/x"), 30, 1, organised=True).organisations()
    assert torch.equal(context[0], context[2])
    assert not torch.allclose(context[0], context[1])
    torch.manual_seed(1)
    alone = OrgLinear(("a/x", "b/x", "a/x"), 30, 1, organised=True)
    assert torch.isfinite(alone.organisations()).all()


def test_orglinear_learns_a_rhythm_and_the_same_seed_gives_the_same_document(seed: int) -> None:
    pytest.importorskip("torch")
    demand = rhythmic(24 * 25, seed)
    one, two = (train(demand, HORIZON_H, 3, kind="orglinear") for _ in range(2))
    assert write(one) == write(two)
    assert one.errors == ()
    asked = Forecaster(read(write(one), "model"))
    assert asked.forecast(demand).note == ""


# --- Trees -------------------------------------------------------------------------------------------


def test_trees_in_numpy_are_those_of_xgboost(seed: int) -> None:
    pytest.importorskip("xgboost")
    from cotenant.controller.models.interference.forest import Forest
    from cotenant.controller.training import boosting

    demand = rhythmic(400, seed, missing=0.05)
    rows, labels = tree_examples(demand, HORIZON_H, Calendar(), seed)
    assert np.isfinite(labels).all()
    settings = {**TREE_SETTINGS, "trees": 20.0, "eta": 0.3}
    fitted = boosting.fit(rows, labels, settings, seed, quantile=0.9)
    assert np.allclose(Forest(fitted.trees(), rows.shape[1]).predict(rows), fitted.predict(rows), atol=1e-4)
    assert 0.85 < float((labels <= fitted.predict(rows)).mean()) < 0.95


def test_too_little_demand_trains_nothing_and_says_so(seed: int) -> None:
    demand = rhythmic(HOURS_MIN - 1, seed)
    model = train(demand, HORIZON_H, 0)
    assert isinstance(model.fitted, LastChange)
    note = Forecaster(model).forecast(demand).note
    assert "too few errors" not in note
    assert note.startswith("335 hours of demand are known, 336 are needed to train: last value + median")
    assert len(model.errors[0][0][0]) > 50, "but its quantiles are set right already"


@pytest.mark.parametrize("hours", [1, 2, 5, 30])
def test_the_first_hours_of_a_cluster(hours: int, seed: int) -> None:
    demand = rhythmic(hours, seed)
    found = Forecaster(train(demand, HORIZON_H, 0)).forecast(demand)
    assert found.quantiles.shape == (3, HORIZON_H, 4)
    assert np.isfinite(found.quantiles).all()


def test_training_is_pure_given_the_seed(seed: int) -> None:
    pytest.importorskip("xgboost")
    demand = rhythmic(24 * 20, seed, missing=0.03)
    one, two, other = (write(train(demand, HORIZON_H, each)) for each in (1, 1, 2))
    assert one == two
    assert one != other
    model = read(one, "model")
    assert isinstance(model.fitted, QuantileTrees)
    assert model.series == ("team-0", "team-1", "total")
    assert model.hours == demand.known_mask().any(axis=0).sum()


def test_many_organisations_are_thinned_out(seed: int) -> None:
    demand = rhythmic(400, seed, series=60)
    rows, labels = tree_examples(demand, HORIZON_H, Calendar(), seed, rows_max=2000)
    assert len(rows) == len(labels)
    assert 1500 < len(rows) < 2500


# --- What a controller asks for -------------------------------------------------------------------


@pytest.mark.parametrize(("trainer", "library"), [("xgboost-cqr", "xgboost"), ("orglinear", "torch")])
def test_a_question_of_a_policy_is_answered_with_the_model_of_its_demand(trainer: str, library: str) -> None:
    pytest.importorskip(library)
    demand = rhythmic(HOURS_MIN + 5, 2, dated=True)
    payload = training_request(demand, horizon_h=2, levels=(0.5, 0.9), trainer=trainer, country="")  # type: ignore[arg-type]
    assert question_in(payload).demand.names == demand.names
    found = answer(payload, LITTLE)
    model = unpack_model(found.document, "it")
    assert (model.kind, model.dated, model.hours) == (trainer, True, HOURS_MIN + 5)
    assert answer(payload, LITTLE).document == found.document, "one question, one model"


def test_a_question_has_the_largest_series_and_the_others_together() -> None:
    demand = rhythmic(30, 3, series=90)
    question = question_in(
        training_request(demand, horizon_h=2, levels=(0.5,), trainer="orglinear", country="")
    )
    assert len(question.names) == 60 and question.names[-1] == "(others)"
    assert question.names[0] == "team-89"
    assert question.demand.values.sum() == pytest.approx(demand.values.sum())
    with pytest.raises(ValueError, match="do not belong"):
        question_in(
            {
                **training_request(demand, horizon_h=1, levels=(0.5,), trainer="orglinear", country=""),
                "values": [1.0],
            }
        )


def test_holidays_that_nobody_knows_are_an_error() -> None:
    pytest.importorskip("holidays")
    payload = training_request(
        rhythmic(40, 2, dated=True), horizon_h=2, levels=(0.5,), trainer="orglinear", country="Atlantis"
    )
    with pytest.raises(NoHolidays):
        answer(payload, LITTLE)


def test_holidays_of_a_country() -> None:
    pytest.importorskip("holidays")
    demand = Demand(names=("a",), values=np.ones((1, 48)), first_hour=19_996 * 24, dated=True)
    days = days_of("cn", demand)
    assert {19_997, 19_998} <= days, "the National Day of 2024"
    assert 19_996 not in days
    assert max(days) > 19_997 + 300, "and those of the year to come"
    assert days_of("DE-BY", demand) != days_of("DE-BE", demand)


def test_holidays_that_are_not_known() -> None:
    pytest.importorskip("holidays")
    with pytest.raises(NoHolidays, match="no dates"):
        days_of("CN", Demand(names=("a",), values=np.ones((1, 48))))
    with pytest.raises(NoHolidays, match="no holidays of 'Atlantis'"):
        days_of("Atlantis", Demand(names=("a",), values=np.ones((1, 48)), dated=True))
