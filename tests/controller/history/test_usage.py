"""Usage by user, kind and organisation: the parts of what `report` says, whatever happens; and waiting."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import AttemptNo, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.history import ALWAYS_S, accounts
from cotenant.controller.history.history import History
from cotenant.controller.history.usage import By, Use, usage, use_of, waited_s
from tests.controller.building import profile, report, spec
from tests.controller.engine.test_histories import examples, fresh
from tests.controller.histories import HOSTS, STEPS, WAITS_S, Step, event_of
from tests.controller.history.test_history import Watched

ALONE = profile(8, (1, 0.1, 100.0), duty=0.4)
SHARING = ("castor", "sjf-ffs", "srtf", "lucid")


def use(desk: Watched, job_id: str, since_s: float = ALWAYS_S) -> Use:
    jobs = desk.engine.jobs
    return use_of(jobs, jobs[JobId(job_id)], desk.history.attempts(JobId(job_id)), since_s, desk.now_s)


def test_waiting_is_cut_at_the_beginning_of_the_period() -> None:
    desk = Watched("fifo", report(devices=1))
    desk.run(1)
    desk.submit(2)
    desk.wait(100.0)
    assert use(desk, "2").wait_s == 100.0
    desk.end(1)
    desk.start(2)
    desk.wait(40.0)
    assert use(desk, "2").wait_s == 100.0
    assert use(desk, "2", since_s=desk.now_s - 60.0).wait_s == pytest.approx(20.0)
    assert use(desk, "2", since_s=desk.now_s - 10.0).wait_s == 0.0


def test_the_time_between_an_end_and_the_next_life_is_no_waiting() -> None:
    desk = Watched("fifo", report(devices=1))
    desk.run(1)
    desk.wait(10.0)
    desk.end(1, "user-failed")
    desk.wait(500.0)
    desk.run(9)
    desk.tell(ev.RequeueRequested(job_id=JobId("1"), by="ann"))
    desk.wait(30.0)
    assert use(desk, "1").wait_s == 30.0
    assert use(desk, "1").attempts == 1
    desk.end(9)
    desk.start(1)
    desk.wait(5.0)
    assert use(desk, "1").wait_s == 30.0
    assert use(desk, "1", since_s=desk.now_s - 15.0).wait_s == pytest.approx(10.0)


@given(name=st.sampled_from(SHARING), steps=STEPS, since_part=st.sampled_from((None, 0.3, 0.8)))
@settings(max_examples=examples(0.6))
def test_the_parts_of_everybody_are_the_whole_and_nobody_waits_longer_than_they_were_there(
    name: str, steps: list[Step], since_part: float | None
) -> None:
    engine, history = fresh(name), History()
    events: list[ev.AnyEvent | Step] = [ev.HostJoined(report=host) for host in HOSTS]
    events += [
        ev.JobArrived(spec=spec(n, gpus=2, expected_s=50.0 * n, profile=ALONE, batch_size=8))
        for n in range(1, 9)
    ]
    for each in [*events, *steps]:
        event = event_of(engine, each, SHARING) if isinstance(each, tuple) else each
        wait_s = float(WAITS_S[each[3] % len(WAITS_S)]) if isinstance(each, tuple) else 0.0
        history.observe(engine, event, engine.handle(event, engine.now_s + wait_s))
    now_s, jobs = engine.now_s, engine.jobs
    since_s = ALWAYS_S if since_part is None else now_s * since_part
    whole = accounts.totals(jobs, history.attempts, since_s, now_s)
    lost_s = sum(each.cost_device_s for each in whole.interrupted.values())
    for by in get_args(By):
        parts = usage(jobs, history.attempts, by, since_s, now_s).values()
        assert sum(part.held_device_s for part in parts) == pytest.approx(whole.held_device_s)
        assert sum(part.lost_device_s for part in parts) == pytest.approx(lost_s)
        together_s = whole.shared.device_s + whole.shared.unknown_device_s
        assert sum(part.shared_device_s for part in parts) == pytest.approx(together_s)
    for job in jobs.values():
        known = history.attempts(job.job_id)
        waited = waited_s(job, known, since_s, now_s)
        assert -1e-6 <= waited <= now_s - max(since_s, job.submitted_s) + 1e-6
        if since_part is None and job.ended_s is not None:
            assert waited == pytest.approx(job.spent.wait_s)


def test_energy_is_summed_as_far_as_it_was_told() -> None:
    desk = Watched("fifo", report(devices=1))
    desk.run(1)
    desk.wait(100.0)
    desk.tell(ev.ProgressSeen(job_id=JobId("1"), attempt=AttemptNo(1), step=5, step_s=1.0, energy_j=1.8e6))
    assert (use(desk, "1").energy_kwh, use(desk, "1").energy_unknown_attempts) == (0.5, 0)
    desk.end(1)
    desk.run(2)
    desk.end(2)
    assert use(desk, "2").energy_unknown_attempts == 1, "a host that told nothing"
    [attempt] = desk.history.attempts(JobId("1"))
    assert attempt.ended_s is not None
    half = use(desk, "1", since_s=(attempt.launched_s + attempt.ended_s) / 2)
    assert half.energy_kwh == pytest.approx(0.25)
    whole = accounts.totals(desk.engine.jobs, desk.history.attempts, ALWAYS_S, desk.now_s).energy
    assert whole == (0.5, 1)
