"""Attempts that end because a split or a resume would have changed the result: what becomes of the job, and
what `show` says of them."""

from __future__ import annotations

from typing import Any

from cotenant.checkpoint.talk import protocol
from cotenant.controller.domain import (
    RESUME_VARIABLE,
    SPLIT_REFUSED,
    AttemptNo,
    Capabilities,
    HostId,
    JobId,
    JobWords,
    Launch,
    Parts,
    StartAttempt,
    render,
    render_whole,
)
from cotenant.controller.domain import events as ev
from tests.controller.history.test_history import Watched

HOW = "step 9 was made otherwise than in the attempt that was left: `noise` was 1, now 2"
WORDS = ("accumulate", "quiet", "checkpoint", "progress")


def left_at(*steps: int) -> Watched:
    """A job that has been preempted at these steps, and is loading again."""
    desk = Watched("fifo")
    desk.submit(1, zero_code=WORDS)
    for step in steps:
        desk.start(1)
        desk.durable(1, step)
        desk.tell(ev.PreemptRequested(job_id=JobId("1"), by="root"))
        desk.end(1, "stopped", step=step)
    desk.start(1)
    return desk


def proves(desk: Watched, steps: int) -> None:
    job = desk.job(1)
    of: dict[str, Any] = {"job_id": job.job_id, "attempt": job.attempt.number, "host_id": HostId("a")}
    step = job.attempt.start_step
    can = Capabilities(proven=steps)
    desk.tell(ev.CapabilitiesSeen(**of, resumable=True, step=step, exact=True, capabilities=can))


def goes_otherwise(desk: Watched) -> Launch:
    """How the next attempt is started."""
    desk.end(1, "user-failed", exit_code=1, detail=HOW, went_otherwise=True)
    (start,) = (each for each in desk.commands if isinstance(each, StartAttempt))
    assert start.resume_step == desk.job(1).durable_step
    return start.launch


def test_a_resume_that_was_proven_is_shown_with_its_number_of_steps() -> None:
    desk = left_at(8)
    proves(desk, 0)
    assert desk.attempt("1", 2).proven == 0
    proves(desk, 2)
    assert (desk.attempt("1", 2).exact, desk.attempt("1", 2).proven) == (True, 2)
    assert [each.proven for each in desk.job(1).progress.checkpoints] == [2]


def test_the_kind_of_a_job_counts_each_resume_once() -> None:
    desk = left_at(8)
    for steps in (0, 2, 2):  # What one host says again, or another host of the gang, is no second resume.
        proves(desk, steps)
    assert of_kind(desk) == (1, 0)
    desk.tell(ev.PreemptRequested(job_id=JobId("1"), by="root"))
    desk.end(1, "stopped", step=8)
    desk.start(1)
    proves(desk, 2)
    assert of_kind(desk) == (2, 0)


def test_the_kind_of_a_job_keeps_a_resume_that_went_otherwise_over_a_restart() -> None:
    desk = left_at(8)
    proves(desk, 2)
    goes_otherwise(desk)
    desk.restart()
    assert of_kind(desk) == (1, 1)
    assert desk.engine.ledger.resumes.kinds_refuted == 1


def of_kind(desk: Watched) -> tuple[int, int]:
    counts = desk.engine.ledger.resumes.counts(desk.job(1))
    return counts.proven, counts.refuted


def test_a_job_that_goes_otherwise_begins_again_at_its_beginning_and_is_never_preempted_or_saved() -> None:
    desk = left_at(8)
    launch = goes_otherwise(desk)
    assert launch.zero_code == ("accumulate", "quiet", "progress")
    assert RESUME_VARIABLE not in launch.env
    job = desk.job(1)
    assert (desk.phase(1), job.attempt.number, job.durable_step) == ("loading", 3, 0)
    assert (job.counts.user_failures, job.counts.infra_failures) == (0, 0)
    desk.start(1)
    desk.durable(1, 20)
    assert not desk.job(1).progress.resumable
    assert (desk.job(1).resumable_note, desk.job(1).durable_step) == (HOW, 0)
    desk.tell(ev.PreemptRequested(job_id=JobId("1"), by="root"))
    assert desk.phase(1) == "running"
    ended = desk.attempt("1", 2)
    assert ended.outcome == "resume-refused"
    assert ended.reason.startswith(f"it did not go on as it was left ({HOW}); it begins again at step 0")


