"""When jobs end, as it is told: asked of a real desk; kept over restarts, and the same after a replay."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.api.etas import times_of
from cotenant.controller.api.moment import Now
from cotenant.controller.domain import (
    AttemptNo,
    EtaInterval,
    ExitVerdict,
    HostId,
    JobId,
    Launch,
    Phase,
    ToldInterval,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.history import EtaAnswer, JobEta, comparable_eta, grounds_of, question_of
from cotenant.controller.models.eta import levelwise
from cotenant.controller.policies import registry
from cotenant.controller.present.etas import describe_eta
from cotenant.controller.sim.eta import answer
from cotenant.controller.store import replay
from cotenant.controller.wire import agents, clients, wall_s
from tests.controller.station import Station, run_one

Make = Callable[..., Station]


def worked_out(station: Station, roll_outs: int = 12) -> EtaAnswer:
    """As the controller does it in the background."""
    core = station.core
    question = question_of(core.state.engine, core.state.etas, seed=1, count=roll_outs, is_exact=True)
    found = answer(question, registry.make)
    core.etas = found
    told = tuple(record for eta in found.etas if (record := comparable_eta(eta)) is not None)
    core.happen(ev.EtasTold(at_s=found.now_s, etas=told))
    station.settle()
    return found


OTHER = Launch(argv=("python", "other.py"), workdir="/tmp")


def run_one_end(station: Station, address: bytes, job_id: JobId) -> None:
    """The job that an agent plays has finished."""
    attempt, host_id = station.core.state.engine.jobs[job_id].attempt.number, HostId("h1")
    event = ev.AttemptEnded(
        job_id=job_id,
        attempt=attempt,
        host_id=host_id,
        verdict=ExitVerdict(outcome="finished", exit_code=0),
        step=9,
    )
    sequence = station.journal.reports().get(host_id, 0) + 1
    assert station.agent_says(address, agents.Report(sequence=sequence, event=event))


def busy(station: Station, jobs: int) -> list[JobId]:
    """One device, its job running, and others behind it."""
    address = station.join()
    ids = [station.submit(expected_s=100.0, load_s=5.0) for _ in range(jobs)]
    run_one(station, address, ids[0], until="step")
    return ids


def test_before_anything_was_worked_out_it_is_said_so(station: Station) -> None:
    busy(station, 1)
    (eta,) = station.ask(clients.ListEtas()).etas
    assert (eta.start, eta.finish, eta.told_at, eta.basis) == (
        None,
        None,
        None,
        "its end is not worked out yet",
    )


def test_every_job_has_an_interval_and_its_basis(station: Station) -> None:
    one, two, three = busy(station, 3)
    station.time_s += 10.0
    worked_out(station)
    reply = station.ask(clients.ListEtas())
    now_s = wall_s(reply.now)
    running, waiting, last = reply.etas
    assert (running.job_id, waiting.job_id, last.job_id) == (one, two, three)
    assert running.start is None
    assert wall_s(waiting.start.p50_at) - now_s == pytest.approx(100.0, abs=15.0)
    assert wall_s(last.finish.p90_at) - wall_s(waiting.finish.p90_at) == pytest.approx(105.0, abs=1.0)
    assert waiting.basis == "12 roll-outs of fifo; uncalibrated: 0 of 15 outcomes"
    assert not waiting.is_calibrated
    (only,) = station.ask(clients.ListEtas(job_ids=(two,))).etas
    assert only == waiting


def test_a_job_that_goes_on_after_all_its_times_takes_longer_than_foreseen(station: Station) -> None:
    (one,) = busy(station, 1)
    worked_out(station)
    told_at = station.ask(clients.ListEtas()).now
    station.time_s += 1000.0
    reply = station.ask(clients.ListEtas(job_ids=(one,)))
    (eta,) = reply.etas
    assert (eta.finish.p10_at, eta.finish.p50_at, eta.finish.p90_at) == (reply.now, None, None)
    assert eta.finish.is_overdue
    assert (eta.told_at, eta.age_s) == (told_at, pytest.approx(1000.0))
    assert describe_eta(eta) == "takes longer than foreseen, uncalibrated (told 16m40s ago)"


seconds = st.floats(0.0, 1e6) | st.just(math.inf)
intervals = st.tuples(st.floats(0.0, 1e6), seconds, seconds).map(lambda drawn: EtaInterval(*sorted(drawn)))


@given(intervals, st.floats(0.0, 2e6))
def test_no_time_is_shown_that_has_passed(interval: EtaInterval, age_s: float) -> None:
    now = Now(now_s=1e3 + age_s, wall_s=1.76e9)
    times = times_of(ToldInterval(interval, interval), True, 1e3, now)
    assert times is not None
    shown = [wall_s(at) for at in (times.p10_at, times.p50_at, times.p90_at) if at is not None]
    assert min(shown) >= now.wall_s - 0.001
    assert times.is_overdue == (interval.p90_s < age_s)


@given(intervals, intervals, st.floats(0.0, 2e6))
def test_no_end_is_shown_before_its_start(start: EtaInterval, end: EtaInterval, age_s: float) -> None:
    now = Now(now_s=age_s, wall_s=1.76e9)
    end = levelwise(max, end, start)
    starts, ends = (times_of(ToldInterval(each, each), True, 0.0, now) for each in (start, end))
    assert starts is not None and ends is not None
    assert starts.p10_at <= ends.p10_at
    for first, last in ((starts.p50_at, ends.p50_at), (starts.p90_at, ends.p90_at)):
        assert first is None or last is None or first <= last


def test_what_nobody_can_say_how_sure_it_is_is_marked(station: Station) -> None:
    _, two = busy(station, 2)
    worked_out(station)
    (eta,) = station.ask(clients.ListEtas(job_ids=(two,))).etas
    assert (eta.start.is_spread_known, eta.finish.is_spread_known) == (False, False)
    assert "(nobody knows how sure), ends about" in describe_eta(eta)


def test_an_interval_that_past_errors_made_narrow_is_known_to_be() -> None:
    raw, told = EtaInterval(10.0, 10.0, 10.0), EtaInterval(9.1, 9.2, 9.3)
    for interval, is_known in ((ToldInterval(raw, raw), False), (ToldInterval(raw, told), True)):
        times = times_of(interval, True, 0.0, Now(now_s=0.0, wall_s=1.76e9))
        assert times is not None
        assert times.is_spread_known is is_known


def test_what_changes_a_length_voids_the_old_end_at_once(station: Station) -> None:
    """So that `left`, `eta` and `explain` of one answer are of one moment."""
    address = station.join()
    one = station.submit(launch=Launch.make_counted("python", "train.py"))
    run_one(station, address, one, until="step")
    two = station.submit(expected_s=50.0)
    worked_out(station)
    assert "nothing tells how long it runs" in station.ask(clients.ShowJob(job_id=one)).job.eta.basis
    seen = ev.ProgressSeen(job_id=one, attempt=AttemptNo(1), step=40, step_s=0.5, total_steps=400)
    station.core.happen(seen)
    station.core.happen(ev.SpecChanged(job_id=two, changes={"expected_s": 500.0}, by="ann"))
    station.settle()
    for job_id in (one, two):
        shown = station.ask(clients.Explain(job_id=job_id)).job
        assert (shown.left_s is not None, shown.eta.finish, shown.eta.basis) == (
            True,
            None,
            "its end is being worked out",
        )
    worked_out(station)
    for job_id, length_s in ((one, 180.0), (two, 500.0)):
        shown = station.ask(clients.ShowJob(job_id=job_id)).job
        assert shown.left_s == pytest.approx(length_s, abs=1.0)
        assert wall_s(shown.eta.finish.p50_at) - wall_s(shown.eta.told_at) > shown.left_s - 1.0


def test_the_listing_the_page_and_the_reason_have_it_too(station: Station) -> None:
    _, two, three = busy(station, 3)
    worked_out(station)
    listed = {view.job_id: view.eta for view in station.ask(clients.ListJobs()).jobs}
    assert listed[two].finish is not None
    assert station.ask(clients.ShowJob(job_id=two)).job.eta == listed[two]
    reply = station.ask(clients.Explain(job_id=three))
    assert reply.job.eta.finish is not None
    ahead, first = reply.explanation.ahead
    assert ahead == f"ahead of it in the queue: job {two}"
    assert first == "first job 1 and some of those ahead of it have to end or make room"
    (first,) = station.ask(clients.Explain(job_id=two)).explanation.ahead
    assert first.startswith("first job 1 has to end or make room, about 1")


def test_of_a_job_of_unknown_length_no_median_is_told(station: Station) -> None:
    address = station.join()
    for _ in range(16):
        job_id = station.submit(expected_s=30.0)
        run_one(station, address, job_id, until="step")
        station.time_s += 20.0 + 2.0 * int(job_id)
        run_one_end(station, address, job_id)
    unknown = station.submit(launch=OTHER)
    run_one(station, address, unknown, until="step")
    worked_out(station)
    (eta,) = station.ask(clients.ListEtas(job_ids=(unknown,))).etas
    assert eta.finish.p50_at is None
    assert wall_s(eta.finish.p90_at) > wall_s(eta.finish.p10_at)
    assert "its length is unknown: as those of other jobs here" in eta.basis


def test_what_nobody_can_know_is_unknown(station: Station) -> None:
    address = station.join()
    first = station.submit()
    run_one(station, address, first, until="step")
    behind = station.submit(expected_s=5.0)
    held = station.submit(expected_s=5.0, hold=True)
    worked_out(station)
    told = {eta.job_id: eta for eta in station.ask(clients.ListEtas()).etas}
    assert all(eta.finish is None and eta.start is None for eta in told.values())
    assert "--expect" in told[first].basis
    assert "nothing tells how long those run" in told[behind].basis
    assert told[held].basis == "unknown: it is held"


def test_what_was_told_and_what_came_of_it_outlive_a_restart_and_a_replay(stations: Make) -> None:
    station = stations(snapshot_every=7)
    address = station.join()
    for _ in range(18):
        job_id = station.submit(expected_s=30.0)
        run_one(station, address, job_id, until="step")
        worked_out(station, roll_outs=2)
        station.time_s += 30.0
        run_one_end(station, address, job_id)
    last = station.submit(expected_s=30.0)
    run_one(station, address, last, until="step")
    worked_out(station, roll_outs=2)
    before = msgspec.msgpack.encode(station.core.state.etas.save())
    scores = station.ask(clients.ListEtas()).scores
    assert replay(station.journal, registry.make, "1.2.3").differences == ()
    again = stations(snapshot_every=7)
    assert msgspec.msgpack.encode(again.core.state.etas.save()) == before
    assert again.ask(clients.ListEtas()).scores == scores
    submission = next(each for each in scores if each.kind == "submission")
    assert (submission.policy, submission.current) == ("fifo", True)
    assert (submission.predictions, submission.uncalibrated) == (3, 15)


def test_an_interval_that_is_over_has_missed_before_its_job_ends(stations: Make) -> None:
    """Else whoever takes longest is never counted."""
    station = stations()
    address = station.join()
    for _ in range(18):
        job_id = station.submit(expected_s=30.0)
        run_one(station, address, job_id, until="step")
        worked_out(station, roll_outs=2)
        station.time_s += 30.0
        run_one_end(station, address, job_id)
    late = station.submit(expected_s=30.0)
    run_one(station, address, late, until="step")
    worked_out(station, roll_outs=2)

    def of_submissions() -> clients.EtaScoreView:
        scores: tuple[clients.EtaScoreView, ...] = station.ask(clients.ListEtas()).scores
        return next(each for each in scores if each.kind == "submission")

    before = of_submissions()
    assert (before.predictions, before.coverage_80, before.hit_rate_100) == (3, 1.0, 1.0)
    station.time_s += 3_000.0
    after = of_submissions()
    assert (after.predictions, after.coverage_80, after.hit_rate_100) == (4, 0.75, 0.75)
    run_one_end(station, address, late)
    ended = of_submissions()
    assert (ended.predictions, ended.coverage_80) == (4, 0.75)


def test_another_policys_answer_is_not_shown(station: Station) -> None:
    busy(station, 2)
    worked_out(station)
    station.core.happen(ev.PolicyChanged(name="sjf"))
    station.settle()
    assert {eta.basis for eta in station.ask(clients.ListEtas()).etas} == {"its end is being worked out"}


def test_an_endless_bound_is_null(station: Station) -> None:
    (one,) = busy(station, 1)
    interval = EtaInterval(1.0, 2.0, float("inf"))
    eta = JobEta(
        job_id=one,
        kind="submission",
        finish=ToldInterval(interval, interval),
        grounds=grounds_of(station.core.state.engine.jobs[one]),
    )
    station.core.etas = EtaAnswer(now_s=station.core.clock.now_s(), policy="fifo", count=12, etas=[eta])
    (shown,) = station.ask(clients.ListEtas()).etas
    assert shown.finish.p90_at is None
    assert shown.phase is Phase.RUNNING
