"""pcs, live: what a class is due, turns of at least a lease, and why a job waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cotenant.controller.cli.main import main
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.pcs import Pcs, PcsParameters
from cotenant.controller.sim import policies_named
from tests.controller.building import Desk, report

SMALL, LARGE = 50.0, 9000.0


def desk(devices: int, weights: str = "0.5,0.5", thresholds: str = "1000", **more: Any) -> Desk:
    made = Desk("pcs", report("a", devices), **more)
    parameters: dict[str, str | int | float | bool] = {
        "thresholds_gpu_s": thresholds,
        "weights": weights,
        "min_lease_s": 60.0,
        "lease_factor": 0.0,
    }
    made.tell(ev.PolicyChanged(name="pcs", parameters=parameters))
    return made


def test_a_class_within_its_share_gets_devices_of_one_above_when_their_lease_is_over() -> None:
    here = desk(4)
    for number in (1, 2, 3, 4):
        here.run(number, expected_s=LARGE)
    here.submit(5, expected_s=SMALL)
    assert here.phase(5) == "queued"
    assert here.why(5).startswith(
        "first of class 1, which is due 1.00 devices and holds 0; the 1 device it needs"
    )
    here.wait(59.0)
    assert here.phase(4) == "running"
    here.wait(1.0)
    assert [here.phase(number) for number in (1, 2, 3, 4, 5)] == [
        *["running"] * 3,
        "checkpointing",
        "reserved",
    ]
    here.durable(4, here.job(4).progress.step + 1)
    here.end(4, "stopped")
    assert here.phase(5) == "loading"
    assert here.why(4).startswith("first of class 2, which is due 3.00 devices and holds 3")


def test_within_a_class_the_first_to_come_goes_first_whatever_its_length() -> None:
    here = desk(1)
    here.run(1, expected_s=LARGE)
    here.submit(2, expected_s=8000.0)
    here.submit(3, expected_s=2000.0)
    here.wait(500.0)
    assert (here.phase(1), here.phase(2), here.phase(3)) == ("running", "queued", "queued")
    assert here.why(3).startswith("behind job 2 in class 2, which is first come, first served")
    here.end(1)
    assert (here.phase(2), here.phase(3)) == ("loading", "queued")


def test_a_share_below_one_device_becomes_turns() -> None:
    """Due .1 of the one device, a class has saved up 60 s of the other .9 after 540 s."""
    here = desk(1, "0.9,0.1")
    here.run(1, expected_s=900.0)
    here.submit(2, expected_s=LARGE)
    assert here.why(2).startswith(
        "first of class 2, which is due 0.10 devices and holds 0: its 1 device would"
    )
    here.wait(538.0)
    assert here.phase(1) == "running"
    here.wait(3.0)
    assert (here.phase(1), here.phase(2)) == ("checkpointing", "reserved")
    here.durable(1, here.job(1).progress.step + 1)
    here.end(1, "stopped")
    here.start(2)
    here.wait(59.0)
    assert here.phase(2) == "running", "a turn is at least a lease"
    here.wait(60.0)
    assert (here.phase(1), here.phase(2)) == ("reserved", "checkpointing")


def test_devices_that_nobody_is_due_are_used() -> None:
    here = desk(4, "0.9,0.1")
    for number in (1, 2, 3, 4):
        here.run(number, expected_s=LARGE)
    assert [here.phase(number) for number in (1, 2, 3, 4)] == ["running"] * 4


def test_devices_are_kept_back_for_a_gang_that_is_due_more() -> None:
    here = desk(4, "0.5,0.5", thresholds="4000")
    here.run(1, expected_s=LARGE)
    here.run(2, expected_s=LARGE)
    here.run(3, expected_s=LARGE)
    here.submit(4, gpus=2, expected_s=SMALL)
    here.submit(5, expected_s=LARGE)
    assert (here.phase(4), here.phase(5)) == ("queued", "queued")
    here.wait(60.0)
    assert (here.phase(3), here.phase(4), here.phase(5)) == ("checkpointing", "reserved", "queued")


def test_a_job_of_unknown_length_belongs_to_the_last_class() -> None:
    here = desk(1)
    here.run(1, expected_s=SMALL)
    here.submit(2)
    assert "class 2" in here.why(2)


def test_what_it_remembers_comes_back() -> None:
    here = desk(1, "0.9,0.1")
    here.run(1, expected_s=900.0)
    here.submit(2, expected_s=LARGE)
    here.wait(300.0)
    state = here.engine.snapshot().policy_state
    again = Pcs(PcsParameters(weights="0.9,0.1", thresholds_gpu_s="1000"))
    again.load(state)
    assert again.credits(here.now_s) == pytest.approx([-30.0, 30.0])
    assert again.save() == state


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"weights": "1"}, "weights need"),
        ({"thresholds_gpu_s": "10,5"}, "must rise"),
        ({"thresholds_gpu_s": "ten", "weights": "1,1"}, "numbers with commas"),
        ({"min_lease_s": 0.0}, "min_lease_s"),
        ({"lease": 5}, "unknown field"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PcsParameters.parse(parameters)


def test_a_configuration_comes_from_a_file_and_its_label_can_be_typed_again(tmp_path: Path) -> None:
    one = {"class_thresholds": [1000, "inf"], "class_rates": [0.9, 0.1]}
    (tmp_path / "one.json").write_text(json.dumps(one))
    text = f"pcs:config={tmp_path / 'one.json'},delta=0.2"
    (choice,) = policies_named(text)
    assert choice.label == text
    assert policies_named(choice.label) == (choice,)
    assert (choice.parameters["delta"], choice.parameters["thresholds_gpu_s"]) == (0.2, "1000")


def test_a_comparison_takes_one_of_several_configurations(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    near = {"class_thresholds": ["inf"], "class_rates": [1.0]}
    far = {"class_thresholds": [1000, "inf"], "class_rates": [0.9, 0.1]}
    several = tmp_path / "several.json"
    several.write_text(json.dumps({"configs": {"near": near, "far": far}}))
    words = f"sim compare philly/51b7ef --jobs 30 --policies fifo,pcs:config={several}#far -o json"
    assert main(words.split()) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["label"] for run in runs] == ["fifo", f"pcs:config={several}#far"]
    assert runs[1]["parameters"]["thresholds_gpu_s"] == "1000"
    assert main(f"sim compare philly/51b7ef --policies pcs:config={several}".split()) == 2
    assert "near, far" in capsys.readouterr().err
