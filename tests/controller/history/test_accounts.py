"""What sharing and preemption brought and cost: known answers, and what must hold whatever happens."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import ENDED, AttemptNo, DeviceId, Epoch, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.history.accounts import SharedWork, Sums, sums_by_kinds, together, totals
from cotenant.controller.history.attempt_records import ALWAYS_S, AttemptRecord
from cotenant.controller.history.history import History
from cotenant.controller.history.interruptions import interruptions
from cotenant.controller.planning import held_part
from tests.controller.building import profile, report, spec
from tests.controller.engine.test_histories import examples, fresh
from tests.controller.histories import HOSTS, STEPS, WAITS_S, Step, event_of
from tests.controller.history.test_history import Watched

STEP_S = 0.1
ALONE = profile(8, (1, STEP_S, 100.0), (2, 2 * STEP_S, 60.0), duty=0.4)
SHARING = ("castor", "sjf-ffs", "srtf", "lucid")


def desk_of_two(**second: object) -> Watched:
    """Job 1 trains from 0 s on, job 2 beside it from 10 s on; both are known alone."""
    desk = Watched("castor", report(devices=1))
    desk.tell(ev.PolicyChanged(name="castor", parameters={"part": False}, by="root"))
    desk.run(1, expected_s=900.0, profile=ALONE, batch_size=8)
    desk.submit(2, **{"expected_s": 500.0, "profile": ALONE, "batch_size": 8, **second})
    desk.wait(10.0)
    desk.start(2)
    return desk


def rows(desk: Watched, job_id: str) -> list[SharedWork]:
    return together(desk.engine.jobs, desk.job(job_id), desk.history.attempts(JobId(job_id)))


def test_a_pair_has_the_work_of_both_minus_the_time_of_the_device() -> None:
    desk = desk_of_two()
    desk.wait(40.0)
    desk.progress(1, 101 + 300, STEP_S / 0.75)
    desk.end(2, "finished", step=1 + 320)
    (one,), (two,) = rows(desk, "1"), rows(desk, "2")
    # Job 1: 400 steps in 50 s, expected at the same pace throughout: 320 of them in the 40 s beside job 2.
    assert (one.beside, one.seconds, one.device_s) == (("2",), 40.0, 20.0)
    assert one.steps == pytest.approx(320)
    assert one.alone_s == pytest.approx(32.0)
    assert two.beside == ("1",)
    assert two.seconds == 40.0
    assert two.device_s == 20.0
    assert two.steps == pytest.approx(320)
    assert one.predicted_s == pytest.approx(one.alone_s), "duty cycles of 0.4 and 0.4 leave both their pace"
    assert (one.source, one.margin) == ("duty-cycle", None)
    found = totals(desk.engine.jobs, desk.history.attempts, ALWAYS_S, desk.now_s)
    assert found.shared.won_device_s == pytest.approx(32.0 + 32.0 - 40.0)
    assert found.jobs_shared == 2


def test_steps_between_two_reports_are_divided_by_the_pace_that_was_expected() -> None:
    slow = profile(8, (1, STEP_S, 100.0), duty=1.0)
    desk = desk_of_two(profile=slow)
    desk.wait(10.0)  # 10 s alone, 10 s beside one with which 1.4 times as long was expected.
    desk.progress(1, 1 + 240, STEP_S)
    (one,) = rows(desk, "1")
    assert one.steps == pytest.approx(240 * (10 / 1.4) / (10 + 10 / 1.4))
    assert one.predicted_s == pytest.approx(one.alone_s * 1.4 if one.alone_s else None)


def test_a_gang_names_all_its_partners_and_its_lonely_device_counts_whole() -> None:
    desk = Watched("castor", report(devices=3))
    desk.tell(ev.PolicyChanged(name="castor", parameters={"part": False}, by="root"))
    desk.run(1, gpus=3, expected_s=900.0, profile=ALONE, batch_size=8)
    for number in (2, 3):
        desk.run(number, expected_s=500.0, profile=ALONE, batch_size=8)
    desk.wait(30.0)
    for number in (1, 2, 3):
        desk.progress(number, 1 + 240, STEP_S)
    (gang,) = rows(desk, "1")
    assert gang.beside == ("2", "3")
    assert gang.device_s == pytest.approx(30.0 * (1 + 1 / 2 + 1 / 2))
    assert gang.work_device_s == pytest.approx(3 * 24.0)
    found = totals(desk.engine.jobs, desk.history.attempts, ALWAYS_S, desk.now_s)
    assert found.shared.won_device_s == pytest.approx(3 * 24.0 + 24.0 + 24.0 - 3 * 30.0)


def test_what_is_not_known_alone_proves_nothing() -> None:
    desk = desk_of_two(profile=None, memory_mib=100, batch_size=None)
    assert desk.job(2).measured.solo_step_s is None
    desk.wait(20.0)
    for number in (1, 2):
        desk.progress(number, 200, None)
    (one,), (two,) = rows(desk, "1"), rows(desk, "2")
    assert one.alone_s is not None
    assert (one.won_device_s, two.alone_s, two.won_device_s) == (None, None, None)
    found = totals(desk.engine.jobs, desk.history.attempts, ALWAYS_S, desk.now_s)
    assert found.shared.won_device_s == 0.0
    assert found.shared.unknown_device_s == pytest.approx(20.0)


def test_a_bad_measurement_alone_wins_no_more_than_there_is() -> None:
    desk = desk_of_two()
    desk.wait(40.0)
    desk.progress(1, 1 + 2000, STEP_S / 4)
    desk.progress(2, 1 + 400, STEP_S)
    (one,), (two,) = rows(desk, "1"), rows(desk, "2")
    assert one.alone_s == pytest.approx(160.0)
    assert one.work_device_s == two.work_device_s == pytest.approx(40.0)


def test_what_comes_after_the_last_count_of_a_lost_host_is_left_out() -> None:
    desk = desk_of_two()
    desk.wait(20.0)
    desk.progress(2, 1 + 150, STEP_S)
    desk.wait(30.0)
    desk.tell(ev.HostLost(host_id=desk.hosts(2)[0], by="root"))
    (two,) = rows(desk, "2")
    assert two.seconds == 20.0
    assert two.steps == pytest.approx(150)


def test_preemption_costs_a_save_a_load_and_the_steps_done_again() -> None:
    desk = Watched("srtf", report(devices=2))
    desk.run(1, gpus=2, expected_s=1000.0, profile=ALONE, batch_size=8)
    desk.wait(30.0)
    desk.submit(2, gpus=2, expected_s=10.0)
    desk.wait(4.0)
    desk.durable(1, 250)
    desk.end(1, "stopped", step=260)
    desk.start(2)
    desk.end(2, "finished", step=5)
    desk.wait(7.0)
    desk.start(1)
    (cause, sums), *others = interruptions(desk.engine.jobs, desk.history.attempts).items()
    assert (cause, sums.count, others) == ("preempted", 1, [])
    assert sums.save_device_s == pytest.approx(2 * 4.0)
    assert sums.load_device_s == pytest.approx(2 * 7.0)
    assert sums.rework_device_s == pytest.approx(10 * STEP_S * 2)
    assert sums.futile_device_s == 0.0
    assert sums.cost_device_s == pytest.approx(8.0 + 14.0 + 2.0)


def test_a_load_that_was_preempted_is_futile_and_counts_once() -> None:
    desk = Watched("srtf")
    desk.submit(1, expected_s=1000.0, resumable=True)
    desk.wait(12.0)
    desk.submit(2, expected_s=10.0)
    desk.wait(3.0)
    desk.end(1, "stopped")
    (sums,) = interruptions(desk.engine.jobs, desk.history.attempts).values()
    assert sums.futile_device_s == pytest.approx(15.0)
    assert sums.load_device_s == 0.0
    assert sums.save_device_s == 0.0


@pytest.mark.parametrize(("asked_by", "cause"), [("root", "by-hand"), ("", "parted")])
def test_causes_are_told_apart(asked_by: str, cause: str) -> None:
    desk = desk_of_two()
    if asked_by:
        desk.tell(ev.PreemptRequested(job_id=JobId("2"), by=asked_by))
    else:
        desk.tell(ev.PolicyChanged(name="castor", by="root"))
        for _ in range(3):
            desk.tell(ev.PairObserved(first=JobId("1"), second=JobId("2"), first_xi=3.0, second_xi=3.0))
    (leaving,) = (number for number in (1, 2) if desk.phase(number) == "checkpointing")
    desk.end(leaving, "stopped", step=3)
    assert list(interruptions(desk.engine.jobs, desk.history.attempts)) == [cause]


def test_memory_that_ran_out_beside_another_is_a_cost_of_sharing() -> None:
    desk = desk_of_two()
    desk.end(2, "user-failed", step=40, out_of_memory=True)
    found = totals(desk.engine.jobs, desk.history.attempts, ALWAYS_S, desk.now_s)
    assert found.interrupted["crowded"].rework_device_s == pytest.approx(40 * STEP_S)
    assert found.net_sharing_device_s < found.shared.won_device_s


def test_only_the_part_since_then_counts() -> None:
    desk = desk_of_two()
    desk.wait(40.0)
    desk.progress(1, 101 + 320, STEP_S)
    desk.progress(2, 1 + 320, STEP_S)
    late = totals(desk.engine.jobs, desk.history.attempts, desk.now_s - 10.0, desk.now_s)
    whole = totals(desk.engine.jobs, desk.history.attempts, ALWAYS_S, desk.now_s)
    assert late.shared.device_s == pytest.approx(whole.shared.device_s / 4)
    assert totals(desk.engine.jobs, desk.history.attempts, desk.now_s, desk.now_s).jobs_shared == 0


# --- Whatever happens -----------------------------------------------------------------------------------


def held(engine: Engine, device_id: DeviceId) -> float:
    """How much of a device is: all of it by whole tenants, be it one or two, or the sum of the parts."""
    return min(1.0, sum(held_part(engine.jobs[job_id]).fraction for job_id in engine.tenants(device_id)))


@given(name=st.sampled_from(SHARING), steps=STEPS)
@example(  # Job 4 fails beside 7 and starts again elsewhere at once.
    name="lucid", steps=[(0, 0, 0, 0), (0, 0, 0, 0), (4, 0, 7, 1), (94, 93, 88, 1), (0, 0, 0, 3)]
)
@settings(max_examples=examples(0.6))
def test_every_second_of_a_device_counts_once_and_accounts_add_up(name: str, steps: list[Step]) -> None:
    engine, history, held_s = fresh(name), History(), 0.0
    events: list[ev.AnyEvent | Step] = [ev.HostJoined(report=host) for host in HOSTS]
    # Some that will share, so that there is something to account for.
    events += [
        ev.JobArrived(spec=spec(n, gpus=2, expected_s=50.0 * n, profile=ALONE, batch_size=8))
        for n in range(1, 9)
    ]
    devices = [device.device_id for host in HOSTS for device in host.devices]
    for each in [*events, *steps]:
        event = event_of(engine, each, SHARING) if isinstance(each, tuple) else each
        wait_s = float(WAITS_S[each[3] % len(WAITS_S)]) if isinstance(each, tuple) else 0.0
        held_s += wait_s * sum(held(engine, device_id) for device_id in devices)
        commands = engine.handle(event, engine.now_s + wait_s)
        history.observe(engine, event, commands)

    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(history.save()), type=type(history.save()))
    counted_s = 0.0
    for attempts in kept.stretches.values():
        for attempt in attempts:
            account = attempt.account
            assert (account.now is None) == (attempt.ended_s is not None)
            if account.now is not None:
                account.turn(engine.now_s, None)
            counted_s += account.load_device_s + account.train_device_s + account.leave_device_s
            assert sum(spell.device_s for spell in account.spells) <= account.train_device_s + 1e-6
            for spell in account.spells:
                assert spell.seconds <= spell.to_s - spell.from_s + 1e-6
                assert spell.device_s <= spell.seconds * len(attempt.devices) + 1e-6
                assert spell.steps >= 0.0
                assert spell.beside
    assert counted_s == pytest.approx(held_s)

    jobs, attempts_of = engine.jobs, history.attempts
    by_job, by_pair = Sums(), Sums()
    for job in jobs.values():
        for row in together(jobs, job, attempts_of(job.job_id)):
            by_job.add(row)
            if job.measured.solo_step_s is None:
                assert row.alone_s is None
            else:
                assert row.alone_s == pytest.approx(job.measured.solo_step_s * row.steps)
    for sums in sums_by_kinds(jobs, attempts_of).values():
        by_pair.device_s += sums.device_s
        by_pair.work_device_s += sums.work_device_s
        by_pair.unknown_device_s += sums.unknown_device_s
    whole = totals(jobs, attempts_of, ALWAYS_S, engine.now_s)
    for each_sum in (by_job, by_pair):
        assert each_sum.won_device_s == pytest.approx(whole.shared.won_device_s)
        assert each_sum.unknown_device_s == pytest.approx(whole.shared.unknown_device_s)
    for sums_of_cause in whole.interrupted.values():
        assert sums_of_cause.cost_device_s >= 0.0
    assert {job.job_id for job in jobs.values() if job.phase in ENDED and job.attempt.number} <= set(
        kept.stretches
    )


# --- A first step that comes later than assumed ---------------------------------------------------------


class Told(NamedTuple):
    """All that is told of a job and its co-tenant."""

    times: tuple[float, ...]
    attempt: AttemptRecord
    work: list[SharedWork]
    beside: list[SharedWork]
    device_s: float
    of_kinds: dict[tuple[str, str], Sums]


def told_of_two(load_s: float, run_s: float, assumed_s: float | None, reported_s: float | None) -> Told:
    """Job 2 loads beside job 1; `assumed_s`, `reported_s`: after so long its start is assumed, and its
    progress is reported."""
    desk = desk_of_two_loading()
    of: dict[str, Any] = {"job_id": JobId("2"), "attempt": AttemptNo(1), "host_id": desk.hosts("2")[0]}
    happens: list[tuple[float, ev.AnyEvent]] = [(load_s, ev.FirstStepDone(**of, step=1))]
    if assumed_s is not None:
        happens.append((assumed_s, ev.FirstStepDone(**of, step=0, assumed=True)))
    if reported_s is not None:
        happens.append(
            (reported_s, ev.ProgressSeen(job_id=JobId("2"), attempt=AttemptNo(1), step=0, step_s=None))
        )
        happens.append(
            (reported_s, ev.ProgressSeen(job_id=JobId("1"), attempt=AttemptNo(1), step=200, step_s=None))
        )
    begin_s = desk.now_s
    for at_s, event in sorted(happens, key=lambda each: each[0]):
        desk.wait(begin_s + at_s - desk.now_s)
        desk.tell(event)
    desk.wait(run_s)
    desk.progress(1, 2_000, STEP_S)
    desk.end(2, "finished", step=1 + int(run_s / STEP_S))
    job, jobs = desk.job("2"), desk.engine.jobs
    return Told(
        times=(
            job.spent.wait_s,
            job.spent.load_s,
            job.spent.run_s,
            job.spent.pause_s,
            job.estimate.load_s,
            desk.job("1").spent.run_s,
        ),
        attempt=msgspec.structs.replace(desk.attempt("2"), account=None),
        work=rows(desk, "2"),
        beside=rows(desk, "1"),
        device_s=totals(jobs, desk.history.attempts, ALWAYS_S, desk.now_s).held_device_s,
        of_kinds=sums_by_kinds(jobs, desk.history.attempts),
    )


@pytest.mark.parametrize("outcome", ["finished", "user-failed", "cancelled", "time-limit"])
@pytest.mark.parametrize("ran_s", [1, 5, 9, 20, 25])
def test_what_makes_no_step_has_run_all_the_time(ran_s: int, outcome: str) -> None:
    """`sleep 20` has run for 20 s and loaded for none, however late that was assumed, for all who tell it."""
    desk = Watched("fifo", report(devices=1))
    desk.submit(1, time_limit_s=float(ran_s) if outcome == "time-limit" else None)
    of: dict[str, Any] = {"job_id": JobId("1"), "attempt": AttemptNo(1), "host_id": desk.hosts("1")[0]}
    if ran_s > 10:
        desk.wait(10.0)
        desk.tell(ev.FirstStepDone(**of, step=0, assumed=True))
        assert (desk.job("1").spent.load_s, desk.job("1").ran_s(desk.now_s)) == (0.0, 10.0)
        assert desk.job("1").known_left_s(desk.now_s) in (None, ran_s - 10.0)
    desk.wait(ran_s - desk.now_s)
    if outcome == "cancelled":
        desk.tell(ev.CancelRequested(job_id=JobId("1"), by="root"))
    desk.end(1, "stopped" if outcome in ("cancelled", "time-limit") else outcome)
    job, attempt = desk.job("1"), desk.attempt("1")
    assert job.phase in ENDED
    assert (job.spent.load_s, job.spent.run_s, job.spent.pause_s) == (0.0, ran_s, 0.0)
    assert attempt.trains_since_s == attempt.launched_s
    assert (attempt.account.load_device_s, attempt.account.train_device_s) == (0.0, ran_s)


@given(
    load_s=st.integers(1, 100),
    run_s=st.integers(1, 500),
    away_s=st.integers(1, 5_000),
    is_step_late=st.booleans(),
    is_stopped_late=st.booleans(),
    outcome=st.sampled_from(["finished", "user-failed", "infra-failed"]),
)
@example(load_s=1, run_s=1, away_s=2279, is_step_late=False, is_stopped_late=False, outcome="finished")
@settings(max_examples=examples(0.3))
def test_no_more_is_billed_than_the_agent_knows(
    load_s: int, run_s: int, away_s: int, is_step_late: bool, is_stopped_late: bool, outcome: str
) -> None:
    """The job ends while no controller runs, or in a history that a restored journal lacks. What comes of it
    late, the first step with it or a cancel after it, changes nothing of what it has held."""
    desk = Watched("fifo", report(devices=1), fair_share_half_life_s=9e8)
    desk.submit(1, user="ada")
    of: dict[str, Any] = {"job_id": JobId("1"), "attempt": AttemptNo(1), "host_id": desk.hosts("1")[0]}
    desk.tell(ev.EpochBegan(epoch=Epoch(number=1, token="one"), after=1))
    desk.wait(load_s)
    if not is_step_late:
        desk.tell(ev.FirstStepDone(**of, step=1))
    desk.wait(run_s + away_s)
    desk.tell(ev.EpochBegan(epoch=Epoch(number=2, token="two"), after=2))
    if is_step_late:
        desk.tell(ev.FirstStepDone(**of, step=1))
    if is_stopped_late:
        desk.tell(ev.CancelRequested(job_id=JobId("1"), by="root"))
    known_s = load_s + run_s
    desk.end(1, outcome, ago_s=float(away_s))
    job, attempt = desk.job("1"), desk.attempt("1")
    spent = job.spent
    assert spent.load_s + spent.run_s + spent.pause_s == pytest.approx(known_s)
    assert min(spent.load_s, spent.run_s, spent.pause_s) >= 0.0
    if not is_step_late:
        assert spent.load_s == pytest.approx(load_s)
    assert attempt.ended_s == pytest.approx(known_s)
    account = attempt.account
    held_s = account.load_device_s + account.train_device_s + account.leave_device_s
    assert held_s == pytest.approx(known_s)
    used = desk.engine.decayed_usage("user", desk.now_s)
    assert used is not None
    assert used["ada"] == pytest.approx(known_s, rel=1e-5)
    if job.ended_s is not None:
        assert job.ended_s == pytest.approx(known_s)
    else:
        assert spent.wait_s == pytest.approx(away_s)


def test_an_end_that_a_running_controller_hears_late_counts_as_it_is_heard() -> None:
    """Until then nobody else could have the devices."""
    desk = Watched("fifo", report(devices=1))
    desk.run(1)
    desk.wait(50.0)
    desk.end(1, "finished", ago_s=20.0)
    assert (desk.job("1").spent.run_s, desk.attempt("1").ended_s) == (50.0, 50.0)


def desk_of_two_loading() -> Watched:
    desk = Watched("castor", report(devices=1))
    desk.tell(ev.PolicyChanged(name="castor", parameters={"part": False}, by="root"))
    desk.run(1, expected_s=900.0, profile=ALONE, batch_size=8)
    desk.submit(2, expected_s=500.0, profile=ALONE, batch_size=8)
    assert desk.phase(2) == "loading"
    return desk


@given(
    load_s=st.integers(2, 200),
    run_s=st.integers(1, 100),
    assumed=st.floats(0.1, 0.9),
    reported=st.none() | st.floats(0.05, 0.95),
)
@settings(max_examples=examples(0.3))
def test_a_step_later_than_assumed_leaves_no_trace_of_the_assumption(
    load_s: int, run_s: int, assumed: float, reported: float | None
) -> None:
    """Load, run, history, report, usage and what is expected of the next load, of the job and of the one
    beside it, are what they would have been without."""
    reported_s = None if reported is None else reported * load_s
    corrected = told_of_two(load_s, run_s, assumed * load_s, reported_s)
    plain = told_of_two(load_s, run_s, None, reported_s)
    assert corrected.times == pytest.approx(plain.times)
    assert corrected.attempt == plain.attempt
    for ours, theirs in ((corrected.work, plain.work), (corrected.beside, plain.beside)):
        assert [row.beside for row in ours] == [row.beside for row in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert one.seconds == pytest.approx(other.seconds)
            assert one.device_s == pytest.approx(other.device_s)
    assert corrected.device_s == pytest.approx(plain.device_s)
    assert corrected.of_kinds.keys() == plain.of_kinds.keys()


def test_what_is_left_begins_to_run_down_with_the_step_and_not_when_it_was_assumed() -> None:
    """A co-tenant that leaves meanwhile changes the pace, and so takes what seems to have been done off."""
    desk = desk_of_two_loading()
    of: dict[str, Any] = {"job_id": JobId("2"), "attempt": AttemptNo(1), "host_id": desk.hosts("2")[0]}
    desk.wait(10.0)
    desk.tell(ev.FirstStepDone(**of, step=0, assumed=True))
    desk.wait(40.0)
    desk.end(1, "finished")
    assert desk.job("2").estimate.remaining_s < 500.0
    desk.wait(40.0)
    desk.tell(ev.FirstStepDone(**of, step=1))
    assert desk.job("2").remaining_now_s(desk.now_s) == 500.0
