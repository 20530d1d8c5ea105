"""Policy and What-if: nothing is set that was not previewed; a child of its own simulates the past."""

from __future__ import annotations

import re
import sys
import time
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from cotenant.controller.domain import ClassReport, PoolReport
from cotenant.controller.web.pages.what_if import asked_in
from cotenant.controller.web.simulations import Simulated, Simulations, WhatIf
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.building.stand_in import StandIn, refusal
from tests.controller.cli import replies

ASKED = WhatIf(journal="/j", policies="srtf", since="7d", add_gpus=0)


@pytest.fixture(autouse=True)
def policies(controller: StandIn) -> None:
    controller.says(wire.GetPolicy, replies.policy({"scorer": "torch is not installed"}))
    controller.says(wire.ListPairs, replies.pairs(replies.pair()))
    preview = wire.PolicyPreview(policy="fifo", actions=(), queued=3)
    controller.says(wire.PreviewPolicy, wire.PolicyPreviewed(request_id=0, preview=preview))
    controller.says(wire.SetPolicy, wire.Done(request_id=0))


def text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


# --- Policy -----------------------------------------------------------------------------------------


def test_the_policy_in_force_its_parameters_pairs_and_state(browser: TestClient, controller: StandIn) -> None:
    reply = replies.policy()
    current = msgspec.structs.replace(reply.current, policy_state={"class 1": "due <2> of 4 devices"})
    controller.says(wire.GetPolicy, msgspec.structs.replace(reply, current=current))
    page = browser.get("/policy").text
    assert "due &lt;2&gt; of 4 devices" in page
    assert "In force: castor" in text(page) and "ageing_s 3600 (set)" in text(page)
    assert "python b.py x2" in page and "1.60" in page


def test_quota_and_forecast_of_class_hp_are_drawn(browser: TestClient, controller: StandIn) -> None:
    pool = PoolReport(
        device_type="<H200>", capacity=8, free=1, hp_placed=3, hp_waiting=0, spot_may_take=2, spot_waiting=1,
        kept_back=2, recent=(1, 2, 3), forecast_median=(3.0, 4.0), forecast_upper=(4.0, 6.0),
    )  # fmt: skip
    classes = ClassReport(
        guaranteed_h=1.0, level=0.9, eta=1.0, evicted=0, finished=3, pools=(pool,), broken_promises=0
    )
    reply = replies.policy()
    current = msgspec.structs.replace(reply.current, classes=classes)
    controller.says(wire.GetPolicy, msgspec.structs.replace(reply, current=current))
    page = browser.get("/policy").text
    assert "2 are kept back" in text(page)
    assert "<polyline" in page and "<H200>" not in page


def test_a_preview_changes_nothing_and_says_what_is_wrong(browser: TestClient, controller: StandIn) -> None:
    page = browser.get("/policy/preview", params={"name": "fifo", "given": ""})
    assert "It would do nothing at once." in page.text and "3 jobs wait now" in page.text
    wrong = {
        ("best", ""): "there is no policy",
        ("scorer", ""): "there is no policy",
        ("castor", "x=1"): "no parameter",
        ("castor", "share=maybe"): "must be true or false",
        ("castor", "<b>"): "is not KEY=VALUE",
    }
    for (name, given), said in wrong.items():
        answer = browser.get("/policy/preview", params={"name": name, "given": given})
        assert (answer.status_code, said in answer.text, "<b>" in answer.text) == (400, True, False)
    assert controller.asked_for(wire.SetPolicy) == []


