"""Pairs that turn out to lose: measured, parted, and not made again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import Job, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import LAG_S
from cotenant.controller.performance import Interference
from tests.controller.building import Desk, profile

STEP_S = 0.01
LIGHT = profile(8, (1, STEP_S, 100.0), duty=0.2)
SHARING = ("castor", "castor-cost", "sjf-ffs", "lucid")


def job(script: str, expected_s: float | None = 1000.0, **more: Any) -> dict[str, Any]:
    known = {"load_s": 20.0, "pause_s": 5.0, "argv": ("python", script), "profile": LIGHT, "batch_size": 8}
    return {**known, "expected_s": expected_s, **more}


def pair(policy: str = "castor", first: Any = None, second: Any = None, **parameters: Any) -> Desk:
    """Job 2 is job 1's guest, and both train."""
    desk = Desk(policy)
    if parameters:
        desk.tell(ev.PolicyChanged(name=policy, parameters=parameters, by="root"))
    desk.run(1, **(first or job("x.py", 900.0)))
    desk.submit(2, **(second or job("y.py")))
    assert desk.phase(2) == "loading"
    desk.start(2)
    return desk


def measure(desk: Desk, first_xi: float, second_xi: float, times: int = 3, first_step: int = 2) -> None:
    """Both report a step that takes so many times as long as alone, so many times, when they have been
    together for some seconds."""
    desk.wait(LAG_S)
    for step in range(first_step, first_step + times):
        for number, xi in ((1, first_xi), (2, second_xi)):
            if desk.phase(number) == "running":
                desk.progress(number, step, xi * STEP_S)


@pytest.mark.parametrize("policy", SHARING)
def test_a_pair_that_loses_is_parted_and_not_made_again(policy: str) -> None:
    desk = pair(policy)
    measure(desk, 2.5, 2.5)
    assert [desk.phase(1), desk.phase(2)] == ["running", "checkpointing"]
    assert str(desk.job(2).attempt.stop_reason) == (
        "parted from 1: together they were measured to be slowed 2.50 and 2.50 times, worse than taking turns"
    )
    desk.durable(2, 4)
    desk.end(2, "stopped", step=4)
    assert desk.phase(2) == "queued"
    desk.submit(3, **job("y.py", 20.0))
    assert desk.phase(3) == "queued"
    assert desk.why(3).startswith(
        "no sharing with 1: jobs of these two kinds were measured to be slowed 2.50"
    )
    desk.end(1)
    assert {desk.phase(2), desk.phase(3)} >= {"loading"}, "they may have the device to themselves"


@pytest.mark.parametrize("policy", SHARING)
def test_without_the_option_nobody_is_parted(policy: str) -> None:
    desk = pair(policy, part=False)
    measure(desk, 2.5, 2.5, times=6)
    assert [desk.phase(1), desk.phase(2)] == ["running", "running"]


@pytest.mark.parametrize(("parameters", "enough"), [({}, 2), ({"observations": 4}, 4)])
def test_a_few_measurements_part_nobody(parameters: Any, enough: int) -> None:
    desk = pair(**parameters)
    measure(desk, 4.0, 4.0, times=enough - 1)
    assert [desk.phase(1), desk.phase(2)] == ["running", "running"]
    measure(desk, 4.0, 4.0, times=1, first_step=1 + enough)
    assert desk.phase(2) == "checkpointing"


class Model:
    """A trained model that expects each to be slowed so much, give or take a margin."""

    def __init__(self, xi: float, margin: float) -> None:
        self._answer = Interference(first=xi, second=xi, source="predicted", margins=(margin, margin))

    def ratios_beside(self, job: Job, partners: Sequence[Job]) -> Sequence[Interference | None]:
        return [self._answer for _ in partners]


def test_one_measurement_beyond_what_was_predicted_parts_a_pair_that_loses() -> None:
    desk = pair()
    desk.engine.ledger.pairs.foresight = Model(1.2, 0.3)
    measure(desk, 2.6, 2.4, times=1)
    assert desk.phase(2) == "checkpointing"
    assert str(desk.job(2).attempt.stop_reason) == (
        "parted from 1: together they were measured to be slowed 2.40 and 2.60 times, worse than taking "
        "turns, where at most 1.50 and 1.50 had been predicted"
    )


@pytest.mark.parametrize(
    ("xi", "margin", "measured", "parameters"),
    [
        (2.3, 0.5, 2.5, {}),  # As was predicted: it may be chance.
        (1.2, 0.1, 1.6, {}),  # Unexpected, and no loss.
        (1.2, 0.3, 2.6, {"part": False}),
    ],
)
def test_one_measurement_that_proves_no_loss_parts_nobody(
    xi: float, margin: float, measured: float, parameters: Any
) -> None:
    desk = pair("sjf-ffs", **parameters)
    desk.engine.ledger.pairs.foresight = Model(xi, margin)
    measure(desk, measured, measured, times=1)
    assert [desk.phase(1), desk.phase(2)] == ["running", "running"]


