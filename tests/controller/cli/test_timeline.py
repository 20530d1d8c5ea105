"""`timeline` as people and scripts see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from cotenant.controller.domain import DeviceId, JobId, Phase
from cotenant.controller.wire import clients as wire

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn


@pytest.fixture
def asked(controller: StandIn, replies: ModuleType) -> StandIn:
    job = wire.TimelineJob(
        job_id=JobId("7"),
        name="a <name>\u202e",
        user="ada",
        phase=Phase.RUNNING,
        submitted_at=replies.at(90.0),
        ended_at=None,
        attempts=(replies.attempt(),),
    )
    view = wire.TimelineView(
        begin_at=replies.at(0.0),
        end_at=replies.at(1000.0),
        devices=(wire.TimelineDevice(device_id=DeviceId("laptop/cpu0"), about="2 cores, 900 MiB"),),
        jobs=(job,),
        policies=(wire.PolicySince(policy="castor", from_at=replies.at(-5.0)),),
        more=3,
    )
    controller.says(wire.GetTimeline, wire.Timelined(request_id=0, timeline=view, now=replies.NOW))
    return controller


def test_a_picture_is_printed_and_the_rest_is_said(asked: StandIn, cotenant: Cotenant) -> None:
    result = cotenant("timeline", "--since", "2h", "--until", "90m")
    assert (result.code, result.err) == (0, "3 more jobs: see --limit\n")
    assert "castor" in result.out and "\u202e" not in result.out
    ElementTree.fromstring(result.out)
    question = asked.asked_for(wire.GetTimeline)[0]
    assert (question.since_s, question.until_s) == (7200.0, 5400.0)


def test_perfetto_and_scripts_get_json(asked: StandIn, cotenant: Cotenant) -> None:
    trace = json.loads(cotenant("timeline", "-o", "chrome").out)
    assert {"load", "train"} <= {event["name"] for event in trace["traceEvents"]}
    value = json.loads(cotenant("timeline", "-o", "json").out)
    assert (value["schema"], value["jobs"][0]["job"], value["more"]) == ("timeline/1", "7", 3)


def test_what_makes_no_sense_is_refused(
    asked: StandIn, cotenant: Cotenant, terminal: Callable[[int], None]
) -> None:
    assert cotenant("timeline", "--since", "1h", "--until", "2h").code == 2
    assert cotenant("timeline", "--since", "soon").code == 2
    terminal(80)
    result = cotenant("timeline")
    assert (result.code, "cotenant timeline > t.svg" in result.err) == (2, True)
