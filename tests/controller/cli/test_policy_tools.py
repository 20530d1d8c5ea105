"""`cotenant policy train|tune|state NAME`: which policies have a tool, where it is found, and what is said
where there is none; what a policy remembers."""

from __future__ import annotations

import json
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from cotenant.controller.cli.offline.policy import elsewhere
from cotenant.controller.domain import ClassReport, PoolReport
from cotenant.controller.policies import registry
from cotenant.controller.present.problem import Problem
from cotenant.controller.wire import clients as wire

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant


def test_the_help_page_names_the_policies_that_have_the_tool(cotenant: Cotenant) -> None:
    result = cotenant("policy", "train", "--help")
    assert result.code == 0
    shown = {line.split()[0] for line in result.out.partition("Commands:")[2].splitlines() if line.strip()}
    assert {name for name, entry in registry.ours().items() if "train" in entry.tools} <= shown


def test_a_policy_without_the_tool_is_refused_with_those_that_have_one(cotenant: Cotenant) -> None:
    for name in ("fifo", "no-such-policy"):
        result = cotenant("policy", "train", name)
        assert (result.code, result.out) == (2, "")
        assert f"there is no `policy train` for {name!r}; those that have one: gfs, " in result.err
    assert "did you mean gfs?" in cotenant("policy", "train", "gsf").err


def test_a_tool_takes_the_words_behind_the_name(cotenant: Cotenant) -> None:
    result = cotenant("policy", "tune", "pcs", "nowhere.csv", "--train-jobs", "20")
    assert (result.code, result.out) == (3, "")
    assert "nowhere.csv: there is no such file" in result.err
    assert "try `cotenant policy tune pcs --help`" in cotenant("policy", "tune", "pcs").err


def test_a_tool_of_the_repository_is_named_and_not_run() -> None:
    part = elsewhere("any", "python -m experiments.any.train")
    for words in ([], ["--trace", "a", "b"]):
        with (
            pytest.raises(Problem, match="is done in cotenant's repository") as caught,
            part.make_context("any", list(words)) as context,
        ):
            part.invoke(context)
        assert (caught.value.code, caught.value.hint) == ("refused", "`python -m experiments.any.train`")
    assert "python -m experiments.any.train" in (part.help or "")


# --- `policy state` -----------------------------------------------------------------------------------

POOL = PoolReport(
    device_type="A100", capacity=16, free=5, hp_placed=8, hp_waiting=0, spot_may_take=2, spot_waiting=6,
    kept_back=3, forecast_median=(9.0, 10.0), forecast_upper=(11.0, 13.0), recent=(4, 6, 8),
)  # fmt: skip
CLASSES = ClassReport(
    guaranteed_h=1.0, level=0.95, eta=0.5, evicted=1, finished=9, broken_promises=2, pools=(POOL,)
)


def test_the_state_of_a_policy_with_classes_is_what_it_forecasts(
    cotenant: Cotenant, controller: Any, replies: ModuleType
) -> None:
    controller.says(wire.GetPolicy, known(replies, policy="gfs", classes=CLASSES))
    lines = cotenant("policy", "state", "gfs").out.splitlines()
    assert lines[0] == "a spot job's run is guaranteed 1 h, with a probability of 0.95"
    assert lines[2].startswith("  A100: 16 devices, 5 free;")
    value = json.loads(cotenant("policy", "state", "-o", "json").out)
    classes = json.loads(msgspec.json.encode(CLASSES))
    assert value == {"schema": "policy-forecast/1", "policy": "gfs", **classes}
    assert cotenant("policy", "state", "-o", "svg").out.startswith("<svg")


def test_the_state_of_a_policy_that_learns_is_what_it_has_learned(
    cotenant: Cotenant, controller: Any, replies: ModuleType
) -> None:
    controller.says(wire.GetPolicy, known(replies, policy="lazer", policy_state={"model": "12 jobs seen"}))
    assert cotenant("policy", "state").out == "model: 12 jobs seen\n"
    value = json.loads(cotenant("policy", "state", "-o", "json").out)
    assert value == {"schema": "policy-state/1", "policy": "lazer", "state": {"model": "12 jobs seen"}}
    result = cotenant("policy", "state", "-o", "svg")
    assert (result.code, result.out) == (1, "") and "policy lazer forecasts nothing" in result.err


def test_only_the_policy_in_force_has_a_state(
    cotenant: Cotenant, controller: Any, replies: ModuleType
) -> None:
    controller.says(wire.GetPolicy, known(replies, policy="fifo"))
    result = cotenant("policy", "state", "gfs")
    assert (result.code, result.out) == (1, "") and "policy gfs is not in force, fifo is" in result.err
    assert "policy fifo remembers nothing that it tells" in cotenant("policy", "state").err


def known(replies: ModuleType, **current: Any) -> wire.Policies:
    view = wire.PolicyView(about="", parameters={}, **current)
    changed: wire.Policies = msgspec.structs.replace(replies.policy(), current=view)
    return changed