def test_one_sided_measurements_part_nobody() -> None:
    desk = pair()
    desk.wait(LAG_S)
    for step in range(2, 9):
        desk.progress(1, step, 9.0 * STEP_S)
    assert [desk.phase(1), desk.phase(2)] == ["running", "running"]


def test_a_pair_that_only_takes_turns_is_parted_by_theorem_1_alone() -> None:
    """xi = 2 both: no work is lost, but two equally long jobs would end earlier one after the other."""
    desk = pair()
    measure(desk, 2.0, 2.0)
    assert desk.phase(2) == "checkpointing"
    code, operands = desk.job(2).attempt.stop_reason.code, desk.job(2).attempt.stop_reason.operands
    assert code == "parted-theorem"
    together_s, apart_s = float(operands[3]), float(operands[4])
    assert together_s > apart_s


def test_a_short_guest_of_a_long_job_stays_though_it_slows_it() -> None:
    desk = pair(second=job("y.py", 40.0))
    measure(desk, 2.0, 2.0)
    assert [desk.phase(1), desk.phase(2)] == ["running", "running"], "it will have left before a load is over"


def test_the_one_whose_stopping_costs_less_stops_even_if_it_came_first() -> None:
    desk = pair(first=job("x.py", 5000.0), second=job("y.py", 500.0))
    measure(desk, 3.0, 3.0)
    assert [desk.phase(1), desk.phase(2)] == ["checkpointing", "running"]


@pytest.mark.parametrize(
    ("first", "second", "stops"),
    [
        ({"job_class": "hp"}, {}, 2),
        ({}, {"job_class": "hp"}, 1),
        ({"job_class": "hp"}, {"job_class": "hp"}, 0),
        ({"resumable": False}, {"resumable": False}, 0),
    ],
)
def test_only_who_may_be_preempted_stops(first: Any, second: Any, stops: int) -> None:
    desk = pair(first=job("x.py", 900.0, **first), second=job("y.py", **second))
    measure(desk, 3.0, 3.0)
    stopping = [number for number in (1, 2) if desk.phase(number) == "checkpointing"]
    assert stopping == ([stops] if stops else [])


def test_where_a_length_is_not_known_the_later_one_stops_if_work_is_lost() -> None:
    for slowed, stops in ((2.5, "checkpointing"), (2.0, "running")):
        desk = pair("sjf-ffs", first=job("x.py", None), second=job("y.py", None))
        measure(desk, slowed, slowed)
        assert [desk.phase(1), desk.phase(2)] == ["running", stops]


def test_a_pair_measured_elsewhere_parts_as_well() -> None:
    desk = pair()
    for _ in range(3):
        desk.tell(ev.PairObserved(first=JobId("1"), second=JobId("2"), first_xi=3.0, second_xi=3.0))
    assert desk.phase(2) == "checkpointing"


def test_parting_survives_recovery() -> None:
    """The verdict is in what is folded: a policy that starts anew knows it."""
    desk = pair()
    measure(desk, 2.5, 2.5)
    desk.durable(2, 4)
    desk.end(2, "stopped", step=4)
    desk.restart()
    desk.submit(3, **job("y.py", 20.0))
    assert desk.why(3).startswith("no sharing with 1: jobs of these two kinds were measured")


@given(
    lengths=st.tuples(st.floats(1.0, 5000.0), st.floats(1.0, 5000.0)),
    slowed=st.tuples(st.floats(1.0, 5.0), st.floats(1.0, 5.0)),
    policy=st.sampled_from(SHARING),
)
def test_two_jobs_that_were_parted_do_not_share_again(
    lengths: tuple[float, float], slowed: tuple[float, float], policy: str
) -> None:
    """Else two jobs could take turns at saving and loading for ever."""
    desk = Desk(policy)
    desk.run(1, **job("x.py", lengths[0]))
    desk.submit(2, **job("y.py", lengths[1]))
    if desk.phase(2) != "loading":
        return
    desk.start(2)
    measure(desk, *slowed)
    stopped = next((number for number in (1, 2) if desk.phase(number) == "checkpointing"), None)
    if stopped is None:
        return
    desk.durable(stopped, 4)
    desk.end(stopped, "stopped", step=4)
    stays = 3 - stopped
    for step in (10, 40):
        assert desk.phase(stopped) == "queued"
        desk.wait(60.0)
        desk.progress(stays, step, STEP_S)
        desk.tell(ev.AlarmRang())
    desk.end(stays)
    assert desk.phase(stopped) == "loading"
