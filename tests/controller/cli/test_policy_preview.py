"""`cotenant policy set NAME --preview`: it asks and shows, and sets nothing."""

from __future__ import annotations

import json
from types import ModuleType
from typing import TYPE_CHECKING

from cotenant.controller.domain import JobId
from cotenant.controller.wire import clients as wire

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn

ACTION = wire.PreviewedAction(
    job_id=JobId("2"), name="short", what="share on h1/0", reason="sharing with 1 pays: average completion"
)


def says(controller: StandIn, replies: ModuleType, *actions: wire.PreviewedAction) -> None:
    controller.says(wire.GetPolicy, replies.policy())
    preview = wire.PolicyPreview(policy="castor", actions=actions, queued=3, more=2)
    controller.says(wire.PreviewPolicy, wire.PolicyPreviewed(request_id=0, preview=preview))


def test_what_would_happen_is_shown_and_nothing_is_set(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    says(controller, replies, ACTION)
    result = cotenant("policy", "set", "castor", "ageing_s=60", "--preview")
    assert result.out.splitlines() == [
        "policy castor would at once:",
        "  share on h1/0: job 2 (short)",
        "    sharing with 1 pays: average completion",
        "  and 2 actions more: --json",
        "nothing has been changed; 3 jobs wait now",
    ]
    (asked,) = controller.asked_for(wire.PreviewPolicy)
    assert (asked.name, asked.parameters) == ("castor", {"ageing_s": 60.0})
    assert controller.asked_for(wire.SetPolicy) == []


def test_as_json_it_is_what_came(controller: StandIn, replies: ModuleType, cotenant: Cotenant) -> None:
    says(controller, replies, ACTION)
    value = json.loads(cotenant("policy", "set", "castor", "--preview", "--json").out)
    assert (value["schema"], value["actions"][0]["job"]) == ("policy-preview/1", "2")


def test_where_nothing_would_happen_it_says_so(
    controller: StandIn, replies: ModuleType, cotenant: Cotenant
) -> None:
    says(controller, replies)
    assert "policy castor would do nothing at once" in cotenant("policy", "set", "castor", "--preview").out
