"""`cotenant pairs`: what it asks and what it shows."""

from __future__ import annotations

import json
from types import ModuleType
from typing import TYPE_CHECKING

from cotenant.controller.wire import clients as wire

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn


def test_pairs_is_a_table_for_people(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    why = "python b.py ran out of device memory beside python a.py (1 x)"
    crowded = replies.pair(
        second="python b.py", second_xi=None, second_count=0, benefit=None, verdict="crowded"
    )
    barred = replies.pair(**{**_fields(crowded), "quarantine": why})
    controller.says(wire.ListPairs, replies.pairs(barred, replies.pair(), more=4))
    result = cotenant("pairs")
    head, first, second = result.out.splitlines()
    assert head.split()[:4] == ["FIRST", "SECOND", "FIRST", "SLOWED"]
    assert first.endswith(why)
    assert "crowded" in first
    assert "1.25 (7)" in second and "1.60 (5)" in second and "+0.42" in second and "pays" in second
    assert "4 more; --limit shows them" in result.err


def _fields(view: wire.PairView) -> dict[str, object]:
    return {name: getattr(view, name) for name in view.__struct_fields__}


def test_pairs_as_json(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    controller.says(wire.ListPairs, replies.pairs(replies.pair()))
    value = json.loads(cotenant("pairs", "-o", "json").out)
    assert (value["schema"], value["observations"], value["more"]) == ("pairs/1", 3, 0)
    assert value["pairs"] == [
        {
            "schema": "pair/1", "first": "python a.py, batch 8", "second": "python b.py x2", "first_xi": 1.25,
            "second_xi": 1.6, "first_count": 7, "second_count": 5, "first_never_alone": False,
            "second_never_alone": False, "first_predicted_xi": None, "second_predicted_xi": None,
            "alone_device_s": 0.0, "measured_device_s": 0.0, "won_device_s": None,
            "benefit": 0.425, "verdict": "pays", "quarantine": "",
        }
    ]  # fmt: skip
    assert json.loads(cotenant("pairs", "-o", "jsonl").out)["schema"] == "pair/1"


def test_pairs_say_what_was_predicted_and_what_they_won(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    seen = replies.pair(
        first_predicted_xi=1.5, alone_device_s=4000.0, measured_device_s=4720.0, won_device_s=-720.0
    )
    controller.says(wire.ListPairs, replies.pairs(seen))
    out = cotenant("pairs").out
    assert "1.50, -" in out and "-0.2" in out and "WON, DEVICE-H" in out


def test_a_job_that_never_ran_alone_says_so(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    never = replies.pair(
        second_xi=None, second_count=0, benefit=None, verdict="unsure", second_never_alone=True
    )
    controller.says(wire.ListPairs, replies.pairs(never))
    result = cotenant("pairs")
    assert "1.25 (7)" in result.out and "never alone" in result.out and "unsure" in result.out


def test_pairs_asks_for_what_was_meant(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    controller.says(wire.ListPairs, replies.pairs())
    result = cotenant("pairs", "resnet", "--limit", "7")
    assert (result.code, result.out) == (0, "")
    assert "no two jobs have been measured together yet" in result.err
    (asked,) = controller.asked_for(wire.ListPairs)
    assert (asked.containing, asked.limit) == ("resnet", 7)
    assert cotenant("pairs", "--limit", "many").code == 2
