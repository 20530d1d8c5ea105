"""A roll-out is the simulation itself, from any moment on; and what nobody knows has no end in it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from cotenant.controller.domain import AnyCommand, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import Engine
from cotenant.controller.history import EtaAnswer, EtaBook, JobEta, question_of
from cotenant.controller.models.eta import ENOUGH, EtaError, KnownLength, Pools
from cotenant.controller.policies import registry
from cotenant.controller.sim.eta import answer
from cotenant.controller.sim.eta.intervals import EtaTrial
from cotenant.controller.sim.simulate import simulate
from cotenant.controller.sim.world.physics import Physics
from tests.controller.building import Desk, report
from tests.controller.sim.workloads import JobRow, cluster, workload

EXACT = ["fifo", "sjf", "srtf", "srtf-full", "tiresias", "interval-60", "patient", "castor"]


def test_no_end_is_told_before_its_start_whatever_corrects_them() -> None:
    desk, pools = Desk("fifo"), Pools()
    for number in (1, 2):
        desk.submit(number, expected_s=100.0)
    starts_later, ends_sooner = (3.0, 3.0, 3.0), (-3.0, -3.0, -3.0)
    error = EtaError(
        finish=ends_sooner, start=starts_later, was_calibrated=True, hit=False, bias=0.0, width_s=1.0,
        actual_s=1.0,
    )  # fmt: skip
    for _ in range(ENOUGH):
        pools.add_error("fifo", "submission", error)
    _, waiting = asked(desk.engine, pools).etas
    assert waiting.start is not None and waiting.finish is not None
    assert waiting.finish.raw.p50_s < waiting.start.told.p50_s < waiting.finish.told.p50_s


def rows_of(seed: int) -> list[JobRow]:
    random = Random(seed)
    submit_s = sorted(random.uniform(0.0, 400.0) for _ in range(random.randint(2, 8)))
    return [
        JobRow(
            at_s - submit_s[0],
            random.uniform(1.0, 3000.0),
            gpus=random.randint(1, 3),
            load_s=random.uniform(0.0, 60.0),
            model=random.choice(("ResNet-18:64", "LM:20")),
        )
        for at_s in submit_s
    ]


def asked(engine: Engine, pools: Pools | None = None, seed: int = 0, count: int = 2) -> EtaAnswer:
    question = question_of(engine, EtaBook(), seed=seed, count=count, is_exact=True)
    if pools is not None:
        question = msgspec.structs.replace(question, pools=pools)
    return answer(question, registry.make)


SAVING = [("srtf", 169), ("srtf-full", 279), ("interval-60", 193), ("patient", 120)]
"""Seeds in which a job saves its state when it is asked."""


@pytest.mark.parametrize(
    ("policy", "seed"), [*((policy, seed) for policy in EXACT for seed in range(4)), *SAVING]
)
def test_with_exact_estimates_and_nobody_to_come_a_roll_out_tells_the_future(policy: str, seed: int) -> None:
    jobs, pairs = workload(*rows_of(seed)), "gavel-v100" if policy == "castor" else "none"
    arrived = 0
    told: dict[JobId, tuple[float, JobEta]] = {}

    def look(engine: Engine, event: ev.AnyEvent, commands: Sequence[AnyCommand]) -> None:
        nonlocal arrived, told
        arrived += type(event) is ev.JobArrived
        if arrived == len(jobs) and not told:
            told = {eta.job_id: (engine.now_s, eta) for eta in asked(engine).etas}

    physics = Physics(pairs=pairs, xi="measured")
    outcome = simulate(jobs, cluster(2, 2), policy, physics=physics, look=look)
    assert told
    for job_id, (now_s, eta) in told.items():
        row = int(job_id)
        end_s = float(jobs.submit_s[row] + outcome.jct_s[row]) - now_s
        assert eta.finish is not None
        interval = eta.finish.raw
        # Of pairs the engine learns in the meantime: what it had expected is not quite what comes.
        near: Any = pytest.approx(end_s, abs=0.05, rel=0.01 if policy == "castor" else 1e-4)
        assert [interval.p10_s, interval.p50_s, interval.p90_s] == [near] * 3, (job_id, eta)


def test_one_seed_one_answer() -> None:
    desk = Desk("srtf")
    for job in range(1, 6):
        desk.submit(job, expected_s=100.0 * job)
    pools = Pools()
    for number in range(40):
        pools.add_length(KnownLength("user", 100.0, 50.0 + number))
    first, second, other = (asked(desk.engine, pools, seed).etas for seed in (1, 1, 2))
    assert first == second != other


def test_nothing_that_waits_for_a_job_of_unknown_length_has_an_end() -> None:
    desk = Desk("fifo")
    desk.run(1)
    desk.submit(2, expected_s=10.0)
    running, waiting = asked(desk.engine).etas
    assert (running.finish, running.is_length_known) == (None, False)
    assert (waiting.start, waiting.finish, waiting.is_length_known) == (None, None, True)


def test_what_runs_on_other_devices_still_has_one() -> None:
    desk = Desk("fifo", report(devices=2))
    desk.run(1)
    desk.run(2, expected_s=50.0)
    desk.submit(3, expected_s=10.0, load_s=5.0)
    _, running, waiting = asked(desk.engine).etas
    assert running.finish is not None
    assert running.finish.raw.p50_s == pytest.approx(50.0)
    assert waiting.start is not None
    assert waiting.finish is not None
    assert (waiting.start.raw.p50_s, waiting.finish.raw.p50_s) == pytest.approx((50.0, 65.0))


def test_of_a_job_of_unknown_length_run_times_of_others_give_a_wide_interval() -> None:
    desk = Desk("fifo")
    desk.run(1)
    pools = Pools()
    for number in range(30):
        pools.add_run_time(10.0 * 1.5**number)
    (eta,) = asked(desk.engine, pools, count=12).etas
    assert eta.finish is not None
    assert not eta.is_length_known
    assert eta.finish.raw.p90_s > 100.0 * eta.finish.raw.p10_s


def test_a_held_job_has_none_and_others_do_not_wait_for_it() -> None:
    desk = Desk("fifo")
    desk.submit(1, expected_s=10.0, hold=True)
    desk.run(2, expected_s=20.0)
    held, other = asked(desk.engine).etas
    assert (held.start, held.finish) == (None, None)
    assert other.finish is not None


def test_what_arrives_later_is_ahead_where_the_policy_says_so() -> None:
    """Short jobs keep coming: under srtf a long one waits for them, under fifo it does not."""
    ends = {}
    for policy in ("fifo", "srtf"):
        desk, book = Desk(policy), EtaBook()
        for job in range(1, 21):
            desk.now_s += 20.0
            book.observe(desk.engine, ev.EtasTold(at_s=0.0, etas=()))
            desk.run(job, expected_s=15.0, load_s=0.0, resumable=True)
            book.observe(desk.engine, ev.JobArrived(spec=desk.job(job).spec))
            desk.wait(15.0)
            desk.end(job)
        desk.run(99, expected_s=100.0, load_s=0.0, pause_s=0.0, resumable=True)
        (eta,) = answer(question_of(desk.engine, book, seed=3, count=4, is_exact=True), registry.make).etas
        assert eta.finish is not None
        ends[policy] = eta.finish.raw.p50_s
    assert ends["fifo"] == pytest.approx(100.0)
    assert ends["srtf"] > 130.0


def test_a_steps_unit_is_the_jobs_own() -> None:
    """A real job's step takes seconds, not a millisecond: it is preempted in a roll-out, and goes on from
    where it stood."""
    desk = Desk("srtf")
    desk.run(1, expected_s=1000.0, pause_s=5.0, load_s=10.0)
    desk.wait(100)
    desk.progress(1, 50, 2.0)
    desk.submit(2, expected_s=60.0, load_s=10.0)
    one, two = asked(desk.engine).etas
    assert one.finish is not None
    assert two.finish is not None
    assert two.finish.raw.p50_s == pytest.approx(75.0, abs=1.0)
    assert one.finish.raw.p50_s == pytest.approx(75.0 + 10.0 + 900.0, abs=2.0)


def test_intervals_of_a_run_are_scored_and_the_run_is_not_changed() -> None:
    rows = [JobRow(30.0 * number, 40.0 + 7.0 * (number % 11), expected_s=60.0) for number in range(46)]
    jobs = workload(*rows)
    trial = EtaTrial(jobs, 0, registry.make)
    plain = simulate(jobs, cluster(1, 2), "srtf")
    watched = simulate(jobs, cluster(1, 2), "srtf", look=trial)
    assert watched.jct_s.tolist() == plain.jct_s.tolist()
    result = trial.result()
    assert result["told"] == len(rows)
    assert result["predictions"] + result["uncalibrated"] == len(rows)
    assert result["predictions"] >= 15
    assert 0.0 <= result["coverage_80"] <= 1.0
    assert result["open_share"] < 0.5
    assert trial.prediction_error() is not None


def test_with_exact_estimates_no_interval_has_a_width_and_with_wrong_ones_the_first_have() -> None:
    widths_s = {}
    for factor in (1.0, 1.5):
        rows = [JobRow(400.0 * number, 100.0, expected_s=100.0 * factor) for number in range(5)]
        jobs = workload(*rows)
        trial = EtaTrial(jobs, 0, registry.make)
        simulate(jobs, cluster(1, 1), "srtf", look=trial)
        widths_s[factor] = [error.width_s for error in trial.errors]
    assert widths_s[1.0] == pytest.approx([0.0] * 5)
    assert len(widths_s[1.5]) == 5
    assert min(widths_s[1.5]) > 100.0


def test_a_computation_in_a_roll_out_fails_and_the_roll_out_goes_on() -> None:
    desk = Desk("lazer")
    for job in range(1, 8):
        desk.submit(job, expected_s=50.0 * job, resumable=True)
    assert all(eta.finish is not None for eta in asked(desk.engine).etas)


def test_a_job_that_has_ended_is_not_asked_about() -> None:
    desk = Desk("fifo")
    desk.run(1, expected_s=10.0)
    desk.end(1)
    desk.run(2, expected_s=10.0)
    assert [eta.job_id for eta in asked(desk.engine).etas] == [JobId("2")]
