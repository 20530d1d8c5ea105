"""The engine as a user, an agent and a crash see it: one sentence per promise."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from cotenant.controller.domain import (
    LOAD_S,
    AttemptNo,
    Capabilities,
    ComputeRequest,
    Container,
    Dependency,
    ForgetJob,
    HostId,
    JobId,
    JobSpec,
    Launch,
    LaunchKind,
    PolicySettings,
    SaveAttempt,
    StartAttempt,
    StopAttempt,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, EngineConfig
from cotenant.controller.engine.engine import HANDLERS
from cotenant.controller.policies import registry
from tests.building.results import take_verdict
from tests.controller.building import Desk, profile, report, spec

A, B = HostId("a"), HostId("b")


def ended(job: str, attempt: int, host: str, outcome: str = "finished", **more: Any) -> ev.AttemptEnded:
    verdict = take_verdict(more := {"outcome": outcome, **more})
    return ev.AttemptEnded(
        job_id=JobId(job), attempt=AttemptNo(attempt), host_id=HostId(host), verdict=verdict, **more
    )


def test_every_event_has_a_handler() -> None:
    assert {*HANDLERS, ev.PolicyChanged} == set(get_args(ev.AnyEvent))


# --- A job's life ------------------------------------------------------------------------------------


def test_a_job_goes_from_the_queue_over_loading_and_running_to_done() -> None:
    desk = Desk("fifo")
    desk.submit(1, expected_s=50)
    assert desk.starts() == ["1"]
    assert desk.phase(1) == "loading"
    desk.now_s = 3
    desk.start(1)
    assert desk.phase(1) == "running"
    desk.now_s = 13
    desk.end(1)
    job = desk.job(1)
    assert (job.phase, job.spent.wait_s, job.spent.load_s, job.spent.run_s, job.spent.pause_s) == (
        "done",
        0,
        3,
        10,
        0,
    )
    assert job.placement is None
    assert [type(c) for c in desk.commands] == [ForgetJob]


def test_devices_are_free_only_when_every_host_of_the_gang_has_said_that_its_processes_are_gone() -> None:
    desk = Desk("fifo", report("a", 2), report("b", 2))
    desk.run(1, gpus=4)
    desk.submit(2, gpus=4)
    desk.end(1, host="a")
    assert desk.phase(1) == "running"
    assert desk.phase(2) == "queued"
    desk.end(1, host="b")
    assert (desk.phase(1), desk.phase(2)) == ("done", "loading")


def test_a_gang_whose_part_fails_is_stopped_everywhere_and_the_worst_outcome_counts() -> None:
    desk = Desk("fifo", report("a", 2), report("b", 2))
    desk.run(1, gpus=4)
    desk.end(1, "user-failed", host="b", detail="exit code 1")
    assert desk.phase(1) == "stopping"
    assert desk.stops() == ["1"]
    desk.end(1, "stopped", host="a")
    assert desk.phase(1) == "failed"
    assert str(desk.job(1).reason) == "failed: exit code 1"


def test_a_cancelled_job_that_waits_ends_at_once_and_one_that_runs_when_its_processes_are_gone() -> None:
    desk = Desk("fifo")
    desk.run(1)
    desk.submit(2)
    for job in ("1", "2"):
        desk.tell(ev.CancelRequested(job_id=JobId(job), by="ann"))
    assert (desk.phase(1), desk.phase(2)) == ("stopping", "cancelled")
    desk.end(1, "stopped")
    assert desk.phase(1) == "cancelled"
    assert str(desk.job(1).reason) == "cancelled by ann"


def test_a_job_that_is_interrupted_may_end_by_itself_until_it_is_cancelled() -> None:
    desk = Desk("fifo", report("a", 1), report("b", 1))
    desk.run(1, gpus=2)
    interrupt = ev.CancelRequested(job_id=JobId("1"), by="ann", interrupt=True)
    cancel = ev.CancelRequested(job_id=JobId("1"), by="ann")
    asked = []
    for event in (interrupt, interrupt, cancel, cancel):
        desk.tell(event)
        stops = [each for each in desk.commands if isinstance(each, StopAttempt)]
        asked.append([(each.host_id, each.interrupt, each.deadline_s) for each in stops])
    assert asked == [[("a", True, 30.0), ("b", True, 30.0)], [], [("a", False, 0.0), ("b", False, 0.0)], []]
    desk.end(1, "stopped", exit_code=130)
    assert (desk.phase(1), desk.job(1).attempt.exit_code) == ("cancelled", 130)


def test_a_host_that_comes_back_is_told_again_that_its_job_was_interrupted() -> None:
    desk = Desk("fifo")
    desk.run(1)
    desk.tell(ev.CancelRequested(job_id=JobId("1"), by="ann", interrupt=True))
    seen = ev.AttemptSeen(job_id=JobId("1"), attempt=AttemptNo(1), running=True)
    desk.tell(ev.HostJoined(report=report("a"), attempts=(seen,)))
    (stop,) = [each for each in desk.commands if isinstance(each, StopAttempt)]
    assert (stop.interrupt, stop.save) == (True, False)


@pytest.mark.parametrize("outcome", ["user-failed", "infra-failed"])
def test_a_job_that_was_cancelled_counts_as_cancelled_however_it_died(outcome: str) -> None:
    desk = Desk("fifo")
    desk.run(1)
    desk.tell(ev.CancelRequested(job_id=JobId("1"), by="ann"))
    desk.end(1, outcome)
    assert desk.phase(1) == "cancelled"


def test_a_job_that_finished_before_its_cancel_arrived_is_done() -> None:
    desk = Desk("fifo")
    desk.run(1)
    desk.tell(ev.CancelRequested(job_id=JobId("1"), by="ann"))
    desk.end(1, "finished")
    assert desk.phase(1) == "done"


def test_hold_keeps_a_job_out_of_the_queue_until_release() -> None:
    desk = Desk("fifo")
    desk.submit(1, hold=True)
    assert desk.phase(1) == "held"
    desk.tell(ev.ReleaseRequested(job_id=JobId("1"), by="ann"))
    assert desk.phase(1) == "loading"


def test_a_user_failure_is_retried_as_often_as_was_asked_for() -> None:
    desk = Desk("fifo")
    desk.run(1, retries=1)
    desk.end(1, "user-failed", detail="exit code 3", exit_code=3)
    assert (desk.phase(1), desk.job(1).attempt.number) == ("loading", 2)
    desk.end(1, "user-failed", detail="exit code 3", exit_code=3)
    assert (desk.phase(1), desk.job(1).attempt.exit_code) == ("failed", 3)


def test_an_infrastructure_failure_backs_off_longer_each_time_tries_another_host_and_is_held_at_last() -> (
    None
):
    desk = Desk("fifo", report("a"), report("b"))
    desk.submit(1)
    waits, hosts = [], []
    while desk.phase(1) != "held":
        hosts.append(desk.hosts(1)[0])
        desk.end(1, "infra-failed", detail="port in use")
        if desk.phase(1) == "blocked":
            began_s = desk.now_s
            while desk.phase(1) == "blocked":
                desk.wait(1)
            waits.append(desk.now_s - began_s)
    assert waits == [10, 20, 40]
    assert hosts[:2] == ["a", "b"]
    assert str(desk.job(1).reason) == "held after 4 infrastructure failures in a row; the last: port in use"


def test_a_first_step_forgives_earlier_infrastructure_failures() -> None:
    desk = Desk("fifo")
    desk.submit(1)
    desk.end(1, "infra-failed")
    desk.wait(10)
    assert desk.job(1).counts.infra_failures == 1
    desk.start(1)
    assert desk.job(1).counts.infra_failures == 0


def test_a_start_that_is_only_assumed_forgives_nothing_and_teaches_nothing() -> None:
    desk = Desk("fifo")
    desk.submit(1)
    for failures in (1, 2, 3):
        desk.begin(1)
        assert desk.phase(1) == "running"
        desk.end(1, "infra-failed")
        assert desk.job(1).counts.infra_failures == failures, "it died while it imported, each time"
        assert desk.job(1).estimate.load_s == LOAD_S
        desk.wait(100)


def test_load_times_of_warm_and_cold_starts_are_learned_apart() -> None:
    """The next of a command is expected to start as the last one did."""
    desk = Desk("fifo")
    argv = ("python", "train.py")
    starts: tuple[tuple[LaunchKind, float], ...] = (
        ("cold", 40.0),
        ("warm", 2.0),
        ("warm", 4.0),
        ("cold", 60.0),
    )
    for number, (launch, load_s) in enumerate(starts):
        job_id = str(number + 1)
        desk.submit(number + 1, user="ada", argv=argv)
        of: dict[str, Any] = {"job_id": JobId(job_id), "attempt": 1, "host_id": desk.hosts(job_id)[0]}
        desk.tell(ev.AttemptStarted(**of, launch=launch))
        desk.wait(load_s)
        desk.tell(ev.FirstStepDone(**of, step=1))
        assert desk.job(job_id).estimate.load_s == load_s
        desk.end(number + 1, "finished")
        desk.submit(100 + number, user="ada", argv=argv, hold=True)
        known = {0: 40.0, 1: 2.0, 2: 3.0, 3: 50.0}[number]
        assert desk.job(100 + number).estimate.load_s == known, (launch, number)


def test_the_word_that_follows_an_assumed_start_counts() -> None:
    desk = Desk("fifo")
    desk.submit(1, expected_s=100.0)
    desk.end(1, "infra-failed")
    desk.wait(10)
    desk.begin(1)
    desk.wait(30)
    assert desk.job(1).counts.infra_failures == 1
    desk.start(1)
    assert (desk.phase(1), desk.job(1).counts.infra_failures) == ("running", 0)
    assert (desk.job(1).estimate.remaining_s, desk.job(1).estimate.remaining_at_s) == (100.0, desk.now_s), (
        "it begins only now"
    )


def test_a_first_step_later_than_assumed_makes_the_time_until_then_the_load() -> None:
    desk = Desk("fifo")
    desk.submit(1, argv=("python", "train.py"))
    desk.begin(1)
    desk.wait(80.0)
    desk.start(1)
    job = desk.job(1)
    assert (job.spent.load_s, job.spent.run_s, job.phase_since_s) == (90.0, 0.0, desk.now_s)
    assert job.estimate.load_s == 90.0
    desk.wait(7.0)
    desk.end(1, "finished")
    assert (job.spent.load_s, job.spent.run_s) == (90.0, 7.0)
    desk.submit(2, argv=("python", "train.py"), hold=True)
    assert (desk.job(2).estimate.load_s, desk.job(2).estimate.remaining_s) == (90.0, 7.0), (
        "as long as the one before"
    )


def test_the_load_of_a_later_attempt_is_learned_alone() -> None:
    desk = Desk("fifo")
    desk.submit(1, argv=("python", "train.py"))
    desk.begin(1)
    desk.wait(80.0)
    desk.end(1, "infra-failed")
    desk.wait(10.0)
    desk.begin(1)
    desk.wait(5.0)
    desk.start(1)
    assert (desk.job(1).spent.load_s, desk.job(1).estimate.load_s) == (15.0, 15.0)
    assert desk.job(1).spent.run_s == 90.0, "of its first attempt no step was ever seen"


def test_a_job_that_finishes_without_a_step_has_run_all_the_time() -> None:
    """How long a command or an evaluation loads cannot be seen; its kind has a length all the same."""
    desk = Desk("fifo")
    desk.submit(1, argv=("python", "evaluate.py"))
    desk.wait(50.0)
    desk.end(1, "finished")
    assert (desk.job(1).spent.load_s, desk.job(1).spent.run_s) == (0.0, 50.0)
    desk.submit(2, argv=("python", "evaluate.py"), hold=True)
    assert desk.job(2).estimate.remaining_s == 50.0


def test_a_job_that_never_says_a_word_is_forgiven_when_it_ran_for_long() -> None:
    desk = Desk("fifo")
    desk.submit(1)
    for _ in range(3):  # Then its host is suspect.
        desk.begin(1)
        desk.wait(600)
        desk.end(1, "infra-failed")
        assert desk.job(1).counts.infra_failures == 1
        desk.wait(100)


def test_a_missing_working_directory_is_tried_elsewhere_and_named_when_no_host_has_it() -> None:
    desk = Desk("fifo", report("a"), report("b"))
    desk.submit(1)
    desk.end(1, "infra-failed", detail="no /nowhere", workdir_missing=True)
    desk.wait(10)
    assert desk.hosts(1) == ("b",)
    desk.end(1, "infra-failed", detail="no /nowhere", workdir_missing=True)
    assert desk.phase(1) == "held"
    assert str(desk.job(1).reason) == "its working directory does not exist on a, b"
    assert desk.engine.hosts[A].failures_in_row == 0


def test_a_job_at_its_time_limit_saves_stops_and_says_so() -> None:
    desk = Desk("fifo")
    desk.run(1, time_limit_s=100.0)
    desk.wait(100)
    (stop,) = desk.commands
    assert isinstance(stop, StopAttempt)
    assert stop.save
    desk.durable(1, 90)
    desk.end(1, "stopped", step=90)
    assert (desk.phase(1), str(desk.job(1).reason)) == ("failed", "reached its time limit of 1m40s")


LOADING_AT_LIMIT = (
    "reached its time limit of 1m40s while it was still loading; it does not queue again "
    "(--requeue-at-limit), since each time would only repeat the load"
)


@pytest.mark.parametrize("how", ["it loads", "its library has said hello since it was taken to run"])
def test_a_time_limit_during_the_load_is_not_repeated(how: str) -> None:
    desk = Desk("fifo")
    desk.submit(1, time_limit_s=100.0, requeues=5)
    if "hello" in how:
        desk.begin(1)
        of: dict[str, Any] = {"job_id": JobId("1"), "attempt": 1, "host_id": desk.hosts(1)[0]}
        desk.tell(ev.CapabilitiesSeen(**of, resumable=True, step=0))
    desk.wait(100.0 - desk.now_s)
    desk.end(1, "stopped")
    assert (desk.phase(1), str(desk.job(1).reason)) == ("failed", LOADING_AT_LIMIT)
    assert desk.job(1).attempt.number == 1


def test_a_job_without_steps_queues_again_at_its_time_limit() -> None:
    desk = Desk("fifo")
    desk.submit(1, time_limit_s=100.0, requeues=1)
    desk.begin(1)
    desk.wait(90.0)
    desk.end(1, "stopped")
    assert (desk.phase(1), desk.job(1).attempt.number) == ("loading", 2)


def test_a_job_that_does_not_ask_to_queue_again_ends_at_its_limit_as_any_other() -> None:
    desk = Desk("fifo")
    desk.submit(1, time_limit_s=100.0)
    desk.wait(100.0)
    desk.end(1, "stopped")
    assert str(desk.job(1).reason) == "reached its time limit of 1m40s"


def test_a_job_queues_again_at_its_time_limit_as_often_as_it_was_asked_to() -> None:
    desk = Desk("fifo")
    desk.run(1, time_limit_s=100.0, requeues=1)
    desk.wait(100)
    desk.durable(1, 90)
    desk.end(1, "stopped", step=90)
    assert (desk.phase(1), desk.job(1).counts.preemptions, desk.job(1).counts.limits_over) == (
        "loading",
        0,
        1,
    )
    desk.start(1)
    desk.wait(99)
    assert desk.phase(1) == "running", "another limit has begun"
    desk.wait(1)
    assert desk.phase(1) == "checkpointing"
    desk.end(1, "stopped", step=95)
    assert (desk.phase(1), str(desk.job(1).reason)) == ("failed", "reached its time limit of 1m40s")


def test_a_time_limit_counts_loading_and_running_of_all_attempts_and_no_waiting() -> None:
    desk = Desk("fifo")
    desk.run(1, time_limit_s=100)
    desk.wait(60)
    desk.end(1, "infra-failed")
    desk.wait(10)
    desk.start(1)
    desk.wait(39)
    assert desk.phase(1) == "running"
    desk.wait(1)
    assert desk.phase(1) == "checkpointing"


# --- Dependencies ------------------------------------------------------------------------------------


def after(*jobs: str, need: str = "ok") -> tuple[Dependency, ...]:
    return tuple(Dependency(job_id=JobId(j), need=need) for j in jobs)  # type: ignore[arg-type]


def test_a_job_waits_for_all_its_dependencies_and_names_the_one_that_is_open() -> None:
    desk = Desk("fifo", report("a", 3))
    desk.run(1)
    desk.run(2)
    desk.submit(3, after=after("1", "2"))
    assert str(desk.job(3).reason) == "waits for job 1 to finish well"
    desk.end(1)
    assert str(desk.job(3).reason) == "waits for job 2 to finish well"
    desk.end(2)
    assert desk.phase(3) == "loading"


@pytest.mark.parametrize("jobs", [3, pytest.param(3000, marks=pytest.mark.no_cover)])
def test_a_failed_dependency_cancels_a_chain_of_any_length(jobs: int) -> None:
    desk = Desk("fifo")
    desk.run(1)
    for number in range(2, jobs):
        desk.engine.handle(ev.JobArrived(spec=spec(number, after=after(str(number - 1)))), 0.0)
    desk.end(1, "user-failed")
    assert {desk.phase(number) for number in range(2, jobs)} == {"cancelled"}
    assert desk.why(2) == "job 1, which it depends on, ended as failed"


def test_a_dependency_of_any_end_does_not_mind_a_failure() -> None:
    desk = Desk("fifo")
    desk.run(1)
    desk.submit(2, after=after("1", need="any"))
    assert str(desk.job(2).reason) == "waits for job 1 to finish"
    desk.end(1, "user-failed")
    assert desk.phase(2) == "loading"


def test_a_released_job_still_waits_for_its_dependency() -> None:
    desk = Desk("fifo", report("a", 2))
    desk.run(1)
    desk.submit(2, after=after("1"), hold=True)
    desk.tell(ev.ReleaseRequested(job_id=JobId("2"), by="ann"))
    assert desk.phase(2) == "blocked"
    desk.end(1)
    assert desk.phase(2) == "loading"


# --- Preemption and resuming -------------------------------------------------------------------------


def preempting() -> Desk:
    """Job 1 runs with 1,000 s to go; the shorter job 2 has just taken its device."""
    desk = Desk("srtf")
    desk.run(1, expected_s=1000)
    desk.submit(2, expected_s=10)
    return desk


def test_the_newcomers_command_does_not_exist_before_the_victim_is_gone() -> None:
    desk = preempting()
    assert (desk.phase(1), desk.phase(2)) == ("checkpointing", "reserved")
    assert [type(c) for c in desk.commands] == [StopAttempt]
    desk.durable(1, 40)
    assert desk.starts() == []
    desk.end(1, "stopped", step=40)
    assert desk.starts() == ["2"]
    assert (desk.phase(1), desk.phase(2), desk.job(1).progress.step) == ("queued", "loading", 40)


def test_a_victim_resumes_from_its_durable_step_with_a_new_attempt_number() -> None:
    desk = preempting()
    desk.durable(1, 40)
    desk.end(1, "stopped", step=40)
    desk.start(2)
    desk.end(2)
    (start,) = [c for c in desk.commands if isinstance(c, StartAttempt)]
    assert (start.attempt, start.resume_step) == (2, 40)
    assert desk.job(1).counts.preemptions == 1


def test_a_victim_that_misses_its_deadline_is_ended_and_goes_back_to_its_last_durable_step() -> None:
    desk = preempting()
    desk.durable(1, 25)
    desk.wait(200)
    assert desk.phase(1) == "stopping"
    assert [c.save for c in desk.commands if isinstance(c, StopAttempt)] == [False]
    desk.end(1, "infra-failed", step=70)
    assert (desk.phase(1), desk.job(1).progress.step) == ("queued", 25)
    assert desk.job(1).reason.code == "checkpoint-deadline"


def test_a_job_preempted_before_its_first_step_is_stopped_without_a_save_and_counted() -> None:
    desk = Desk("srtf")
    desk.submit(1, expected_s=1000, resumable=True)
    desk.submit(2, expected_s=10)
    (stop,) = desk.commands
    assert isinstance(stop, StopAttempt)
    assert not stop.save
    assert desk.job(1).counts.futile_preemptions == 1


def test_a_cancelled_newcomer_gives_its_claim_back() -> None:
    desk = preempting()
    desk.tell(ev.CancelRequested(job_id=JobId("2"), by="ann"))
    assert desk.phase(2) == "cancelled"
    desk.durable(1, 40)
    desk.end(1, "stopped", step=40)
    assert (desk.phase(1), desk.job(1).attempt.number) == ("loading", 2)


@pytest.mark.parametrize(
    "event",
    [
        ev.HostDrained(host_id=A, by="root"),
        ev.HostSilent(host_id=A),
        ev.HostJoined(report=report("a", 2)),
    ],
)
def test_a_claim_on_a_host_that_takes_no_new_work_or_has_changed_is_given_back(event: ev.AnyEvent) -> None:
    desk = preempting()
    desk.tell(event)
    assert desk.phase(2) != "reserved"
    desk.end(1, "stopped")
    assert desk.engine.jobs[JobId("2")].phase in ("queued", "loading")


def test_a_user_may_preempt_an_hp_job_but_no_policy_may() -> None:
    desk = Desk("srtf")
    desk.run(1, expected_s=1000, job_class="hp")
    desk.submit(2, expected_s=10)
    assert (desk.phase(1), desk.phase(2)) == ("running", "queued")
    assert desk.why(2) == "the devices it needs are held by jobs that cannot be preempted: 1"
    desk.tell(ev.PreemptRequested(job_id=JobId("1"), by="root"))
    assert desk.phase(1) == "checkpointing"
    assert str(desk.job(1).reason) == "preempted by root"


def test_a_job_that_cannot_resume_is_never_preempted() -> None:
    desk = Desk("srtf")
    desk.submit(1, expected_s=1000)
    desk.start(1, resumable=False)
    desk.submit(2, expected_s=10)
    assert desk.phase(1) == "running"
    desk.tell(ev.PreemptRequested(job_id=JobId("1"), by="root"))
    assert desk.phase(1) == "running"


def test_a_save_on_request_goes_to_the_host_of_rank_0() -> None:
    desk = Desk("fifo", *(report(name, 2, checkpoint_domain="nfs") for name in ("a", "b")))
    desk.run(1, gpus=4)
    desk.tell(ev.CheckpointRequested(job_id=JobId("1"), by="ann"))
    assert [(type(c), getattr(c, "host_id", "")) for c in desk.commands] == [(SaveAttempt, "a")]


# --- Hosts -------------------------------------------------------------------------------------------


def test_a_lost_hosts_resumable_job_goes_on_elsewhere_and_its_old_attempt_is_fenced_when_it_returns() -> None:
    desk = Desk("fifo", report("a", checkpoint_domain="nfs"), report("b", checkpoint_domain="nfs"))
    desk.run(1)
    desk.durable(1, 30)
    desk.tell(ev.HostSilent(host_id=A))
    assert desk.why(1) == "host a is silent; the job goes on there, or elsewhere once the lease has ended"
    desk.tell(ev.HostLost(host_id=A, by="lease"))
    assert (desk.phase(1), desk.hosts(1), desk.job(1).attempt.number) == ("loading", ("b",), 2)
    seen = ev.AttemptSeen(job_id=JobId("1"), attempt=AttemptNo(1), running=True)
    desk.tell(ev.HostJoined(report=report("a", checkpoint_domain="nfs"), attempts=(seen,)))
    (stop,) = desk.commands
    assert isinstance(stop, StopAttempt)
    assert (stop.host_id, stop.attempt, stop.save) == ("a", 1, False)


def test_a_lost_hosts_job_that_cannot_resume_keeps_its_devices_until_an_admin_gives_it_up() -> None:
    desk = Desk("fifo", report("a"), report("b"))
    desk.submit(1)
    desk.start(1, resumable=False)
    desk.tell(ev.HostSilent(host_id=A))
    desk.tell(ev.HostLost(host_id=A, by="lease"))
    assert desk.phase(1) == "running"
    assert desk.why(1).startswith("host a is silent; the job keeps its devices until it answers")
    desk.tell(ev.HostLost(host_id=A, by="root"))
    assert (desk.phase(1), desk.hosts(1)) == ("loading", ("b",))


def test_only_what_a_hosts_supervisors_will_end_goes_on_elsewhere() -> None:
    """A supervisor ends its ranks with the lease if it knows that they can resume. What the submission or an
    earlier attempt said it does not know."""
    desk = Desk("fifo", *(report(name, checkpoint_domain="nfs") for name in ("a", "b")))
    desk.submit(1, resumable=True)
    one = {"job_id": JobId("1"), "attempt": AttemptNo(1), "host_id": A}
    desk.tell(ev.FirstStepDone(**one, step=0))  # type: ignore[arg-type]
    assert desk.job(1).progress.resumable
    desk.tell(ev.HostLost(host_id=A, by="lease"))
    assert desk.phase(1) == "running"
    desk.tell(ev.HostJoined(report=report("a", checkpoint_domain="nfs"), attempts=(seen(1, 1),)))
    desk.start(1)
    desk.tell(ev.HostLost(host_id=A, by="lease"))
    assert (desk.phase(1), desk.hosts(1)) == ("loading", ("b",))


def test_a_job_that_was_started_from_a_checkpoint_goes_on_elsewhere_even_before_its_hello() -> None:
    desk = Desk("fifo", *(report(name, checkpoint_domain="nfs") for name in ("a", "b")))
    desk.run(1)
    desk.durable(1, 20)
    desk.end(1, "infra-failed")
    desk.wait(10)
    (host,) = desk.hosts(1)
    desk.tell(ev.HostLost(host_id=host, by="lease"))
    assert (desk.phase(1), desk.job(1).attempt.number) == ("loading", 3)


def test_a_gang_can_resume_only_if_all_its_hosts_say_so() -> None:
    desk = Desk("fifo", *(report(name, 2, checkpoint_domain="nfs") for name in ("a", "b")))
    desk.submit(1, gpus=4)
    for host_id, can in ((A, False), (B, True)):
        of: dict[str, Any] = {"job_id": JobId("1"), "attempt": AttemptNo(1), "host_id": host_id}
        desk.tell(
            ev.CapabilitiesSeen(**of, resumable=can, capabilities=Capabilities(accumulates=True), step=0)
        )
        assert not desk.job(1).progress.resumable


def test_a_job_that_its_user_calls_resumable_is_stopped_and_started_again_whatever_its_library_says() -> None:
    desk = Desk("fifo")
    desk.submit(1, resumable=True)
    desk.start(1, resumable=False)
    assert desk.job(1).progress.resumable
    assert not desk.job(1).ends_with_lease, "its supervisor, which heard the library, does not end it"
    desk.tell(ev.PreemptRequested(job_id=JobId("1"), by="root"))
    (stop,) = (each for each in desk.commands if isinstance(each, StopAttempt))
    assert stop.save
    desk.end(1, "stopped")
    assert (desk.phase(1), desk.job(1).attempt.number) == ("loading", 2)


def test_a_job_that_does_not_know_yet_whether_it_can_be_split_refuses_nothing_and_keeps_its_last_word() -> (
    None
):
    desk = Desk("fifo")
    desk.submit(1)
    of: dict[str, Any] = {"job_id": JobId("1"), "attempt": AttemptNo(1), "host_id": A}
    unknown, refused = Capabilities(), Capabilities(accumulates_note="1: BatchNorm1d in training mode")
    desk.tell(ev.CapabilitiesSeen(**of, resumable=True, capabilities=unknown, step=0))
    assert not desk.job(1).must_stay_whole
    for said in (refused, unknown):
        desk.tell(ev.CapabilitiesSeen(**of, resumable=True, capabilities=said, step=0))
        assert desk.job(1).must_stay_whole
        assert desk.job(1).progress.capabilities.accumulates_note == "1: BatchNorm1d in training mode"


def seen(job: int, attempt: int) -> ev.AttemptSeen:
    return ev.AttemptSeen(job_id=JobId(str(job)), attempt=AttemptNo(attempt), running=True)


def test_a_job_whose_host_answers_again_has_its_old_reason_back() -> None:
    desk = Desk("fifo")
    desk.run(1)
    before = desk.why(1)
    desk.tell(ev.HostSilent(host_id=A))
    assert desk.why(1) != before
    desk.tell(ev.HostBack(host_id=A))
    assert desk.why(1) == before


def test_a_gang_over_two_hosts_that_loses_one_is_lost_and_not_punished_with_back_off() -> None:
    hosts = [report(name, 2, checkpoint_domain="nfs") for name in ("a", "b", "c")]
    desk = Desk("fifo", *hosts)
    desk.run(1, gpus=4)
    desk.tell(ev.HostLost(host_id=A, by="lease"))
    assert desk.phase(1) == "stopping"
    desk.end(1, "stopped", host="b")
    assert (desk.phase(1), set(desk.hosts(1))) == ("loading", {"b", "c"})
    assert desk.job(1).counts.infra_failures == 0


def test_a_checkpoint_on_one_hosts_disk_binds_the_job_to_it_and_explain_names_it() -> None:
    desk = Desk("srtf", report("a"), report("b"))
    desk.run(1, expected_s=1000)
    desk.durable(1, 40)
    desk.run(2, expected_s=1000, resumable=False)
    desk.tell(ev.HostDrained(host_id=A, by="root"))
    desk.end(1, "infra-failed")
    desk.wait(10)
    desk.end(2)
    assert desk.phase(1) == "queued"
    assert desk.why(1) == "its checkpoint is on a, which is drained"
    desk.tell(ev.HostResumed(host_id=A, by="root"))
    assert desk.hosts(1) == ("a",)


def test_a_host_that_an_admin_gives_up_takes_the_checkpoints_on_its_disk_with_it() -> None:
    desk = Desk("fifo", report("a"), report("b"))
    desk.run(1)
    desk.durable(1, 40)
    desk.tell(ev.HostLost(host_id=A, by="lease"))
    assert (desk.phase(1), desk.why(1)) == ("queued", "its checkpoint is on a, which is lost")
    desk.tell(ev.HostLost(host_id=A, by="root"))
    assert (desk.hosts(1), desk.job(1).progress.step) == (("b",), 0)


def test_a_late_word_of_a_checkpoint_still_counts_while_the_job_waits() -> None:
    desk = Desk("fifo", report("a"))
    desk.run(1)
    desk.tell(ev.HostLost(host_id=A, by="lease"))
    assert desk.phase(1) == "queued"
    desk.tell(ev.CheckpointDurable(job_id=JobId("1"), attempt=AttemptNo(1), host_id=A, step=60))
    assert desk.job(1).progress.step == 60
    desk.tell(ev.HostJoined(report=report("a")))
    (start,) = [c for c in desk.commands if isinstance(c, StartAttempt)]
    assert start.resume_step == 60


def test_a_gang_over_two_checkpoint_domains_counts_as_not_resumable_and_is_bound_to_neither() -> None:
    desk = Desk("fifo", report("a", 2), report("b", 2))
    desk.run(1, gpus=4)
    assert not desk.job(1).progress.resumable
    desk.durable(1, 40)
    desk.end(1, "infra-failed")
    desk.wait(10)
    assert desk.phase(1) == "loading"


def test_one_job_that_fails_again_and_again_does_not_take_a_host_from_all_others() -> None:
    desk = Desk("fifo", infra_retries=2, back_off_s=1.0)
    desk.submit(1)
    for _ in range(3):
        desk.end(1, "infra-failed", detail="ended by SIGTERM from outside")
        desk.wait(16)
    assert (desk.engine.hosts[A].state, desk.phase(1)) == ("ok", "held")
    desk.submit(2)
    desk.end(2, "finished")
    assert desk.engine.hosts[A].failures_in_row == 0


def run_and_fail(desk: Desk, ran_s: float, *, rule: str = "NCCL", **more: Any) -> None:
    """The next attempt of job 1 trains for so long, and ends for a reason of the infrastructure."""
    desk.wait(100.0)
    desk.start(1)
    desk.wait(ran_s)
    desk.end(1, "infra-failed", rule=rule, detail=f"{rule} failure", exit_code=1, **more)


def test_the_same_end_after_the_same_time_twice_in_a_row_is_the_jobs_own() -> None:
    desk = Desk("fifo", infra_retries=3, back_off_s=10.0)
    desk.submit(1)
    desk.submit(2, after=(Dependency(job_id=JobId("1"), need="any"),))
    run_and_fail(desk, 600.0)
    assert desk.phase(1) == "blocked"
    run_and_fail(desk, 640.0)
    why = "failed: NCCL failure; twice in a row after about 640 s, so it counts as the job's own"
    assert (desk.phase(1), desk.why(1), desk.job(1).attempt.number) == ("failed", why, 2)
    assert desk.phase(2) == "loading", "who waits for any end goes on"
    assert desk.engine.hosts[A].failures_in_row == 0, "a first step cleared it, and nobody is blamed again"


def test_a_repeated_end_counts_among_the_failures_that_a_user_wants_retried() -> None:
    desk = Desk("fifo", infra_retries=3, back_off_s=10.0)
    desk.submit(1, retries=1)
    for ran_s in (600.0, 610.0):
        run_and_fail(desk, ran_s)
    assert desk.phase(1) == "loading"
    run_and_fail(desk, 605.0)
    assert (desk.phase(1), desk.job(1).attempt.number) == ("failed", 3)


@pytest.mark.parametrize(
    "ends",
    [
        ((600.0, "NCCL"), (900.0, "NCCL"), (600.0, "NCCL")),
        ((600.0, "NCCL"), (600.0, "lost peer"), (600.0, "NCCL")),
        ((600.0, ""), (600.0, ""), (600.0, "")),
    ],
    ids=["at other times", "in other ways", "seen from outside"],
)
def test_other_failures_of_the_infrastructure_are_tried_again(ends: tuple[tuple[float, str], ...]) -> None:
    desk = Desk("fifo", infra_retries=9, back_off_s=10.0)
    desk.submit(1)
    for ran_s, rule in ends:
        run_and_fail(desk, ran_s, rule=rule)
        assert desk.phase(1) == "blocked"


def test_whoever_releases_a_job_or_runs_it_again_begins_a_new_row_of_ends() -> None:
    desk = Desk("fifo", infra_retries=0, back_off_s=10.0)
    desk.submit(1)
    run_and_fail(desk, 600.0)
    desk.tell(ev.ReleaseRequested(job_id=JobId("1"), by="ada"))
    run_and_fail(desk, 600.0)
    assert desk.phase(1) == "held"


def test_failures_of_three_jobs_of_two_users_make_a_host_suspect_until_it_is_tried_again() -> None:
    desk = Desk("fifo", infra_retries=9, back_off_s=100.0)
    for number, user in ((1, "ada"), (2, "ada"), (3, "bob")):
        desk.submit(number, user=user)
        desk.end(number, "infra-failed", detail="bad disk")
    desk.wait(100)
    assert (desk.engine.hosts[A].state, desk.phase(1)) == ("suspect", "queued")
    assert desk.why(1) == "no host can take work now: a is suspect"
    desk.wait(300)
    assert desk.phase(1) == "loading"
    desk.start(1)
    assert desk.engine.hosts[A].failures_in_row == 0


def test_jobs_of_one_user_alone_never_close_a_host() -> None:
    """Four jobs of `kill -9 $$` look like four failures of their host."""
    desk = Desk("fifo", infra_retries=0)
    for number in (1, 2, 3, 4):
        desk.submit(number, user="mallory")
        desk.end(number, "infra-failed", detail="ended by SIGTERM from outside")
    assert desk.engine.hosts[A].state == "ok"
    desk.submit(5, user="ada")
    assert desk.phase(5) == "loading"
    desk.end(5, "finished")
    assert desk.engine.hosts[A].failed_users == ()


def test_a_host_that_says_itself_that_it_failed_needs_no_second_user() -> None:
    desk = Desk("fifo", infra_retries=9, back_off_s=1.0)
    desk.submit(1, user="ada")
    for _ in range(2):
        desk.end(1, "infra-failed", host_fault=True, detail="no process could be started")
        desk.wait(9)
    assert desk.engine.hosts[A].state == "ok"
    desk.end(1, "infra-failed", host_fault=True, detail="no process could be started")
    assert desk.engine.hosts[A].state == "suspect"
    desk.tell(ev.HostResumed(host_id=A, by="root"))
    assert (desk.engine.hosts[A].state, desk.engine.hosts[A].failed_itself) == ("ok", False)


def test_a_host_that_finishes_a_first_step_is_trusted_again_and_offers_its_devices() -> None:
    desk = Desk("fifo", report("a", 2), infra_retries=9, back_off_s=1.0)
    desk.submit(1)
    for number in (2, 3, 4):
        desk.submit(number, user=f"user{number}")
        desk.end(number, "infra-failed")
    desk.wait(1)
    assert desk.phase(2) == "queued"
    desk.start(1)
    assert desk.phase(2) == "loading"


def test_an_attempt_that_a_host_does_not_mention_is_asked_about_and_not_written_off() -> None:
    desk = Desk("fifo")
    desk.run(1)
    desk.tell(ev.HostJoined(report=report("a")))
    (stop,) = desk.commands
    assert isinstance(stop, StopAttempt)
    assert desk.phase(1) == "running"
    desk.end(1, "never-started")
    assert desk.phase(1) == "blocked"


def test_a_start_that_was_never_heard_is_sent_again_with_the_same_attempt() -> None:
    desk = Desk("fifo")
    desk.submit(1)
    (first,) = [c for c in desk.commands if isinstance(c, StartAttempt)]
    desk.tell(ev.HostJoined(report=report("a")))
    (again,) = [c for c in desk.commands if isinstance(c, StartAttempt)]
    assert again.command_id > first.command_id
    assert (again.attempt, again.gang, again.master_port) == (first.attempt, first.gang, first.master_port)


def test_a_device_that_leaves_its_hosts_report_gets_no_new_work_and_the_job_on_it_goes_on() -> None:
    desk = Desk("fifo", report("a", 2), report("b", 2))
    desk.run(1, gpus=4)
    seen = ev.AttemptSeen(job_id=JobId("1"), attempt=AttemptNo(1), running=True)
    desk.tell(ev.HostJoined(report=report("a", 1), attempts=(seen,)))
    desk.submit(2)
    desk.end(1, host="a")
    assert (desk.phase(1), desk.devices(2)) == ("running", ("a/cpu0",))
    desk.end(1, host="b")
    assert desk.phase(1) == "done"
    assert set(desk.engine.ledger.devices) == {"a/cpu0", "b/cpu0", "b/cpu1"}


def test_every_host_that_a_job_ever_ran_on_is_told_to_forget_it() -> None:
    desk = Desk("fifo", report("a"), report("b"))
    desk.submit(1)
    desk.end(1, "infra-failed")
    desk.wait(10)
    assert desk.hosts(1) == ("b",)
    desk.end(1, "infra-failed")
    desk.tell(ev.CancelRequested(job_id=JobId("1"), by="ann"))
    assert [(type(c), getattr(c, "host_id", "")) for c in desk.commands] == [
        (ForgetJob, "a"),
        (ForgetJob, "b"),
    ]


def test_a_host_that_still_keeps_an_ended_job_is_told_again_to_forget_it() -> None:
    desk = Desk("fifo", report("a", 2))
    desk.run(1)
    desk.end(1)
    desk.run(2)
    kept = tuple(ev.JobKept(job_id=JobId(name)) for name in ("1", "2", "77"))
    desk.tell(ev.HostJoined(report=report("a", 2), attempts=(seen(2, 1),), kept=kept))
    forgotten = [c.job_id for c in desk.commands if isinstance(c, ForgetJob)]
    assert forgotten == ["1", "77"]


# --- Repeated and stale words --------------------------------------------------------------------------


def test_the_same_submission_journalled_twice_is_one_job() -> None:
    desk = Desk("fifo", report("a", 2))
    desk.submit(1)
    desk.submit(1)
    assert desk.commands == []
    assert len(desk.engine.jobs) == 1


def test_words_about_an_older_attempt_change_nothing() -> None:
    desk = Desk("fifo")
    desk.run(1)
    desk.end(1, "infra-failed")
    desk.wait(10)
    desk.start(1)
    before = desk.engine.snapshot()
    saved = repr(before)
    one: dict[str, Any] = {"job_id": JobId("1"), "attempt": AttemptNo(1)}
    here = one | {"host_id": A}
    for stale in (
        ev.AttemptStarted(**here),
        ev.CapabilitiesSeen(**here, resumable=False, step=99),
        ev.FirstStepDone(**here, step=99),
        ev.ProgressSeen(**one, step=99, step_s=9.0),
        ev.CheckpointDurable(**here, step=99),
        ended("1", 1, "a", "user-failed"),
        ended("1", 7, "a", "user-failed"),
        ended("77", 1, "a", "user-failed"),
    ):
        assert desk.tell(stale) == []
    assert repr(desk.engine.snapshot()) == saved


def test_a_step_count_that_goes_back_is_not_believed() -> None:
    desk = Desk("fifo")
    desk.run(1)
    desk.progress(1, 50, 1.0)
    desk.progress(1, 20, 1.0)
    assert desk.job(1).progress.step == 50


def test_a_job_that_could_only_load_an_older_checkpoint_says_where_it_really_is() -> None:
    desk = Desk("fifo")
    desk.run(1, expected_s=100)
    desk.progress(1, 50, 1.0)
    desk.durable(1, 40)
    desk.durable(1, 50)
    desk.end(1, "infra-failed")
    desk.wait(10)
    assert desk.job(1).progress.step == 50
    desk.tell(
        ev.CapabilitiesSeen(job_id=JobId("1"), attempt=AttemptNo(2), host_id=A, resumable=True, step=40)
    )
    assert (desk.job(1).progress.step, desk.job(1).attempt.start_step) == (40, 40)


# --- Thinking, policies, limits ------------------------------------------------------------------------


def test_another_policy_takes_over_the_queue_in_its_own_order() -> None:
    desk = Desk("fifo")
    desk.run(1, expected_s=10)
    desk.submit(2, expected_s=500)
    desk.submit(3, expected_s=5)
    assert [j.job_id for j in desk.engine.ledger.queue.jobs_in_order()] == ["2", "3"]
    desk.tell(ev.PolicyChanged(name="sjf", by="root"))
    assert [j.job_id for j in desk.engine.ledger.queue.jobs_in_order()] == ["3", "2"]
    desk.end(1)
    assert desk.phase(3) == "loading"


def test_an_unknown_policy_or_parameter_is_named_with_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"no policy 'sfj'; there are fifo, sjf, srtf, .*castor"):
        registry.make("sfj", {})
    with pytest.raises(ValueError, match="policy castor has no parameter ahead; it takes"):
        registry.make("castor", {"ahead": 3})
    with pytest.raises(ValueError, match="at least 1"):
        registry.make("castor", {"lookahead": 0})


def test_ended_jobs_are_kept_up_to_a_bound_oldest_first_out() -> None:
    desk = Desk("fifo", keep_ended=3)
    for number in range(1, 7):
        desk.run(number)
        desk.end(number)
    assert list(desk.engine.jobs) == ["4", "5", "6"]


def test_ended_jobs_of_one_user_do_not_push_out_anothers() -> None:
    desk = Desk("fifo", keep_ended=4)
    desk.run("1", user="bob")
    desk.end("1")
    for number in range(2, 12):
        desk.submit(number, user="ann", hold=True)
    for number in range(2, 12):
        desk.tell(ev.CancelRequested(job_id=JobId(str(number)), by="ann"))
    assert list(desk.engine.jobs) == ["1", "9", "10", "11"]


def test_jobs_that_never_started_are_forgotten_before_those_that_ran() -> None:
    desk = Desk("fifo", keep_ended=3)
    desk.run("1")
    desk.end("1")
    for number in range(2, 6):
        desk.submit(number, hold=True)
        desk.tell(ev.CancelRequested(job_id=JobId(str(number)), by="ann"))
    assert list(desk.engine.jobs) == ["1", "4", "5"]
    for number in range(6, 9):
        desk.run(number)
        desk.end(number)
    assert list(desk.engine.jobs) == ["6", "7", "8"]


def test_time_never_goes_back() -> None:
    desk = Desk("fifo")
    desk.tell(ev.AlarmRang(), after_s=5)
    with pytest.raises(AssertionError, match="time went back"):
        desk.engine.handle(ev.AlarmRang(), 4.0)


def test_an_answer_to_a_computation_reaches_the_policy_and_changes_nothing_else() -> None:
    desk = Desk("fifo")
    assert desk.tell(ev.Computed(request_id=3, model_sha256="", values=(1.0,))) == []
    assert not [c for c in desk.commands if isinstance(c, ComputeRequest)]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"gpus_min": 0}, "at least 1 GPU"),
        ({"gpus_min": -1}, "at least 1 GPU"),
        ({"gpus_min": 3, "gpus_max": 2}, "gpus_max 2 is below gpus_min 3"),
        ({"gpus": 3, "nodes": 2}, "gpus 3 is not a multiple of nodes 2"),
        ({"gpu_fraction": 0.0}, "gpu_fraction must be in"),
        ({"memory_mib": 0}, "memory must be positive"),
        ({"batch_size": 0}, "batch size must be positive"),
        ({"iterations": 0}, "iterations must be positive"),
        ({"expected_s": float("nan")}, "expected time must be positive"),
        ({"time_limit_s": -5}, "time limit must be positive"),
        ({"requeues": 1}, "it needs one"),
        ({"retries": -1}, "retries must not be negative"),
        ({"after": (Dependency(job_id=JobId("1")),)}, "cannot wait for itself"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused_with_the_reason(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        spec(1, **wrong)


def test_what_can_never_run_here_is_known_at_submission() -> None:
    desk = Desk("fifo", report("a", 2, features=("ib",)), report("b", 1, type="NVIDIA-T4"))

    def never(**more: object) -> str:
        return str(desk.engine.never_fits(spec(1, **more)))

    assert never(gpus=2) == "None"
    assert never(gpus=3) == "needs 3 devices; the largest possible placement here has 2"
    assert never(gpu_type="NVIDIA-H200") == "no device of type NVIDIA-H200; this cluster has NVIDIA-T4, cpu"
    assert never(features=("nvlink",)) == "no host has the feature nvlink"
    assert never(memory_mib=4000) == "needs 4000 MiB per device; the largest device offers 1000 MiB"
    assert never(gpus=2, nodes=2) == "needs 2 devices on 2 nodes; the largest possible placement here has 1"
    desk.tell(ev.HostDrained(host_id=A, by="root"))
    assert never(gpus=2) == "None"
    assert desk.engine.never_fits(JobSpec(job_id=JobId("1"), profile=profile(8, (1, 1.0, 1.0)))) is None


def test_where_no_image_can_run_it_is_said_what_a_host_lacks() -> None:
    image = JobSpec(job_id=JobId("1"), launch=Launch(container=Container(image="py:1")))
    desk = Desk("fifo", report("a", 2))
    wants = "no host can run its image: it needs one with podman, docker or apptainer"
    assert str(desk.engine.never_fits(image)) == f"{wants} (see `cotenant nodes -o wide`)"
    without = msgspec.structs.replace(report("c", 1), container_note="podman: /etc/cdi has no names")
    desk.tell(ev.HostJoined(report=without))
    said = f"{wants}; on c podman: /etc/cdi has no names (see `cotenant nodes -o wide`)"
    assert str(desk.engine.never_fits(image)) == said


def test_a_new_controller_begins_with_cotenant_and_one_that_has_a_journal_goes_on_with_its_own() -> None:
    fresh = Engine(registry.make, EngineConfig())
    assert (fresh.config.policy.name, fresh.current.name) == ("auto", "cotenant")
    before = Engine(registry.make, EngineConfig(policy=PolicySettings(name="fifo")))
    before.handle(ev.HostJoined(report=report()), 0.0)
    before.handle(ev.JobArrived(spec=spec(1)), 1.0)
    fresh.restore(before.snapshot())
    assert fresh.current.name == "fifo"
    fresh.handle(ev.PolicyChanged(name="sjf", by="root"), 2.0)
    again = Engine(registry.make, EngineConfig())
    again.restore(fresh.snapshot())
    assert again.current.name == "sjf"
