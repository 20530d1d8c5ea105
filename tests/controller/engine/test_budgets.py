"""A budget (`--budget`) buys the same training whatever ran beside the job, and however often it left."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import ENDED, StopAttempt
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.state.estimating import estimate_arrival
from cotenant.controller.engine.state.ledger import Estimates
from tests.controller.building import Desk, profile, report, spec

ALONE = profile(8, (1, 0.5, 100.0), duty=0.2)
"""Half a second per step."""
KNOWN: dict[str, Any] = {"profile": ALONE, "batch_size": 8, "budget_s": 300.0}
PLAIN: dict[str, Any] = {"resumable": False, "budget_s": 300.0}


def trained_s(desk: Desk, job_id: str | int) -> float:
    return float(desk.job(job_id).budget.trained_s(desk.now_s))


def test_a_job_alone_stops_with_a_save_when_its_budget_is_used_and_has_finished() -> None:
    desk = Desk("fifo")
    desk.run(1, **KNOWN)
    desk.wait(299.0)  # Its first step has counted when it was told.
    assert desk.phase(1) == "running"
    desk.wait(1.0)
    assert (desk.phase(1), desk.stops()) == ("checkpointing", ["1"])
    desk.durable(1, 602)
    desk.end(1, "stopped")
    assert (desk.phase(1), str(desk.job(1).reason)) == ("done", "its budget of 5m00s of training is used")
    assert desk.job(1).estimate.remaining_s == 0.0


def test_the_loop_of_a_script_ends_and_what_fails_after_it_fails_the_job() -> None:
    for outcome, phase in (("finished", "done"), ("user-failed", "failed")):
        desk = Desk("fifo")
        desk.run(1, **KNOWN)
        (stop,) = (each for each in desk.wait(300.0) if isinstance(each, StopAttempt))
        assert (stop.finish, stop.save, stop.deadline_s) == (True, True, 600.0)
        desk.wait(500.0)
        desk.end(1, outcome)
        assert desk.phase(1) == phase


def test_a_job_whose_steps_nobody_sees_gets_the_time_by_the_clock_and_a_signal() -> None:
    desk = Desk("fifo")
    desk.submit(1, **PLAIN)
    desk.begin(1)
    desk.wait(299.9)
    assert desk.phase(1) == "running"
    desk.wait(0.2)
    assert desk.phase(1) == "stopping"
    desk.end(1, "stopped")
    assert desk.phase(1) == "done"


def test_loads_saves_and_lost_steps_do_not_count() -> None:
    desk = Desk("fifo")
    desk.run(1, **KNOWN)
    desk.wait(100.0)
    desk.progress(1, 200, 0.5)
    desk.durable(1, 100)
    desk.wait(50.0)
    desk.progress(1, 300, 0.5)
    assert trained_s(desk, 1) == pytest.approx(150.0)
    desk.end(1, "infra-failed")
    assert trained_s(desk, 1) == pytest.approx(50.0)
    desk.wait(1000.0)
    desk.start(1)
    assert trained_s(desk, 1) == pytest.approx(50.5)


def test_a_job_that_starts_over_has_its_whole_budget_again() -> None:
    desk = Desk("fifo")
    desk.submit(1, **PLAIN)
    desk.begin(1)
    desk.wait(200.0)
    desk.end(1, "infra-failed")
    desk.wait(60.0)
    assert trained_s(desk, 1) == 0.0


def test_steps_beside_others_count_exactly_once_a_step_time_alone_is_known() -> None:
    desk = Desk("fifo")
    desk.run(1, budget_s=300.0)
    desk.wait(100.0)
    desk.progress(1, 100, None)
    assert trained_s(desk, 1) == pytest.approx(100.0)
    desk.wait(50.0)
    desk.progress(1, 200, 0.5)  # Settled: it is alone.
    assert trained_s(desk, 1) == pytest.approx(100.0)


def test_steps_that_stand_still_are_no_training() -> None:
    desk = Desk("fifo")
    desk.run(1, **KNOWN)
    desk.wait(100.0)
    for _ in range(100):  # It evaluates.
        desk.progress(1, 200, 0.5)
        desk.wait(5.0)
    assert trained_s(desk, 1) == pytest.approx(105.0)
    assert desk.phase(1) == "running"


def test_what_was_taken_for_training_before_the_first_step_was_a_load() -> None:
    desk = Desk("fifo")
    desk.submit(1, **KNOWN)
    desk.begin(1)
    desk.wait(100.0)
    desk.start(1)
    assert trained_s(desk, 1) == pytest.approx(0.5)


def test_a_budget_bounds_the_expected_length() -> None:
    none = Estimates()
    assert estimate_arrival(none, spec(1, budget_s=60.0))[:2] == (60.0, "budget")
    assert estimate_arrival(none, spec(1, budget_s=60.0, expected_s=70.0))[:2] == (60.0, "budget")
    assert estimate_arrival(none, spec(1, budget_s=60.0, expected_s=50.0))[:2] == (50.0, "user")
    desk = Desk("srtf")
    desk.run(1, **KNOWN)
    desk.wait(100.0)
    desk.progress(1, 100, 0.5)
    assert desk.job(1).remaining_now_s(desk.now_s) == pytest.approx(250.0)


def test_a_budget_that_is_used_while_the_job_leaves_for_another_ends_it() -> None:
    desk = Desk("srtf")
    desk.run(1, **KNOWN, job_class="spot")
    desk.wait(298.0)
    desk.progress(1, 597, 0.5)
    desk.tell(ev.PreemptRequested(job_id=desk.job(1).job_id, by="ann"))
    desk.wait(2.0)
    desk.durable(1, 601)
    desk.end(1, "stopped", step=601)
    assert desk.phase(1) == "done"


def test_a_job_that_begins_again_gets_another_budget_from_its_save() -> None:
    desk = Desk("fifo")
    desk.run(1, **KNOWN)
    desk.wait(300.0)
    desk.durable(1, 601)
    desk.end(1, "stopped")
    desk.tell(ev.RequeueRequested(job_id=desk.job(1).job_id, by="ann"))
    desk.start(1)
    desk.wait(290.0)
    assert (desk.phase(1), desk.job(1).progress.step) == ("running", 602)


STRETCHES = st.lists(
    st.tuples(st.sampled_from(("alone", "beside", "leave", "crash", "restart")), st.integers(1, 20)),
    max_size=12,
)


class Trainer:
    """Trains job 1 in the engine, reporting every so many seconds: a step takes 0.5 s alone, 1.3 s beside."""

    def __init__(self, every_s: float) -> None:
        self.desk, self.every_s, self.step, self.guests = Desk("castor", report()), every_s, 1.0, 1
        self.desk.run(1, **KNOWN | {"budget_s": 60.0})

    def go(self, what: str, reports: int) -> None:
        desk = self.desk
        if what == "leave":
            desk.tell(ev.PreemptRequested(job_id=desk.job(1).job_id, by="ann"))
            desk.wait(3.0)
            desk.durable(1, int(self.step))
            desk.end(1, "stopped", step=int(self.step))
        elif what == "crash":
            desk.end(1, "infra-failed")
        elif what == "restart":
            desk.restart()
        else:
            self._find_guest() if what == "beside" else self._lose_guest()
            self._train(reports)
        self._resume()

    def _train(self, reports: int) -> None:
        for _ in range(reports):
            pace_s = 1.3 if self.desk.engine.partners(self.desk.job(1).job_id) else 0.5
            self.desk.wait(self.every_s)
            if self.desk.phase(1) != "running":
                return
            self.step += self.every_s / pace_s
            self.desk.progress(1, int(self.step), pace_s)

    def _find_guest(self) -> None:
        if self.desk.engine.partners(self.desk.job(1).job_id):
            return
        self.guests += 1
        self.desk.submit(self.guests, profile=ALONE, batch_size=8, expected_s=50.0)
        assert self.desk.engine.partners(self.desk.job(1).job_id), self.desk.why(self.guests)
        self.desk.start(self.guests)

    def _lose_guest(self) -> None:
        for job in list(self.desk.engine.jobs.values()):
            if job.job_id != "1" and job.phase not in ENDED:
                self.desk.end(job.job_id)

    def _resume(self) -> None:
        if self.desk.phase(1) not in ("running", "checkpointing", "done"):
            self._lose_guest()
            self.desk.wait(1000.0)
            self.desk.start(1)
            self.step = float(self.desk.job(1).progress.step)


@given(STRETCHES, st.sampled_from((1.0, 4.0)))
def test_a_budget_buys_the_training_of_a_run_alone(stretches: list[tuple[str, int]], every_s: float) -> None:
    """Whatever the sharing, preempting and resuming, within one report of progress."""
    trainer = Trainer(every_s)
    for what, reports in [*stretches, ("alone", 100)]:
        if trainer.desk.phase(1) == "running":
            trainer.go(what, reports)
    assert trainer.desk.phase(1) in ("checkpointing", "done")
    assert trainer.step == pytest.approx(120, abs=every_s / 0.5 + 1)
