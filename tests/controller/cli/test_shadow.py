"""`policy shadow`: begun, told of, simulated and ended, as a person and a script see it."""

from __future__ import annotations

import json
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from cotenant.controller.domain import JobId
from cotenant.controller.wire import clients as wire

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn


def view(replies: ModuleType, **more: Any) -> wire.Shadowed:
    known: dict[str, Any] = {
        "policy": "castor", "parameters": {"ageing_s": 3600.0}, "in_force": "fifo", "set_by": "root",
        "since": replies.at(0.0), "followed_to": replies.NOW, "behind_entries": 0,
        "decisions": 12, "alike": 9, "differing": {"starts": 2, "preempts": 1}, "sooner_jobs": 2,
        "sooner_mean_s": 90.0, "failed": "",
        "unfollowed": 0, "simulated": None, "simulated_to": None, "why_not": "", "is_simulating": False,
        "error": "",
        "last": (
            wire.ShadowDifference(
                decided_at=replies.NOW, job_id=JobId("7"), done="", instead="share on h1/0", reason="it pays"
            ),
        ),
    }  # fmt: skip
    return wire.Shadowed(request_id=0, shadow=wire.ShadowView(**{**known, **more}))


def policies(name: str = "castor") -> wire.Policies:
    offer = wire.PolicyOffer(
        policy=name, about="shares", current=False, available=True, defaults={"ageing_s": 0.0}
    )
    current = wire.PolicyView(policy="fifo", about="", parameters={})
    return wire.Policies(request_id=0, current=current, given={}, offers=(offer,))


def test_a_policy_is_set_beside_with_its_parameters_and_taken_away(
    controller: StandIn, cotenant: Cotenant
) -> None:
    controller.says(wire.GetPolicy, policies())
    controller.says(wire.SetShadow, wire.Done(request_id=0, lines=("castor decides beside fifo",)))
    assert cotenant("policy", "shadow", "castor", "ageing_s=3600").out == "castor decides beside fifo\n"
    assert cotenant("policy", "shadow", "off").code == 0
    first, second = controller.asked_for(wire.SetShadow)
    assert (first.name, first.parameters, second.name) == ("castor", {"ageing_s": 3600.0}, "")
    wrong = cotenant("policy", "shadow", "cator")
    assert (wrong.code, "did you mean castor" in wrong.err) == (2, True)


def test_what_is_known_by_now(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    controller.says(wire.GetShadow, view(replies))
    out = cotenant("policy", "shadow").out
    assert out.startswith("castor:ageing_s=3600 decides beside fifo since ")
    assert "12 decisions, 9 alike\n      2  it would have started a job that was kept waiting\n" in out
    assert "2 jobs would have started sooner, by 1m30s on average" in out
    assert "share on h1/0" in out and "not simulated yet" in out
    value = json.loads(cotenant("policy", "shadow", "--json").out)
    assert (value["schema"], value["last"][0]["job"]) == ("shadow/1", "7")
    assert [asked.simulate for asked in controller.asked_for(wire.GetShadow)] == [False, False]


def test_a_report_waits_for_its_simulation_and_says_first_how_far_to_trust_it(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    run = {"label": "castor", "policy": "castor", "jct_s": {"mean": 60.0}, "interrupted": False}
    happened = {"label": "what happened", "jct_s": {"mean": 100.0}, "interrupted": False}
    document = {
        "jobs": 5, "actual": happened, "runs": [run], "notes": ["n"],
        "calibration": {"policy": "fifo", "jct_error": {"p50": 0.1, "p90": 0.3}, "jct_mean_ratio": 1.05},
    }  # fmt: skip
    answers = iter((view(replies, is_simulating=True), view(replies, simulated=document)))
    controller.says(wire.GetShadow, lambda asked: next(answers))
    result = cotenant("policy", "shadow", "report")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    at = lines.index("simulated: 5 jobs that arrived since and have ended")
    assert lines[at + 1].startswith("  trust: fifo, simulated, misses a job's real JCT by 10 %")
    assert "what happened" in result.out and "note: n" in result.out
    assert [asked.simulate for asked in controller.asked_for(wire.GetShadow)] == [True, False]


@pytest.mark.parametrize("more", [{"failed": "ZeroDivisionError: x"}, {"unfollowed": 3}, {"error": "gone"}])
def test_what_went_wrong_is_said(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant, more: dict[str, Any]
) -> None:
    controller.says(wire.GetShadow, view(replies, **more))
    said = {"failed": "no longer asked", "unfollowed": "do not rely", "error": "attempt to follow failed"}
    assert said[next(iter(more))] in cotenant("policy", "shadow").out
