"""Whose turn it is: jobs that fifo would have served by now go first, on a bounded share of the devices.

Sixteen devices, of which late jobs get four: three quarters, less eight. Job 1 holds them all, is expected to
end at 100 s and goes on: in the fifo that is played everybody behind it begins at 100 s.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import QUEUED, AttemptNo, Decision, Job, JobId, LimitSettings
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine, Snapshot
from cotenant.controller.engine.stages import lateness
from cotenant.controller.engine.state.ledger import ASIDE
from cotenant.controller.planning import is_possible
from cotenant.controller.policies import registry
from cotenant.controller.wire import pack, unpack
from tests.controller.building import Desk, engine, report
from tests.controller.engine.test_histories import POLICIES, examples
from tests.controller.histories import HOSTS, STEPS, WAITS_S, Step, event_of

SHARE, LIMIT = 0.75, 4
DAY_S = 86_400.0
FRONT = "moves to the front of the queue in"
PASSING = ("sjf", "patient", "cotenant")


def busy(policy: str = "sjf", expected_s: float | None = 100.0, **settings: Any) -> Desk:
    """Job 1 holds all devices and cannot resume."""
    desk = Desk(policy, report("a", 16), **{"late_share": SHARE, **settings})
    desk.submit(1, gpus=16, expected_s=expected_s, load_s=0.0)
    desk.start(1, resumable=False)
    return desk


def wait_for(desk: Desk, number: int, expected_s: float | None, **more: Any) -> JobId:
    return desk.submit(number, expected_s=expected_s, load_s=0.0, **more)


def marked(desk: Desk) -> list[str]:
    return [job.job_id for job in desk.engine.jobs.values() if job.aged]


def events_in(desk: Desk, seconds: float) -> int:
    """Alarms that ring in so much time."""
    until_s, count = desk.now_s + seconds, 0
    while (alarm_s := desk.engine.next_alarm_s) is not None and alarm_s <= until_s:
        desk.now_s, count = max(desk.now_s, alarm_s), count + 1
        desk.tell(ev.AlarmRang())
    desk.now_s = until_s
    return count


# --- When a job is late ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", PASSING)
def test_a_job_is_late_when_it_could_no_longer_end_as_early_as_under_fifo(policy: str) -> None:
    desk = busy(policy)
    wait_for(desk, 2, 500.0)
    desk.wait(100.5)
    assert marked(desk) == []
    desk.wait(1.0)
    assert marked(desk) == ["2"]
    assert desk.job(2).reason.code == "turn"


def test_jobs_are_marked_in_the_order_of_their_ends_there_and_never_more_than_the_limit() -> None:
    desk = busy()
    for number, expected_s in ((2, 400.0), (3, 100.0), (4, 300.0), (5, 200.0)):
        wait_for(desk, number, expected_s, gpus=2)
    desk.wait(500.0)
    assert marked(desk) == ["3", "5"], "two devices each, of four"
    desk.end(1)
    for number in (3, 5):
        desk.start(number)
    desk.end(3)
    assert marked(desk) == ["3", "5"], "jobs 2 and 4 have started"


def test_marked_jobs_that_run_count_until_they_end() -> None:
    desk = busy()
    for number in (2, 3):
        wait_for(desk, number, 100.0 * number, gpus=LIMIT)
    desk.wait(200.0)
    desk.end(1)
    desk.start(2)
    wait_for(desk, 9, 5000.0, gpus=16)
    desk.tell(ev.PreemptRequested(job_id=JobId("3"), by="root"))
    assert marked(desk) == ["2"]


def test_the_next_one_is_marked_when_a_marked_one_has_ended() -> None:
    desk = busy()
    for number in (2, 3):
        wait_for(desk, number, 100.0 * number, gpus=LIMIT)
    desk.wait(200.0)
    assert marked(desk) == ["2"]
    desk.tell(ev.CancelRequested(job_id=JobId("2"), by="ann"))
    assert "3" in marked(desk)


def test_one_is_marked_on_a_cluster_with_nothing_to_spare() -> None:
    desk = Desk("sjf", report("a", 2), late_share=SHARE)
    desk.submit(1, gpus=2, expected_s=100.0, load_s=0.0)
    desk.start(1, resumable=False)
    for number in (2, 3):
        wait_for(desk, number, 100.0)
    desk.wait(2 * 200.0 + DAY_S - 1.0)
    assert marked(desk) == []
    desk.wait(2.0)
    assert marked(desk) == ["2"]


def test_a_wide_one_is_late_after_twice_its_time_under_fifo_and_a_day() -> None:
    desk = busy()
    wait_for(desk, 2, 500.0, gpus=LIMIT + 1)
    desk.wait(2 * 600.0 + DAY_S - 1.0)
    assert marked(desk) == []
    desk.wait(2.0)
    assert marked(desk) == ["2"]


def test_a_wide_one_is_marked_when_no_other_is() -> None:
    desk = busy()
    wait_for(desk, 2, 500.0, gpus=LIMIT + 1)
    wait_for(desk, 3, 1000.0)
    desk.wait(DAY_S + 2000.0)
    assert marked(desk) == ["3"]
    wait_for(desk, 4, 1.0)
    desk.wait(2000.0)
    assert marked(desk) == ["3"], "nobody gets past the wide one any more"
    desk.tell(ev.CancelRequested(job_id=JobId("3"), by="ann"))
    assert marked(desk) == ["2", "3"]


# --- Before whom -----------------------------------------------------------------------------------------


def test_greater_priority_goes_first_until_a_job_has_waited_for_ageing_s() -> None:
    desk = busy(ageing_s=5000.0)
    wait_for(desk, 2, 500.0)
    wait_for(desk, 3, 500.0, gpus=LIMIT + 1, priority=1)
    alarms = events_in(desk, 4999.0)
    assert marked(desk) == []
    assert alarms < 10, "nobody looks again each second"
    desk.wait(1.0)
    assert marked(desk) == ["2"]


def test_a_user_who_has_had_less_goes_first_until_then() -> None:
    desk = busy(ageing_s=5000.0, fair_share_half_life_s=1e6)
    desk.wait(50.0)
    wait_for(desk, 2, 500.0)
    wait_for(desk, 3, 500.0, gpus=LIMIT + 1, user="bob")
    desk.wait(4999.0)
    assert marked(desk) == []
    desk.wait(1.0)
    assert marked(desk) == ["2"]


def test_a_job_that_no_host_could_hold_now_is_not_marked_and_keeps_nobody_back() -> None:
    desk = busy()
    desk.tell(ev.HostJoined(report=report("b", 1, type="NVIDIA-T4")))
    desk.run(8, gpu_type="NVIDIA-T4", expected_s=100.0, load_s=0.0)
    wait_for(desk, 2, 100.0, gpu_type="NVIDIA-T4")
    wait_for(desk, 3, 200.0, gpus=LIMIT)
    desk.tell(ev.HostDrained(host_id=report("b", 1).host_id, by="root"))
    desk.wait(500.0)
    assert marked(desk) == ["3"]


def test_a_marked_job_that_is_held_keeps_nobody_back() -> None:
    desk = busy()
    for number in (2, 3):
        wait_for(desk, number, 100.0 * number, gpus=LIMIT)
    desk.wait(500.0)
    desk.tell(ev.HoldRequested(job_id=JobId("2"), by="ann"))
    assert marked(desk) == ["2", "3"]


# --- What is played --------------------------------------------------------------------------------------


def test_a_length_that_a_job_tells_moves_the_ends_there() -> None:
    desk = busy(expected_s=None)
    wait_for(desk, 2, 500.0)
    desk.wait(50.0)
    desk.tell(ev.ProgressSeen(job_id=JobId("1"), attempt=AttemptNo(1), step=50, step_s=1.0, total_steps=5000))
    desk.wait(4900.0)
    assert marked(desk) == [], "job 1 ends there at 5000 s"
    desk.wait(100.0)
    assert marked(desk) == ["2"]


def test_the_end_of_a_job_ends_it_there_as_well() -> None:
    desk = Desk("sjf", report("a", 16), late_share=SHARE)
    for number, expected_s in ((1, 1000.0), (9, 9000.0)):
        desk.submit(number, gpus=8, expected_s=expected_s, load_s=0.0)
        desk.start(number, resumable=False)
    wait_for(desk, 2, 500.0, gpus=8)
    wait_for(desk, 3, 50.0)
    desk.wait(10.0)
    desk.end(1)
    assert (desk.phase(2), desk.phase(3)) == ("queued", "loading"), "sjf lets the shorter one go"
    desk.start(3)
    played = {one.job_id: one for one in desk.engine.snapshot().lateness.jobs}
    assert played[JobId("2")].begun_s == 10.0, "fifo begins job 2 when job 1 has ended"


@pytest.mark.parametrize("number", [2, 3])
def test_jobs_of_unknown_length_have_the_mean_of_those_that_ended(number: int) -> None:
    """The first one waits there behind job 1; none has ended: an hour."""
    desk = busy()
    wait_for(desk, 2, None, gpus=16)
    wait_for(desk, 3, 500.0, gpus=2)
    at_s = {2: 2 * 3700.0 + DAY_S, 3: 3700.0 + 1.0}[number]
    desk.wait(at_s - 0.5)
    assert str(number) not in marked(desk)
    if number == 3:
        desk.wait(1.0)
        assert marked(desk) == ["3"]


def test_a_job_is_late_although_hosts_were_gone_when_it_came() -> None:
    """And although nobody knew then a cluster wide enough for it."""
    desk = Desk("sjf", report("a", 2), late_share=SHARE)
    desk.tell(ev.HostSilent(host_id=report("a", 2).host_id))
    wait_for(desk, 2, 500.0)
    wait_for(desk, 3, 500.0, gpus=4)
    desk.tell(ev.HostBack(host_id=report("a", 2).host_id))
    desk.start(2, resumable=False)
    desk.tell(ev.HostJoined(report=report("b", 16)))
    desk.start(3, resumable=False)
    wait_for(desk, 4, 10.0, gpus=18)
    desk.wait(2 * 510.0 + DAY_S)
    assert marked(desk) == ["4"]


def test_a_job_that_waits_again_after_its_end_gets_a_turn() -> None:
    desk = busy()
    wait_for(desk, 2, 500.0)
    desk.tell(ev.CancelRequested(job_id=JobId("2"), by="ann"))
    desk.tell(ev.RequeueRequested(job_id=JobId("2"), by="ann"))
    desk.wait(5000.0)
    assert marked(desk) == ["2"]


def test_a_job_that_a_limit_kept_out_gets_a_turn() -> None:
    desk = busy(limits=LimitSettings(user_jobs=1))
    wait_for(desk, 2, 500.0, user="bob")
    wait_for(desk, 3, 500.0, user="bob")
    assert desk.phase(3) == "blocked"
    desk.tell(ev.CancelRequested(job_id=JobId("2"), by="bob"))
    assert desk.phase(3) == "queued"
    desk.wait(5000.0)
    assert "3" in marked(desk)


def test_a_job_whose_options_change_has_its_turn_by_the_new_ones() -> None:
    desk = busy()
    wait_for(desk, 2, 500.0, gpus=16)
    desk.tell(ev.SpecChanged(job_id=JobId("2"), changes={"gpus_min": 1, "gpus_max": 1}, by="ann"))
    desk.wait(5000.0)
    assert marked(desk) == ["2"]


def test_many_jobs_that_run_on_past_their_ends_there_keep_nobody_from_a_turn() -> None:
    desk = Desk("sjf", report("a", 80), late_share=SHARE)
    for number in range(1, 81):
        desk.submit(number, expected_s=100.0, load_s=0.0)
        desk.start(number, resumable=False)
    wait_for(desk, 99, 500.0)
    desk.wait(500.0)
    assert marked(desk) == ["99"]


# --- Switched off ----------------------------------------------------------------------------------------


def test_without_a_share_nobody_is_marked_and_jobs_age() -> None:
    desk = busy(late_share=0.0, ageing_s=5000.0)
    wait_for(desk, 2, 500.0)
    desk.wait(4999.0)
    assert marked(desk) == []
    assert desk.engine.snapshot().lateness.jobs == []
    desk.wait(1.0)
    assert marked(desk) == ["2"]
    assert desk.job(2).reason.code == "aged"


@pytest.mark.parametrize("how", ["policy", "restart"])
def test_jobs_age_under_a_policy_without_turns_and_once_they_are_switched_off(how: str) -> None:
    """The time that they have waited counts."""
    desk = busy("fifo" if how == "policy" else "sjf", ageing_s=5000.0)
    wait_for(desk, 2, 500.0, gpus=16)
    desk.wait(1000.0)
    if how == "policy":
        for name in ("sjf", "fifo"):
            desk.tell(ev.PolicyChanged(name=name, by="root"))
    else:
        kept = desk.engine.snapshot()
        desk.engine = engine("sjf", ageing_s=5000.0)
        desk.engine.restore(kept)
    desk.wait(3999.0)
    assert marked(desk) == []
    desk.wait(1.0)
    assert marked(desk) == ["2"]


# --- What users are told ---------------------------------------------------------------------------------


def test_users_are_told_when_their_turn_comes() -> None:
    desk = busy()
    job = wait_for(desk, 2, 500.0)
    wide = wait_for(desk, 3, 100.0, gpus=LIMIT + 1)
    lines = [str(line) for line in desk.engine.explain(job, desk.now_s)]
    assert f"{FRONT} about 2 min at the latest, by when fifo would have served it" in lines
    lines = [str(line) for line in desk.engine.explain(wide, desk.now_s)]
    assert f"{FRONT} about 24 h at the latest, by when fifo would have served it" in lines
    desk.wait(200.0)
    lines = [str(line) for line in desk.engine.explain(job, desk.now_s)]
    assert lines[-1] == "waited 1m41s, by when fifo would have served it, and goes first"


# --- Whatever happens ------------------------------------------------------------------------------------


def check_marks(engine: Engine) -> None:
    """Every waiting job whose time under fifo is over is marked, as far as those marked before it leave it
    devices of the limit; a wide one when none is."""
    played, limit, now_s = engine._lateness._played, engine._lateness.limit, engine.now_s
    marks = [job for job in engine.jobs.values() if job.aged and job.phase not in ASIDE]
    taken = sum(job.spec.gpus for job in marks)
    first = next((job for job in engine.ledger.queue.jobs_in_order() if not job.aged), None)
    late: list[tuple[float, Job]] = []
    for job in engine.jobs.values():
        one = played.get(job.job_id)
        if job.phase is not QUEUED or job.phase_since_s == now_s:
            continue  # Its reservation may just have been replaced.
        assert one is not None, f"job {job.job_id} waits, and fifo has not heard of it"
        assert first is not None or job.aged
        if job.aged or one.begun_s < 0.0 or not is_possible(engine.ledger, job) or first is None:
            continue
        by_s = one.ends_s
        if job.spec.gpus > limit:
            by_s = one.submitted_s + lateness.WIDE_RATIO * (by_s - one.submitted_s) + lateness.WIDE_S
        waited_s = job.spent.queued_s + now_s - job.phase_since_s
        stands_back = first.rank < job.rank and waited_s < engine.config.policy.ageing_s
        if by_s < now_s and not stands_back:
            late.append((one.ends_s, job))
    for _, job in sorted(late, key=lambda each: (each[0], each[1].number))[:1]:
        assert taken, f"job {job.job_id} is late, and nobody is marked"
        assert taken + job.spec.gpus > limit, f"job {job.job_id} is late, and {taken} of {limit} are taken"


ALARMS_MAX = 20_000
SIZED = [name for name in POLICIES if registry.make(name, {}).traits.orders_by_size]


@given(name=st.sampled_from(SIZED), steps=STEPS)
@settings(max_examples=examples(1.0))
def test_whatever_happens_nobody_is_forgotten(name: str, steps: list[Step]) -> None:
    """Time passes ten times as fast as in other histories, so that wide jobs are late as well."""
    watched = with_turns(name)
    events: list[Any] = [(ev.HostJoined(report=host), 0.0) for host in HOSTS]
    events += [(step, 10.0 * WAITS_S[step[3] % len(WAITS_S)]) for step in steps]
    for each, wait_s in events:
        event = event_of(watched, each, SIZED) if isinstance(each, tuple) else each
        until_s, rang = watched.now_s + wait_s, 0
        while watched.next_alarm_s is not None and watched.next_alarm_s <= until_s:
            rang += 1
            assert rang < ALARMS_MAX, f"it rings for ever at {watched.now_s} s"
            watched.handle(ev.AlarmRang(), max(watched.now_s, watched.next_alarm_s))
            check_marks(watched)
        watched.handle(event, until_s)
        check_marks(watched)


def with_turns(name: str) -> Engine:
    return engine(name, late_share=SHARE, keep_ended=6, ageing_s=5000.0)


@given(name=st.sampled_from(POLICIES), steps=STEPS, cut=st.integers(0, 80))
@settings(max_examples=examples(1.0))
def test_the_same_jobs_are_marked_in_whatever_way_the_state_was_reached(
    name: str, steps: list[Step], cut: int
) -> None:
    first, told = with_turns(name), []
    events: list[Any] = [(ev.HostJoined(report=host), 0.0) for host in HOSTS]
    events += [(step, float(WAITS_S[step[3] % len(WAITS_S)])) for step in steps]
    for each, wait_s in events:
        event = event_of(first, each, POLICIES) if isinstance(each, tuple) else each
        now_s = first.now_s + wait_s
        commands = pack(first.handle(event, now_s))
        told.append((event, now_s, pack(first.decision), commands))
    wanted = msgspec.msgpack.encode(first.snapshot())

    folded, before, restored = (with_turns(name) for _ in range(3))
    for event, now_s, decision, commands in told:
        assert pack(folded.fold(event, unpack(decision, Decision), now_s)) == commands
    assert msgspec.msgpack.encode(folded.snapshot()) == wanted
    for event, now_s, *_ in told[:cut]:
        before.handle(event, now_s)
    restored.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(before.snapshot()), type=Snapshot))
    for event, now_s, _, commands in told[cut:]:
        assert pack(restored.handle(event, now_s)) == commands
    assert msgspec.msgpack.encode(restored.snapshot()) == wanted
