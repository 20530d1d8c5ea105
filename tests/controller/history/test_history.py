"""What `show` and `explain` say of an ended attempt is what ended it, whatever the job does next."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.controller.api import note_text
from cotenant.controller.domain import AnyCommand, HostId, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.history.attempt_records import AttemptRecord
from cotenant.controller.history.history import History
from tests.controller.building import Desk, report


class Watched(Desk):
    """A desk whose events are all watched."""

    history: History

    def tell(self, event: ev.AnyEvent, after_s: float = 0.0) -> list[AnyCommand]:
        if not hasattr(self, "history"):
            self.history = History()
        commands = super().tell(event, after_s)
        self.history.observe(self.engine, event, commands)
        return commands

    def attempt(self, job_id: str, number: int = 1) -> AttemptRecord:
        return next(s for s in self.history.attempts(JobId(job_id)) if s.attempt == number)

    def told(self, job_id: str) -> list[str]:
        return [f"{note.what}: {note.reason}" for note in self.history.notes(JobId(job_id), 50)]


def preempted_by_a_shorter_job() -> Watched:
    desk = Watched("srtf")
    desk.run("1", expected_s=1000.0)
    desk.submit("2", expected_s=10.0)
    assert desk.phase("1") == "checkpointing"
    return desk


def test_a_preempted_attempt_names_the_newcomer_and_the_step_it_saved() -> None:
    desk = preempted_by_a_shorter_job()
    desk.durable("1", 40)
    desk.end("1", "stopped", step=40, detail="saved and stopped at step 40")
    assert desk.told("1")[:2] == [
        "attempt 1 preempted: saved and stopped at step 40",
        "preempt for 2: preempted for job 2, which has 10s left; this job has 16m40s",
    ]
    ended = desk.attempt("1")
    assert ended.outcome == "preempted"
    assert ended.reason.startswith("preempted for job 2, which has 10s left")
    assert ended.reason.endswith("; saved and stopped at step 40")


def test_a_load_preempted_before_its_first_step_says_so_once() -> None:
    desk = Watched("srtf")
    desk.submit("1", expected_s=1000.0, resumable=True)
    desk.submit("2", expected_s=10.0)
    why = str(desk.attempt("1").stop_reason)
    desk.end("1", "stopped", detail=f"ended on request: {why}")
    assert (desk.attempt("1").outcome, desk.attempt("1").reason) == ("preempted", why)


def test_preemption_by_a_user_is_told_from_preemption_by_the_policy() -> None:
    desk = Watched("fifo")
    desk.run("1")
    desk.tell(ev.PreemptRequested(job_id=JobId("1"), by="ann"))
    desk.end("1", "stopped")
    assert desk.attempt("1").outcome == "preempted"
    assert desk.attempt("1").reason == "preempted by ann"
    assert desk.attempt("1", 2).ended_s is None, "it started again at once, for another reason"


def test_a_missed_deadline_is_the_reason_when_the_engine_insists() -> None:
    desk = preempted_by_a_shorter_job()
    desk.wait(desk.engine.config.policy.stop_deadline_s + 20.0)
    desk.end("1", "stopped")
    assert desk.attempt("1").reason.startswith("no checkpoint within 2m00s after the stop request")


def test_a_missed_deadline_is_told_when_the_supervisor_ends_it() -> None:
    desk = preempted_by_a_shorter_job()
    late = "did not save and stop within 120 s after the request; it goes back to step 0"
    desk.end("1", "stopped", detail=late)
    assert desk.attempt("1").reason.startswith("preempted for job 2")
    assert desk.attempt("1").reason.endswith(late)


def test_a_failure_while_saving_is_not_called_a_preemption() -> None:
    desk = preempted_by_a_shorter_job()
    desk.end("1", "infra-failed", detail="ended by SIGTERM from outside")
    assert desk.attempt("1").outcome == "infra-failed"
    assert desk.attempt("1").reason == "the infrastructure failed it: ended by SIGTERM from outside"


@pytest.mark.parametrize(
    ("outcome", "detail", "line"),
    [
        ("finished", "", "attempt 1 finished"),
        ("user-failed", "exit code 3", "attempt 1 failed: exit code 3"),
        ("infra-failed", "killed", "attempt 1 infra-failed: the infrastructure failed it: killed"),
    ],
)
def test_an_end_is_told_once(outcome: Any, detail: str, line: str) -> None:
    desk = Watched("fifo")
    desk.run("1")
    desk.end("1", outcome, detail=detail)
    assert note_text(next(desk.history.notes(JobId("1"), 1)), whole=True) == line


def test_a_retry_that_starts_at_once_leaves_the_failure_with_the_attempt_that_failed() -> None:
    desk = Watched("fifo")
    desk.run("1", retries=1)
    desk.end("1", "user-failed", detail="exit code 3", exit_code=3)
    first, second = desk.history.attempts(JobId("1"))
    assert (first.outcome, first.reason) == ("user-failed", "failed: exit code 3")
    assert (second.outcome, second.reason) == ("", "")
    assert "attempt 1 user-failed: failed: exit code 3" in desk.told("1")


@pytest.mark.parametrize("stopping", [False, True])
def test_a_lost_host_is_the_reason_even_if_the_job_goes_on_elsewhere_at_once(stopping: bool) -> None:
    desk = Watched("fifo", report("a", checkpoint_domain="nas"), report("b", checkpoint_domain="nas"))
    desk.run("1")
    (host,) = desk.hosts("1")
    if stopping:
        desk.tell(ev.PreemptRequested(job_id=JobId("1"), by="ann"))
    desk.tell(ev.HostLost(host_id=HostId(host), by="lease"))
    assert desk.phase("1") == "loading"
    assert (desk.attempt("1").outcome, desk.attempt("1").reason) == (
        "host-lost",
        f"host {host} is lost (lease)",
    )


def test_a_cancelled_attempt_names_who_cancelled_it() -> None:
    desk = preempted_by_a_shorter_job()
    desk.tell(ev.CancelRequested(job_id=JobId("1"), by="bob"))
    desk.end("1", "stopped", detail="ended on request (cancelled by bob)")
    assert desk.told("1")[:2] == ["attempt 1 cancelled: ended on request", "stop: cancelled by bob"]
    assert (desk.attempt("1").outcome, desk.attempt("1").reason) == ("cancelled", "cancelled by bob")


def test_a_job_that_finishes_before_it_could_be_stopped_has_finished() -> None:
    desk = preempted_by_a_shorter_job()
    desk.end("1")
    assert (desk.attempt("1").outcome, desk.attempt("1").reason) == ("finished", "finished")


def test_of_a_gang_the_part_that_failed_gives_the_reason_not_those_stopped_for_it() -> None:
    desk = Watched("fifo", report("a"), report("b"))
    desk.run("1", gpus=2, nodes=2, retries=1)
    first, second = desk.hosts("1")
    desk.end("1", "user-failed", host=first, detail="exit code 1")
    desk.end("1", "stopped", host=second, detail="ended on request")
    assert desk.attempt("1").outcome == "user-failed"
    assert desk.attempt("1").reason.startswith("failed: exit code 1")
