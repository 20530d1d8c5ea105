"""How long a job will take: the best source there is, corrected by what is seen."""

from __future__ import annotations

import pytest

from cotenant.controller.domain import HostId
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.state.estimating import estimate_arrival
from cotenant.controller.engine.state.ledger import Estimates
from cotenant.controller.performance import Profile
from tests.controller.building import Desk, profile, report, spec

UNKNOWN = (300.0, "unknown length")
"""What is expected of a job of which nothing is known, and the source."""


def finished(desk: Desk, job: int, seconds: float, **more: object) -> None:
    desk.run(job, **more)
    desk.wait(seconds)
    desk.end(job)


def test_the_users_word_comes_first_then_the_profile_then_the_same_command() -> None:
    none = Estimates()
    assert estimate_arrival(none, spec(1))[:2] == UNKNOWN
    known = spec(1, expected_s=70.0, iterations=10, batch_size=8, profile=profile(8, (1, 2.0, 1.0)))
    assert estimate_arrival(none, known)[:2] == (70.0, "user")
    profiled = spec(1, iterations=10, batch_size=8, profile=profile(8, (1, 2.0, 1.0)))
    assert estimate_arrival(none, profiled)[:2] == (20.0, "profile")
    desk = Desk("fifo")
    for number, seconds in ((1, 10.0), (2, 30.0), (3, 90.0)):
        finished(desk, number, seconds, argv=("python", "x.py"))
    finished(desk, 4, 1000.0, argv=("python", "y.py"))
    desk.submit(5, argv=("python", "x.py"), hold=True)
    assert desk.job(5).estimate.remaining_s == pytest.approx(30.0, rel=0.1)
    assert desk.job(5).estimate.source == "as 3 earlier runs of this command"
    desk.submit(6, argv=("python", "z.py"), hold=True)
    assert (desk.job(6).estimate.remaining_s, desk.job(6).estimate.source) == UNKNOWN


def test_only_running_counts_as_run_time() -> None:
    desk = Desk("fifo")
    desk.submit(1, argv=("python", "x.py"))
    desk.wait(500)
    desk.start(1)
    desk.wait(40)
    desk.end(1)
    desk.submit(2, argv=("python", "x.py"), hold=True)
    assert desk.job(2).estimate.remaining_s == pytest.approx(40.0)


def test_a_failed_job_teaches_nothing() -> None:
    desk = Desk("fifo")
    desk.run(1, argv=("python", "x.py"))
    desk.wait(40)
    desk.end(1, "user-failed")
    desk.submit(2, argv=("python", "x.py"), hold=True)
    assert (desk.job(2).estimate.remaining_s, desk.job(2).estimate.source) == UNKNOWN


def test_remaining_time_passes_while_running_and_stands_still_otherwise() -> None:
    desk = Desk("srtf")
    desk.submit(1, expected_s=100.0)
    desk.wait(50)
    assert desk.job(1).remaining_now_s(desk.now_s) == 100.0
    desk.start(1)
    desk.wait(30)
    assert desk.job(1).remaining_now_s(desk.now_s) == 70.0
    desk.submit(2, expected_s=1.0)
    desk.wait(10)
    assert desk.job(1).remaining_now_s(desk.now_s) == 70.0


def test_remaining_time_passes_slower_beside_a_co_tenant() -> None:
    desk = Desk("castor")
    busy = profile(8, (1, 1.0, 100.0), duty=1.0)
    desk.run(1, profile=busy, batch_size=8, expected_s=1000.0)
    desk.run(2, profile=busy, batch_size=8, expected_s=10.0)
    desk.wait(20)
    assert desk.job(1).remaining_now_s(desk.now_s) == pytest.approx(990.0)
    assert desk.job(2).remaining_now_s(desk.now_s) == pytest.approx(0.0)
    desk.end(2)
    desk.wait(20)
    assert desk.job(1).remaining_now_s(desk.now_s) == pytest.approx(970.0)


def test_measured_steps_take_over_once_the_number_of_iterations_is_known() -> None:
    desk = Desk("fifo")
    desk.run(1, expected_s=1000.0, iterations=200)
    desk.progress(1, 50, 0.5)
    assert (desk.job(1).estimate.remaining_s, desk.job(1).estimate.source) == (75.0, "measured")


def test_a_job_past_its_estimate_is_expected_to_need_a_tenth_of_what_it_has_had() -> None:
    desk = Desk("fifo")
    desk.run(1, expected_s=50.0)
    desk.wait(100)
    desk.progress(1, 50, 2.0)
    assert (desk.job(1).estimate.remaining_s, desk.job(1).estimate.source) == (10.0, "user, overrun")


def test_work_since_the_last_durable_step_is_to_be_done_again() -> None:
    desk = Desk("fifo")
    desk.run(1, expected_s=100.0)
    desk.durable(1, 20)
    desk.wait(60)
    desk.progress(1, 60, 1.0)
    desk.wait(5)
    desk.end(1, "infra-failed", step=65)
    assert desk.job(1).estimate.remaining_s == pytest.approx(100 - 65 + 45)


def test_a_job_that_starts_over_needs_its_whole_time_again() -> None:
    desk = Desk("fifo")
    desk.submit(1, expected_s=100.0)
    desk.start(1, resumable=False)
    desk.wait(60)
    desk.end(1, "infra-failed")
    assert desk.job(1).estimate.remaining_s == 100.0


