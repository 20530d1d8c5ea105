"""`whatif FILE` and `submit --what-if`: what would happen to a job now, as a person and a script see it."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from cotenant.controller.domain import JobId, Phase
from cotenant.controller.wire import clients as wire

if TYPE_CHECKING:
    from tests.controller.cli.conftest import Cotenant, StandIn


@pytest.fixture
def answer(replies: ModuleType) -> wire.Foreseen:
    times = wire.EtaTimes(p10_at=replies.at(1100.0), p50_at=replies.at(1200.0), p90_at=None)
    eta = wire.EtaView(
        job_id=JobId("3"), name="mine", phase=Phase.QUEUED, start=times, finish=times, is_calibrated=True,
        basis="12 roll-outs of sjf", policy="sjf", hit_rate=None, hits_of=0, told_at=replies.NOW,
    )  # fmt: skip
    arrival = wire.ArrivalView(
        policy="sjf", roll_outs=12, at_once=False, reasons=("behind 41 in sjf order",), ahead=(JobId("41"),),
        waits_for=(JobId("1"), JobId("2")), etas=(eta,), delayed=1, now=replies.NOW,
        delays=(
            wire.DelayView(job_id=JobId("9"), name="long", user="bob", p10_s=-5.0, p50_s=75.0, p90_s=300.0),
        ),
    )  # fmt: skip
    return wire.Foreseen(request_id=0, arrival=arrival)


def test_a_file_is_tried_and_nothing_is_submitted(
    controller: StandIn, cotenant: Cotenant, answer: wire.Foreseen, at_home: Path
) -> None:
    controller.says(wire.ForeseeArrival, answer)
    (at_home / "train.yaml").write_text("command: 'true'\nexpect: 2h\ngpus: 2\n")
    result = cotenant("whatif", "train.yaml")
    assert result.code == 0, result.err
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert lines[0] == "under sjf, in 12 futures of what is there now:"
    assert lines[1] == "it would wait"
    assert lines[2].startswith("starts about ") and "or any time later" in lines[2]
    assert lines[3:5] == ["behind 41 in sjf order", "ahead of it in the queue: job 41"]
    assert lines[5] == "whose devices it would take: jobs 1, 2"
    assert lines[-1] == "9 long bob +1m15s -5s +5m00s"
    (asked,) = controller.asked_for(wire.ForeseeArrival)
    assert [(spec.gpus, spec.expected_s) for spec in asked.submission.specs] == [(2, 7200.0)]
    assert controller.asked_for(wire.Submit) == []


def test_submit_has_the_same_with_all_its_options(
    controller: StandIn, cotenant: Cotenant, answer: wire.Foreseen
) -> None:
    controller.says(wire.ForeseeArrival, answer)
    value = json.loads(cotenant("submit", "--what-if", "--json", "-g", "4", "--", "true").out)
    assert (value["schema"], value["delayed"], value["delays"][0]["job"]) == ("arrival/1", 1, "9")
    assert controller.asked_for(wire.ForeseeArrival)[0].submission.specs[0].gpus == 4


def test_a_job_is_not_mixed_with_the_past(cotenant: Cotenant) -> None:
    result = cotenant("whatif", "--policy", "srtf", "--", "true")
    assert (result.code, "as it is now" in result.err) == (2, True)