def test_it_goes_back_to_the_newest_checkpoint_that_was_proven() -> None:
    desk = left_at(8)
    proves(desk, 2)
    desk.durable(1, 15)
    desk.tell(ev.PreemptRequested(job_id=JobId("1"), by="root"))
    desk.end(1, "stopped", step=15)
    desk.start(1)
    launch = goes_otherwise(desk)
    assert launch.env[RESUME_VARIABLE] == "a1-s8"
    assert set(launch.zero_code) == {"accumulate", "quiet", "progress", "leave"}
    assert desk.job(1).durable_step == 8
    launch = goes_otherwise(desk)
    assert RESUME_VARIABLE not in launch.env, "what it was resumed from has been tried"
    assert desk.job(1).durable_step == 0


def test_a_job_that_is_told_to_leave_while_it_goes_otherwise_keeps_that_reason() -> None:
    desk = left_at(8)
    desk.tell(ev.CancelRequested(job_id=JobId("1"), by="ann"))
    desk.end(1, "user-failed", detail=HOW, went_otherwise=True)
    assert desk.phase(1) == "cancelled"


def test_an_attempt_whose_split_was_refused_is_called_that() -> None:
    desk = Watched("fifo")
    desk.run("1")
    placement = desk.job(1).placement
    desk.job(1).placement = type(placement)(
        devices=placement.devices, accumulation_steps=2, reason=placement.reason
    )
    desk.end(1, "user-failed", exit_code=1, detail=f"exit code 1: {SPLIT_REFUSED}parts are 1e-2 away")
    assert desk.job(1).attempt.number == 2
    ended = desk.attempt("1", 1)
    assert ended.outcome == "split-refused"
    assert ended.reason.startswith("its batches cannot be split after all (exit code 1: cotenant.gradaccum")


def test_an_attempt_keeps_into_how_many_parts_its_ranks_cut_their_batches() -> None:
    desk = Watched("fifo")
    desk.run("1")
    words = JobWords(parts=(Parts(from_step=0, s=1), Parts(from_step=36, s=2)))
    of: dict[str, Any] = {"job_id": JobId("1"), "attempt": AttemptNo(1), "host_id": HostId("a")}
    desk.tell(ev.OutputSeen(**of, words=words))
    assert desk.attempt("1").words == words


def test_what_is_missing_of_the_output_is_in_the_reason_and_stays_with_the_attempt() -> None:
    desk = Watched("fifo")
    desk.run("1")
    lost = "its output could not be written to /full/x: No space left on device"
    of: dict[str, Any] = {"job_id": JobId("1"), "attempt": AttemptNo(1)}
    desk.tell(ev.OutputSeen(**of, host_id=HostId("a"), words=JobWords(link="https://a.example/1")))
    desk.tell(ev.OutputSeen(**of, host_id=HostId("b"), words=JobWords(lost=lost)))
    assert desk.attempt("1").words == JobWords(link="https://a.example/1", lost=lost)
    desk.end(1, "finished", exit_code=0, detail=lost)
    reason = desk.job(1).reason
    assert (desk.phase(1), render_whole(reason)) == ("done", f"finished; {lost}")
    assert render(reason) == "finished; some of its output could not be written", "whoever else asks"


def test_the_variable_that_names_a_checkpoint_is_that_of_the_protocol() -> None:
    assert RESUME_VARIABLE == protocol.ENV_RESUME