def test_a_policy_is_set_by_a_form_of_ours_alone(
    browser: TestClient, controller: StandIn, served: Any
) -> None:
    fields = {"name": "castor", "given": "ageing_s=7200"}
    assert browser.post("/policy/set", data=fields).status_code == 403
    assert controller.asked_for(wire.SetPolicy) == []
    fields["form_token"] = served.form_token(browser)
    answer = browser.post("/policy/set", data=fields, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/policy?changed=castor")
    asked = controller.asked_for(wire.SetPolicy)
    assert [(each.name, each.parameters) for each in asked] == [("castor", {"ageing_s": 7200.0})]
    controller.says(wire.SetPolicy, lambda request: refusal("not-allowed", "only admins may set the policy"))
    answer = browser.post("/policy/set", data=fields)
    assert (answer.status_code, "only admins may set the policy" in answer.text) == (403, True)


# --- What-if ----------------------------------------------------------------------------------------


def child(*lines: str) -> tuple[str, ...]:
    """One that says this and ends."""
    return (sys.executable, "-c", f"print({chr(10).join(lines)!r})")


def over(simulations: Simulations) -> Simulated:
    until_s = time.monotonic() + within_s(20)
    while not simulations.newest()[0].is_over and time.monotonic() < until_s:
        time.sleep(0.01)
    return simulations.newest()[0]


def test_what_a_child_says_is_kept() -> None:
    simulations = Simulations(
        child(
            '{"doing": "simulating srtf", "finished": 3, "total": 9}',
            "a library's own words",
            '{"headline": "h", "notes": ["trust: 3 %"], "titles": ["POLICY"], "rows": [["srtf"]]}',
        )
    )
    assert simulations.start(ASKED)
    found = over(simulations).said
    assert (found.finished, found.total, found.notes, found.rows) == (3, 9, ("trust: 3 %",), (("srtf",),))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"wrong": "no journal", "hint": "submit jobs first"}'], "no journal"),
        (['{"doing": "reading"}'], "it ended without a result (exit 0)"),
        (["[]"], "it ended without a result (exit 0)"),
    ],
)
def test_a_child_that_fails_says_so(lines: list[str], said: str) -> None:
    simulations = Simulations(child(*lines))
    simulations.start(ASKED)
    assert over(simulations).said.wrong == said


def test_one_at_a_time_and_none_outlives_the_server() -> None:
    simulations = Simulations((sys.executable, "-c", "import sys; sys.stdin.read()"))
    assert simulations.start(ASKED)
    assert not simulations.start(ASKED)
    simulations.stop()
    assert simulations.newest()[0].is_over
    assert len(simulations.newest()) == 1


def test_the_real_child_says_what_is_wrong_with_a_journal() -> None:
    simulations = Simulations()
    simulations.start(ASKED._replace(journal="/nowhere/journal.db"))
    assert "/nowhere/journal.db" in over(simulations).said.wrong


def test_only_fields_of_ours_become_arguments() -> None:
    fields = {"policy-srtf": "yes", "policy-gfs-d": "yes", "since": "7d", "add_gpus": "2", "form_token": "x"}
    assert asked_in(fields, "/j") == WhatIf("/j", "srtf,gfs-d", "7d", 2)
    for bad in ({"policy-a;b": ""}, {"policy-os:system": ""}, {"since": "1h"}, {"add_gpus": "-1"}):
        assert asked_in({"since": "", **bad}, "/j") is None


def test_trust_stands_above_the_table(browser: TestClient, served: Any) -> None:
    served.connections.simulations = Simulations(
        child(
            '{"headline": "8 jobs", "notes": ["trust: sjf misses by 3 %", "note: x"],'
            ' "titles": ["POLICY", "JCT MEAN, s"], "rows": [["what happened", "4"], ["<srtf>", "3*"]]}'
        )
    )
    fields = {"form_token": served.form_token(browser), "policy-srtf": "yes", "since": ""}
    assert browser.post("/what-if/start", data=fields, follow_redirects=False).status_code == 303
    over(served.connections.simulations)
    page = text(browser.get("/what-if").text)
    assert page.index("trust: sjf misses by 3 %") < page.index("JCT MEAN, s") < page.index("note: x")
    assert "&lt;srtf&gt; 3*" in page