def test_a_stretched_step_alone_is_not_mistaken_for_a_slower_job() -> None:
    desk = Desk("castor", report("a", 1))
    heavy = profile(8, (1, 1.0, 700.0), (2, 1.5, 200.0), duty=0.4)
    desk.run(1, profile=heavy, batch_size=8, expected_s=900.0)
    desk.run(2, profile=heavy, batch_size=8, expected_s=100.0, iterations=100)
    assert desk.job(2).placement.accumulation_steps == 2
    desk.end(1)
    desk.progress(2, 10, 1.5)
    assert desk.job(2).measured.solo_step_s == pytest.approx(1.0)
    assert desk.job(2).estimate.remaining_s == pytest.approx(90.0)
    assert desk.job(2).estimate.slowdown == pytest.approx(1.5)


def test_a_profile_that_comes_later_moves_the_job_in_the_queue_only_as_far_as_it_should() -> None:
    desk = Desk("sjf")
    desk.run(1)
    desk.submit(2, expected_s=10.0)
    desk.submit(3, expected_s=20.0)
    desk.tell(ev.ProfileLearned(job_id=desk.job(3).job_id, profile=profile(8, (1, 2.0, 1.0))))
    assert [j.job_id for j in desk.engine.ledger.queue.jobs_in_order()] == ["2", "3"]
    assert desk.job(3).measured.solo_step_s == 2.0
    assert desk.engine.hosts[HostId("a")].state == "ok"


def test_steps_seen_in_the_loops_tell_the_end_unless_somebody_has_said_it() -> None:
    def told(**more: object) -> tuple[float | None, str]:
        desk = Desk("fifo")
        desk.run(1, **more)
        job = desk.job(1)
        for at in (1, 11):
            seen = ev.ProgressSeen(
                job_id=job.job_id, attempt=job.attempt.number, step=at, step_s=2.0, total_steps=100
            )
            desk.tell(seen, after_s=100.0)
        return job.estimate.remaining_s, job.estimate.source

    assert told() == (89 * 2.0, "loops")
    assert told(iterations=50) == (39 * 2.0, "measured")
    assert told(expected_s=1000.0)[1] == "user"


def test_one_of_its_kind_says_how_long_a_job_will_take() -> None:
    like = Profile(step_s=0.5, total_steps=40)
    assert estimate_arrival(Estimates(), spec(1), like)[:2] == (20.0, "like job")
    assert estimate_arrival(Estimates(), spec(1, iterations=10), like)[:2] == (5.0, "profile")
    assert estimate_arrival(Estimates(), spec(1), Profile(step_s=0.5))[:2] == UNKNOWN


def test_a_guess_orders_and_is_not_shown() -> None:
    desk = Desk("fifo")
    finished(desk, 1, 100.0, argv=("python", "x.py"))
    desk.run(2, argv=("python", "y.py"))
    job = desk.job(2)
    assert (job.estimate.remaining_s, job.known_left_s(desk.now_s)) == (300.0, None)
    desk.wait(500.0)
    desk.progress(2, 1, 1.0)
    assert (job.estimate.source, job.known_left_s(desk.now_s)) == ("unknown length", None)


def judgements(desk: Desk, seconds: float) -> list[tuple[float, float]]:
    """When job 1 was judged again in so much time, and what it was then expected to have left."""
    found, until_s = [], desk.now_s + seconds
    while (alarm_s := desk.engine.next_alarm_s) is not None and alarm_s <= until_s:
        desk.now_s = max(desk.now_s, alarm_s)
        desk.tell(ev.AlarmRang())
        if desk.job(1).estimate.remaining_at_s == desk.now_s:
            found.append((desk.now_s, desk.job(1).estimate.remaining_s))
    desk.now_s = until_s
    return found


def test_a_job_of_unknown_length_is_judged_again_when_it_has_had_half_as_much_again() -> None:
    """It is expected to need as much as it has had, and five minutes at least."""
    desk = Desk("fifo")
    desk.run(1)
    assert judgements(desk, 1600.0) == [
        (150.0, 300.0), (300.0, 300.0), (450.0, 450.0), (675.0, 675.0), (1012.5, 1012.5), (1518.75, 1518.75),
    ]  # fmt: skip


def test_what_it_had_before_a_preemption_counts() -> None:
    desk = Desk("fifo")
    desk.run(1)
    desk.wait(1000.0)
    desk.progress(1, 1000, 1.0)
    desk.tell(ev.PreemptRequested(job_id=desk.job(1).job_id, by="root"))
    desk.durable(1, 1000)
    desk.end(1, "stopped", step=1000)
    desk.wait(5000.0)
    job = desk.job(1)
    begun_s = desk.now_s
    desk.start(1)
    assert (job.estimate.remaining_s, job.estimate.source) == (1000.0, "unknown length")
    assert judgements(desk, 600.0) == [(begun_s + 500.0, 1500.0)], "once: the first attempt's alarm is over"


def test_a_job_that_is_only_taken_to_run_is_judged_once_at_a_time() -> None:
    desk = Desk("fifo")
    desk.submit(1)
    desk.begin(1)
    desk.wait(100.0)
    desk.start(1)
    begun_s = desk.now_s
    times_s = [at_s for at_s, _ in judgements(desk, 1000.0)]
    assert len(times_s) == len(set(times_s))
    assert max(times_s) > begun_s + 300.0
    assert len(times_s) <= 5


@pytest.mark.parametrize("how", ["tells", "ends"])
def test_a_job_whose_length_is_known_is_judged_no_more(how: str) -> None:
    desk = Desk("fifo")
    desk.run(1)
    desk.wait(200.0)
    job = desk.job(1)
    if how == "tells":
        of = {"job_id": job.job_id, "attempt": job.attempt.number}
        desk.tell(ev.ProgressSeen(**of, step=200, step_s=1.0, total_steps=5000))
        assert job.estimate.remaining_s == pytest.approx(4800.0)
        assert job.known_left_s(desk.now_s) == pytest.approx(4800.0)
    else:
        desk.end(1)
    desk.wait(9000.0)
    assert not any(alarm.kind == "judge" for alarm in desk.engine.snapshot().alarms)
