"""What the clock fixes is not corrected: whatever past errors say, no start is told before `--begin`, the end
of a reservation, of a job that is waited for, or of a task whose place is taken; and no end before its start.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import Booking, Dependency, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.history import EtaBook, JobEta, question_of
from cotenant.controller.models.eta import ENOUGH, EtaError, Pools
from cotenant.controller.policies import registry
from cotenant.controller.sim.eta import answer
from tests.controller.building import Desk, report

BEGIN_S = 9_000.0
SHIFTS = st.floats(-6.0, 6.0)


def pools_with(starts: float, ends: float, run_times: tuple[float, ...] = ()) -> Pools:
    """Past errors that are all the same: `calibrated_interval` takes them out whole."""
    pools = Pools()
    error = EtaError(
        finish=(ends,) * 3, start=(starts,) * 3, was_calibrated=True, hit=True, bias=0.0, width_s=1.0,
        actual_s=1.0,
    )  # fmt: skip
    for _ in range(ENOUGH):
        pools.add_error("fifo", "submission", error)
    for run_s in run_times:
        pools.add_run_time(run_s)
    return pools


EARLY = pools_with(-4.0, -4.0)
UNKNOWN = pools_with(-4.0, -4.0, run_times=tuple(20.0 + 5.0 * number for number in range(ENOUGH)))


def told(desk: Desk, pools: Pools = EARLY, count: int = 3) -> dict[str, JobEta]:
    question = question_of(desk.engine, EtaBook(), seed=0, count=count, is_exact=True)
    question = msgspec.structs.replace(question, pools=pools)
    etas = answer(question, registry.make).etas
    for eta in etas:
        check(eta)
    return {str(eta.job_id): eta for eta in etas}


def check(eta: JobEta) -> None:
    """Of each interval the levels rise, no level lies below the floor, and an end is after its start."""
    for each in (eta.start, eta.finish):
        if each is not None:
            levels = msgspec.structs.astuple(each.told)
            assert list(levels) == sorted(levels), eta
            assert min(levels) >= each.floor_s >= 0.0, eta
    if eta.start is not None and eta.finish is not None:
        starts, ends = map(msgspec.structs.astuple, (eta.start.told, eta.finish.told))
        assert all(start_s < end_s for start_s, end_s in zip(starts, ends, strict=True)), eta


def test_begin_moves_both_start_and_end() -> None:
    desk = Desk("fifo")
    desk.submit(1, expected_s=100.0, begin_s=BEGIN_S)
    desk.submit(2, begin_s=BEGIN_S)
    for eta in told(desk, UNKNOWN).values():
        assert eta.start is not None and eta.finish is not None
        assert BEGIN_S <= eta.start.told.p10_s < eta.finish.told.p10_s
        assert eta.start.told.p90_s < BEGIN_S + 300.0


def test_no_job_starts_on_devices_that_are_reserved_until_later() -> None:
    desk = Desk("fifo")
    booking = Booking(booking_id="r1", user="bob", gpus=1, from_s=50.0, until_s=BEGIN_S)
    assert isinstance(desk.engine.bookings.offer(booking, desk.now_s), tuple)
    desk.tell(ev.BookingMade(booking=booking, by="bob"))
    desk.submit(1, expected_s=100.0)
    start = told(desk)["1"].start
    assert start is not None
    assert start.told.p10_s >= BEGIN_S


def test_who_waits_for_a_job_starts_after_its_end() -> None:
    desk = Desk("fifo", report(devices=3))
    desk.run(1, expected_s=1000.0)
    desk.submit(2, expected_s=10.0, begin_s=BEGIN_S)
    desk.submit(3, expected_s=10.0, after=(Dependency(job_id=JobId("1")),))
    desk.submit(4, expected_s=10.0, after=(Dependency(job_id=JobId("2")),))
    for pools in (EARLY, pools_with(-4.0, 1.0)):
        etas = told(desk, pools)
        for job_id, waits_for in (("3", "1"), ("4", "2")):
            start, end = etas[job_id].start, etas[waits_for].finish
            assert start is not None and end is not None
            levels = zip(*map(msgspec.structs.astuple, (start.told, end.told)), strict=True)
            assert all(start_s >= end_s for start_s, end_s in levels)


def test_a_task_of_a_throttled_array_starts_when_another_has_ended() -> None:
    desk = Desk("fifo", report(devices=4))
    for task in range(6):
        desk.submit(f"1_{task}", expected_s=1000.0, array_limit=2)
        if task < 2:
            desk.start(f"1_{task}")
    etas = told(desk, pools_with(-4.0, 0.0))
    starts = [etas[f"1_{task}"].start for task in range(2, 6)]
    assert [round(each.told.p50_s, -2) for each in starts if each] == [1000.0, 1000.0, 2000.0, 2000.0]


def test_of_a_held_job_nothing_is_told() -> None:
    desk = Desk("fifo")
    desk.submit(1, expected_s=10.0, hold=True, begin_s=BEGIN_S)
    eta = told(desk)["1"]
    assert (eta.start, eta.finish) == (None, None)


def test_a_time_limit_ends_a_job_whatever_past_errors_say() -> None:
    desk = Desk("fifo", report(devices=2))
    desk.run(1, expected_s=200.0, time_limit_s=300.0, pause_s=5.0)
    desk.submit(2, expected_s=200.0, time_limit_s=300.0, pause_s=5.0, load_s=0.0, begin_s=BEGIN_S)
    etas = told(desk, pools_with(0.0, 4.0))
    for job_id, begins_s in (("1", 0.0), ("2", BEGIN_S)):
        finish = etas[job_id].finish
        assert finish is not None
        assert finish.told.p90_s == pytest.approx(begins_s + 305.0, abs=1.0)


def test_of_a_job_that_only_its_limit_ends_the_limit_is_told_from_its_begin() -> None:
    desk = Desk("fifo", report(devices=2))
    desk.run(1, time_limit_s=600.0, pause_s=5.0)
    desk.submit(2, time_limit_s=600.0, pause_s=5.0, begin_s=BEGIN_S)
    desk.submit(3, expected_s=10.0)
    etas = told(desk)
    for job_id, begins_s in (("1", 0.0), ("2", BEGIN_S)):
        finish = etas[job_id].finish
        assert etas[job_id].is_limit and finish is not None
        assert finish.told.p90_s == pytest.approx(begins_s + 605.0, abs=10.0)
    assert not etas["3"].is_limit


def test_the_end_of_a_job_of_unknown_length_is_not_the_interval_of_its_start() -> None:
    """It lies beyond it by what other jobs took; past errors, of other jobs, do not shorten that."""
    desk = Desk("fifo")
    desk.run(1, expected_s=1000.0)
    desk.submit(2)
    eta = told(desk, UNKNOWN)["2"]
    assert eta.start is not None and eta.finish is not None
    assert eta.finish.told.p10_s >= eta.start.told.p10_s + 20.0
    assert eta.finish.told.p90_s >= eta.start.told.p90_s + 50.0


def test_a_length_that_comes_with_its_spread_is_drawn_from_it() -> None:
    desk = Desk("fifo")
    desk.run(1, expected_s=100.0)
    desk.job(1).estimate.low_s, desk.job(1).estimate.high_s = 50.0, 400.0
    finish = told(desk, Pools(), count=40)["1"].finish
    assert finish is not None
    assert [finish.raw.p10_s, finish.raw.p50_s, finish.raw.p90_s] == pytest.approx(
        [50.0, 100.0, 400.0], rel=0.15
    )
    desk.wait(300.0)
    finish = told(desk, Pools(), count=40)["1"].finish
    assert finish is not None
    assert finish.raw.p50_s > 50.0


@given(
    jobs=st.lists(
        st.fixed_dictionaries(
            {
                "expected_s": st.sampled_from((None, 5.0, 300.0)),
                "begin_s": st.sampled_from((None, 40.0, BEGIN_S)),
                "time_limit_s": st.sampled_from((None, 100.0)),
                "array_limit": st.sampled_from((0, 1)),
            }
        ),
        min_size=1,
        max_size=5,
    ),
    waits=st.lists(st.booleans(), min_size=5, max_size=5),
    shifts=st.tuples(SHIFTS, SHIFTS),
)
@settings(max_examples=25)
def test_whatever_corrects_them_levels_rise_above_the_floor_and_ends_follow_starts(
    jobs: list[dict[str, Any]], waits: list[bool], shifts: tuple[float, float]
) -> None:
    desk = Desk("fifo", report(devices=2))
    for task, (job, waits_for) in enumerate(zip(jobs, waits, strict=False)):
        after = (Dependency(job_id=JobId(f"9_{task - 1}"), need="any"),) if task and waits_for else ()
        desk.submit(f"9_{task}", after=after, **job)
    etas = told(desk, pools_with(*shifts, run_times=tuple(1.0 + number for number in range(ENOUGH))))
    for task, job in enumerate(jobs):
        start = etas[f"9_{task}"].start
        assert start is None or start.told.p10_s >= (job["begin_s"] or 0.0) - 1e-6
