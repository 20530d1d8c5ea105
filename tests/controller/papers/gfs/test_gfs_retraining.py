"""GFS's models of demand: the one of a file, those that are trained anew every day, and what stands in."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from cotenant.controller.domain import Compute, PolicySettings
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig
from cotenant.controller.papers.gfs.demand import HOUR_S
from cotenant.controller.papers.gfs.forecast import HOURS_MIN as TRAINING_HOURS_MIN
from cotenant.controller.papers.gfs.forecast import RETRAINING_KIND, pack_model, question_in, write
from cotenant.controller.papers.gfs.forecasting import HOURS_MIN
from cotenant.controller.papers.gfs.policy import Gfs
from cotenant.controller.papers.gfs.training.train import Effort, train
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters, Policy
from tests.controller.building import report, spec
from tests.controller.demands import rhythmic

LITTLE = Effort(trees=10, trees_rate=0.3)


def test_the_policy_knows_how_much_demand_a_training_needs() -> None:
    assert HOURS_MIN == TRAINING_HOURS_MIN


class Cluster:
    """Four devices on one host, and a policy that has seen hp demand for so many hours."""

    def __init__(self, hours: int, **parameters: Any) -> None:
        def make(name: str, given: Parameters) -> Policy:
            return registry.make(name, {**parameters, **given})

        self.make, self.number = make, 0
        self.engine = Engine(make, EngineConfig(policy=PolicySettings(name="gfs")), validate=True)
        self.engine.handle(ev.HostJoined(report=report("a", 4)), 0.0)
        for hour in range(hours + 1):
            gpus = 1 + round(1.4 + 1.4 * math.sin(hour / 24 * 2 * math.pi))
            demand = self.layer._state.demand
            demand.see(hour * HOUR_S, {("cpu", "x"): gpus, ("cpu", "y"): 1})
        self.now_s = hours * HOUR_S

    @property
    def layer(self) -> Gfs:
        policy = self.engine.current.policy
        assert isinstance(policy, Gfs)
        return policy

    def hours_later(self, hours: float) -> list[Compute]:
        """So much time passes, and something happens in the new hour."""
        return self.happen(after_s=hours * HOUR_S) + self.happen()

    def happen(self, event: Any = None, *, after_s: float = 1.0) -> list[Compute]:
        """What is asked to be computed about it."""
        self.number += 1
        self.now_s += after_s
        arrived = ev.JobArrived(spec=spec(self.number, gpus=1, expected_s=5.0, job_class="hp"))
        self.engine.handle(event or arrived, self.now_s)
        return [each for each in self.engine.decision.actions if isinstance(each, Compute)]

    def pool(self) -> Any:
        found = self.layer.report(self.engine.ledger)
        return found.pools[0]


def answered(request: Compute) -> ev.Computed:
    question = question_in(request.payload)
    levels = tuple(question.levels)
    model = train(question.demand, question.horizon_h, 0, levels=levels, effort=LITTLE)
    return ev.Computed(request_id=request.request_id, model_sha256="", values=(), document=pack_model(model))


def test_below_two_weeks_nothing_is_trained_and_the_forecast_says_so() -> None:
    cluster = Cluster(HOURS_MIN - 2)
    assert not cluster.happen()
    cluster.happen(after_s=HOUR_S)
    note = cluster.pool().forecast_note
    assert note.startswith("no model was trained: last value + median hourly change of the hour; ")
    assert note.endswith(f"; {HOURS_MIN - 1} of {HOURS_MIN} hours of demand are known that a training needs")


def test_a_model_is_asked_for_once_a_day_and_forecasts_from_the_next_hour_on() -> None:
    pytest.importorskip("xgboost")
    cluster = Cluster(HOURS_MIN)
    (request,) = cluster.happen()
    assert request.kind == RETRAINING_KIND
    demand = question_in(request.payload).demand
    assert (demand.names, demand.hours, demand.dated) == (("x", "y"), HOURS_MIN, False)
    assert not cluster.hours_later(1), "one at a time"
    assert "its training is under way" in cluster.pool().forecast_note
    assert not cluster.happen(answered(request))
    cluster.happen(after_s=HOUR_S)
    pool = cluster.pool()
    assert pool.forecast_model == f"xgboost-cqr, trained here on the last {HOURS_MIN} hours"
    assert pool.forecast_age_s == pytest.approx(HOUR_S)
    assert "no model was trained" not in pool.forecast_note
    assert not cluster.hours_later(21), "not before a day is over"
    (again,) = cluster.hours_later(1)
    assert again.request_id > request.request_id


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"error": "NoXGBoost: training a model needs XGBoost"}, "needs XGBoost"),
        ({"document": b"nonsense"}, "not a packed forecast model"),
        ({"document": pack_model(train(rhythmic(40, 1), 1, 0, levels=(0.5, 0.9)))}, "looks 1 h ahead"),
        ({"document": pack_model(train(rhythmic(40, 1), 2, 0, levels=(0.5, 0.8)))}, "p=0.9 is none of them"),
    ],
)
def test_an_answer_that_is_no_model_leaves_things_as_they_are_and_is_said(
    given: dict[str, Any], said: str
) -> None:
    cluster = Cluster(HOURS_MIN)
    (request,) = cluster.happen()
    cluster.happen(ev.Computed(request_id=request.request_id, model_sha256="", values=(), **given))
    cluster.happen(after_s=HOUR_S)
    note = cluster.pool().forecast_note
    assert note.startswith("no model was trained: last value"), note
    assert "the last training gave no model: " in note and said in note
    assert cluster.hours_later(24), "it is tried again a day later"


def test_the_model_comes_back_with_a_snapshot_and_with_the_recorded_decisions() -> None:
    pytest.importorskip("xgboost")
    cluster, other = Cluster(HOURS_MIN), Cluster(HOURS_MIN)
    recorded: list[tuple[Any, float]] = []

    def both(event: Any, after_s: float = 1.0) -> list[Compute]:
        asked = cluster.happen(event, after_s=after_s)
        other.engine.fold(event, cluster.engine.decision, cluster.now_s)
        recorded.append((event, cluster.now_s))
        return asked

    (request,) = both(ev.JobArrived(spec=spec(1, gpus=1, expected_s=5.0)))
    both(answered(request))
    both(ev.JobArrived(spec=spec(2, gpus=1, expected_s=5.0)), HOUR_S)
    assert cluster.pool().forecast_model
    assert other.layer.save() == cluster.layer.save(), "recovery folds, and asks nobody"
    engine = cluster.engine
    restarted = Engine(cluster.make, engine.config)
    restarted.restore(engine.snapshot())
    for each in (engine, restarted):
        each.handle(ev.JobArrived(spec=spec(3, gpus=1, expected_s=5.0)), cluster.now_s + HOUR_S)
    assert restarted.current.policy.save() == engine.current.policy.save()


def test_what_is_known_of_demand_outlives_a_change_of_parameters() -> None:
    cluster = Cluster(HOURS_MIN)
    known = cluster.layer._state.demand
    (request,) = cluster.happen()
    found = cluster.happen(ev.PolicyChanged(name="gfs", parameters={"p": 0.95}))
    assert cluster.layer._state.demand is known
    (again,) = found
    assert again.request_id > request.request_id, "an answer to the first is not taken for this one's"
    cluster.happen(ev.PolicyChanged(name="gfs-rise", parameters={}))
    assert cluster.layer._state.demand is known
    assert not cluster.happen(), "its quota asks no forecast, so none is trained unless retrain_h says so"


def test_dates_are_known_where_the_journal_knows_when_it_began() -> None:
    cluster = Cluster(HOURS_MIN)
    cluster.engine.ledger.began_hour = 480_000
    (request,) = cluster.happen()
    question = question_in(request.payload)
    assert (question.dated, question.first_hour) == (True, 480_000)


# --- The model of a file --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["xgboost-cqr", "orglinear"])
def test_the_model_of_a_file_forecasts_and_nothing_is_trained(tmp_path: Path, kind: Any) -> None:
    pytest.importorskip({"xgboost-cqr": "xgboost", "orglinear": "torch"}[kind])
    model = train(rhythmic(340, 1), 3, 0, kind=kind, effort=LITTLE)
    path = tmp_path / "demand.json"
    path.write_bytes(write(model))
    cluster = Cluster(HOURS_MIN, model=str(path))
    assert not cluster.happen()
    cluster.happen(after_s=HOUR_S)
    pool = cluster.pool()
    assert pool.forecast_model == f"{kind} of demand.json, trained on 340 hours of demand"
    assert len(pool.forecast_upper) == 2, "as many hours as a promise touches, however far it looks"
    assert "no trainings" not in pool.forecast_note


def test_a_file_that_is_no_usable_model_is_refused_in_one_line(tmp_path: Path) -> None:
    good = write(train(rhythmic(40, 1), 2, 0))
    value = json.loads(good)
    wrong = {
        "cut off": (good[: len(good) // 2], "not a forecast model"),
        "another schema": (json.dumps(value | {"schema": "forecast-model/9"}).encode(), "upgrade cotenant"),
        "contradicts itself": (json.dumps(value | {"horizon_h": 99}).encode(), "a damaged forecast model"),
    }
    for name, (data, said) in wrong.items():
        path = tmp_path / f"{name}.json"
        path.write_bytes(data)
        with pytest.raises(ValueError, match=said) as caught:
            registry.make("gfs", {"model": str(path)})
        assert "\n" not in str(caught.value) and name in str(caught.value)
    with pytest.raises(ValueError, match=r"nowhere.json cannot be read: No such file"):
        registry.make("gfs", {"model": str(tmp_path / "nowhere.json")})
    path = tmp_path / "good.json"
    path.write_bytes(good)
    with pytest.raises(ValueError, match="looks 2 h ahead; hours=4 needs 5"):
        registry.make("gfs", {"model": str(path), "hours": 4})
    with pytest.raises(ValueError, match=r"quantiles of 0.5, 0.8, 0.9, 0.95, and p=0.7 is none"):
        registry.make("gfs", {"model": str(path), "p": 0.7})
    assert registry.make("gfs", {"model": str(path)}).name == "gfs"
