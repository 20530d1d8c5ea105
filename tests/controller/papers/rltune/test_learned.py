"""rltune and scorer: what a model file may be, how it orders, and what it says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cotenant.controller.domain import events as ev
from cotenant.controller.papers.rltune import (
    ACTOR,
    CRITIC,
    SCORED,
    Layer,
    ModelCard,
    OrderModel,
    Validation,
    encode_model,
    observation,
    read_model,
)
from cotenant.controller.planning import Plan
from cotenant.controller.policies import registry
from tests.controller.building import Desk, report

CARD = ModelCard(
    traces=("by hand",), licence="none", metric="bsld", base="sjf", preset="warm", seed=0, cluster="1 x 1",
    estimates="exact", epochs=0, cpu_s=0.0, version="0", curve=(1.0,),
    validation=Validation(windows=1, own=1.0, sjf=1.0, ssf=1.0),
)  # fmt: skip


def rltune(*weights: float, **more: Any) -> OrderModel:
    """One linear layer; the weights not given are 0."""
    rows = tuple((each,) for each in (*weights, *[0.0] * (len(ACTOR) - len(weights))))
    made: dict[str, Any] = {"active": True, "fallback": "ssf", "card": CARD, **more}
    return OrderModel(policy="rltune", columns=ACTOR, layers=(Layer(weights=rows, biases=(0.0,)),), **made)


def scorer(a: float, b: float, c: float, **more: Any) -> OrderModel:
    made: dict[str, Any] = {"active": True, "fallback": "ssf", "card": CARD, **more}
    layer = Layer(weights=((a,), (b,), (c,)), biases=(0.0,))
    return OrderModel(policy="scorer", columns=SCORED, layers=(layer,), **made)


def desk(folder: Path, model: OrderModel, devices: int = 4) -> Desk:
    file = folder / "model.json"
    file.write_bytes(encode_model(model))
    found = Desk("fifo", report("a", devices), ageing_s=0.0)
    found.tell(ev.PolicyChanged(name=model.policy, parameters={"model": str(file)}))
    return found


def started_first(at: Desk, *jobs: tuple[float, int]) -> str:
    """Of jobs 1, 2, ... (expected seconds, GPUs), each as wide as the cluster or nearly."""
    at.run("block", gpus=4, expected_s=1e6)
    for number, (expected_s, gpus) in enumerate(jobs, 1):
        at.submit(number, expected_s=expected_s, gpus=gpus)
    at.wait(7200.0)
    at.end("block")
    return next(str(number) for number in range(1, len(jobs) + 1) if at.phase(number) == "loading")


def test_the_highest_score_starts_first(tmp_path: Path) -> None:
    shortest, longest = rltune(-1.0), rltune(1.0)
    assert started_first(desk(tmp_path, shortest), (500, 4), (100, 4), (900, 4)) == "2"
    at = desk(tmp_path, longest)
    assert started_first(at, (500, 4), (100, 4), (900, 4)) == "3"
    assert at.why(3) == "place 1 in the learned order, place 3 in sjf order"
    assert "behind job 1" in at.why(2), "the longer of those that are left goes next"


def test_one_that_is_not_active_leaves_it_to_its_fallback(tmp_path: Path) -> None:
    at = desk(tmp_path, rltune(1.0, active=False))
    assert started_first(at, (300, 4), (350, 3)) == "2", "ssf: 1,050 GPU-seconds before 1,200"
    assert at.why(2) == (
        "the model of rltune was no better than ordering by size where it was tried: ssf orders"
    )
    assert started_first(desk(tmp_path, scorer(0.0, -9.0, 0.0, active=False)), (300, 4), (350, 3)) == "2"


def test_beyond_its_window_the_base_order_goes_on(tmp_path: Path) -> None:
    """It looks at two, the shortest, and prefers the longer of these."""
    at = desk(tmp_path, rltune(1.0, window=2), devices=1)
    at.run("block", expected_s=10.0)
    for number, expected_s in enumerate((900.0, 100.0, 500.0, 300.0), 1):
        at.submit(number, expected_s=expected_s)
    order = []
    at.end("block")
    for _ in range(4):
        (now,) = [number for number in range(1, 5) if at.phase(number) == "loading"]
        order.append(now)
        at.start(now)
        at.end(now)
    assert order == [4, 3, 1, 2]


def test_a_score_names_its_parts(tmp_path: Path) -> None:
    at = desk(tmp_path, scorer(1.0, 0.5, 0.3))
    assert started_first(at, (720, 4), (7200, 2), (72_000, 1)) == "1"
    time, gpus = -math.log(720 / 7200), 0.5 * (math.log(8) / 3 - math.log(4))
    assert at.why(1) == f"rank 1: short (12 min) {time:+.1f}, wide (4 GPUs) {gpus:+.1f}, waited 2 h +0.0"


def test_sjf_and_ssf_are_scores_too(tmp_path: Path) -> None:
    jobs = (300.0, 4), (350.0, 3)
    assert started_first(desk(tmp_path, scorer(1.0, 0.0, 0.0)), *jobs) == "1"
    assert started_first(desk(tmp_path, scorer(1.0, 1.0, 0.0)), *jobs) == "2"


NARROW = (Layer(weights=((1.0,),), biases=(0.0,)),)
TWO_OUTPUTS = (Layer(weights=((1.0, 1.0),) * len(ACTOR), biases=(0.0, 0.0)),)
BAD: dict[str, tuple[dict[str, Any] | bytes, str]] = {
    "no JSON": (b"\xff\x00", "is not a model of an order"),
    "another schema": (b'{"schema": "order-model/9"}', "is not a model of an order"),
    "another policy's": ({"policy": "scorer"}, "is a model of scorer, not of rltune"),
    "other columns": ({"columns": ("a", "b")}, "looks at a, b"),
    "a layer that does not fit": ({"layers": NARROW}, "layer 1 does not fit"),
    "two outputs": ({"layers": TWO_OUTPUTS}, "must have one output"),
    "a window of nothing": ({"window": 0}, "must look at 2 to"),
}


@pytest.mark.parametrize(("change", "said"), BAD.values(), ids=BAD.keys())
def test_a_file_that_is_no_model_is_refused(
    tmp_path: Path, change: dict[str, Any] | bytes, said: str
) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(
        change if isinstance(change, bytes) else encode_model(msgspec.structs.replace(rltune(1.0), **change))
    )
    with pytest.raises(ValueError, match=said):
        registry.make("rltune", {"model": str(file)})


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no such file"):
        registry.make("scorer", {"model": str(tmp_path / "none.json")})


def test_a_controller_whose_model_is_gone_starts_nothing_new_and_says_why(tmp_path: Path) -> None:
    stand_in = registry.make_or_stand_in("rltune", {"model": str(tmp_path / "gone.json")})
    at = Desk("fifo", report("a", 1))
    job = at.submit(1)
    assert "there is no such file" in str(stand_in.explain(at.engine.ledger, at.job(job)))


@pytest.mark.parametrize("policy", ["rltune", "scorer"])
def test_the_bundled_models_have_a_card(policy: str) -> None:
    model = read_model("bundled", policy, ACTOR if policy == "rltune" else SCORED)
    assert model.card.licence.startswith("CC-BY-4.0")
    found = model.card.validation
    assert model.active == (found.own <= min(found.sjf, found.ssf))


def test_columns_mean_what_they_say() -> None:
    at = Desk("fifo", report("a", 4), report("b", 2), ageing_s=0.0)
    at.run("block", gpus=3, expected_s=1e6)
    at.submit(1, gpus=4, expected_s=1000.0)
    at.wait(999.0)
    at.tell(ev.AlarmRang())
    view = at.engine.ledger
    seen = observation(Plan(view), list(view.queue.jobs_in_order()), critic=True)
    assert seen.actor.shape == (1, len(ACTOR)) and seen.critic.shape == (1, len(CRITIC))
    np.testing.assert_allclose(
        seen.actor[0],
        [3 / 4, 2 / 3, 3 / 4, (3 + 2 * 0.30103) / 5, 999 / 1999, 4 / 7, 0.0, 0.0],
    )
    fragmentation = 1 - (1 + 4) / 9  # One free GPU here, two there.
    np.testing.assert_allclose(seen.critic[0], [3 / 4, 2 / 3, 3 / 4, (3 - 4 - 4) / 6, fragmentation])
