"""Timelines computed by hand, and promises over random workloads, policies and failures."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import Compute, Decision, Phase, because
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import View
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.policies.ordered import Ordered
from cotenant.controller.policies.toolkit import OrderParameters
from cotenant.controller.sim.results.summary import summarise
from cotenant.controller.sim.simulate import simulate
from cotenant.controller.sim.world.outcome import RunResult
from cotenant.controller.sim.world.physics import Failures, FailureTimes, Physics
from cotenant.controller.sim.world.workload import Workload
from cotenant.controller.sim.world.world import World
from cotenant.controller.training import compute
from tests.building.limits import within_s
from tests.controller.sim.workloads import JobRow, cluster, workload

POLICIES = ("fifo", "sjf", "srtf", "srtf-full", "srsf", "tiresias", "interval-60", "patient", "castor")


def times(outcome: RunResult, row: int) -> tuple[float, float, float, float]:
    """Wait, load, run, pause."""
    columns = (outcome.wait_s, outcome.load_s, outcome.run_s, outcome.pause_s)
    return tuple(float(column[row]) for column in columns)  # type: ignore[return-value]


def close(*seconds: float) -> Any:
    return pytest.approx(seconds, abs=1e-6)


def comparable(outcome: RunResult) -> str:
    """Everything that must not depend on the machine."""
    summary = summarise(outcome)
    for name in ("decision_ms", "wall_s", "cpu_s", "thinking_s"):
        del summary[name]
    columns = (outcome.jct_s, outcome.wait_s, outcome.run_s, outcome.preemptions, outcome.futile_s)
    digest = hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()
    return json.dumps([summary, digest], allow_nan=False)


class TestByHand:
    def test_a_job_alone_loads_and_trains(self) -> None:
        outcome = simulate(workload(JobRow(0, 100)), cluster(1), "fifo", validate=True)
        assert times(outcome, 0) == close(0, 30, 100, 0)
        assert outcome.makespan_s == outcome.jct_s[0] == pytest.approx(130)
        assert outcome.busy_gpu_s == pytest.approx(130)
        assert outcome.events == 3

    def test_a_preempted_job_saves_waits_loads_again_and_does_the_rest(self) -> None:
        jobs = workload(JobRow(0, 1000), JobRow(100, 50, load_s=20, pause_s=5))
        outcome = simulate(jobs, cluster(1), "srtf", validate=True)
        assert times(outcome, 0) == close(178 - 108, 60, 1000, 8)
        assert times(outcome, 1) == close(8, 20, 50, 0)
        assert outcome.jct_s[0] == pytest.approx(1138)
        assert list(outcome.preemptions) == [1, 0]
        assert list(outcome.futile_preemptions) == [0, 0]

    def test_a_preemption_while_loading_is_futile_and_frees_the_device_at_once(self) -> None:
        jobs = workload(JobRow(0, 1000), JobRow(10, 50, load_s=20))
        outcome = simulate(jobs, cluster(1), "srtf", validate=True)
        assert times(outcome, 0) == close(70, 40, 1000, 0)
        assert times(outcome, 1) == close(0, 20, 50, 0)
        assert outcome.futile_s[0] == pytest.approx(10)
        assert (outcome.preemptions[0], outcome.futile_preemptions[0]) == (1, 1)

    def test_ending_a_loading_job_may_take_time(self) -> None:
        jobs = workload(JobRow(0, 1000), JobRow(10, 50, load_s=20))
        outcome = simulate(jobs, cluster(1), "srtf", physics=Physics(kill_s=3.0), validate=True)
        assert times(outcome, 0) == close(70, 40, 1000, 3)
        assert times(outcome, 1) == close(3, 20, 50, 0)

    def test_a_newcomer_that_is_replaced_while_its_victim_saves_is_an_aborted_preemption(self) -> None:
        jobs = workload(
            JobRow(0, 5000), JobRow(100, 500, load_s=20, pause_s=5), JobRow(104, 50, load_s=20, pause_s=5)
        )
        outcome = simulate(jobs, cluster(1), "patient", validate=True)
        assert times(outcome, 2) == close(4, 20, 50, 0)  # From 108 to 178.
        assert times(outcome, 1) == close(78, 20, 500, 0)  # From 178 to 698.
        assert times(outcome, 0) == close(698 - 108, 60, 5000, 8)
        assert list(outcome.aborted_preemptions) == [0, 1, 0]
        assert list(outcome.futile_preemptions) == [0, 0, 0]

    def test_co_tenants_slow_each_other_only_while_both_train(self, pairs: str) -> None:
        jobs = workload(JobRow(0, 1000, load_s=10, model="a"), JobRow(110, 100, load_s=20, model="b"))
        outcome = simulate(jobs, cluster(1), "castor", physics=Physics(pairs=pairs), validate=True)
        # b trains from 130 at half its speed, to 330; a at two thirds of its own meanwhile.
        assert times(outcome, 1) == close(0, 20, 200, 0)
        assert times(outcome, 0) == close(0, 10, 120 + 200 + (1000 - 120 - 200 / 1.5), 0)
        assert outcome.shared.all()
        assert outcome.busy_gpu_s == pytest.approx(outcome.makespan_s)

    def test_a_gang_goes_at_the_pace_of_its_slowest_device(self, pairs: str) -> None:
        jobs = workload(
            JobRow(0, 1000, load_s=10, model="b"),
            JobRow(0, 3000, load_s=10, model="a"),
            JobRow(1, 20, gpus=2, load_s=9, model="a"),
        )
        outcome = simulate(jobs, cluster(1, 2), "castor", physics=Physics(pairs=pairs), validate=True)
        # Beside b it is 1.5 times slower, beside another a 1.2 times.
        assert times(outcome, 2) == close(0, 9, 30, 0)
        assert times(outcome, 0) == close(0, 10, 1000 + 30 - 30 / 2.0, 0)
        assert times(outcome, 1) == close(0, 10, 3000 + 30 - 30 / 1.2, 0)

    def test_without_pairs_nobody_shares(self) -> None:
        jobs = workload(JobRow(0, 1000), JobRow(110, 100))
        outcome = simulate(jobs, cluster(1), "castor", physics=Physics(pairs="none"), validate=True)
        assert not outcome.shared.any()
        assert times(outcome, 1) == close(1030 - 110, 30, 100, 0)

    def test_what_sharing_does_is_learned_from_the_first_pair_and_can_be_known_before(
        self, bad_pairs: str
    ) -> None:
        rows = [JobRow(0, 1000, model="a"), JobRow(100, 300, model="b")]
        again = [JobRow(90_000, 1000, model="a"), JobRow(90_100, 300, model="b")]
        jobs = workload(*rows, *again)
        learned = simulate(jobs, cluster(1), "castor", physics=Physics(pairs=bad_pairs), validate=True)
        assert list(learned.shared) == [True, True, False, False]
        told = simulate(jobs, cluster(1), "castor", physics=Physics(pairs=bad_pairs, xi="measured"))
        assert list(told.shared) == [False] * 4

    def test_a_gang_over_several_hosts_starts_and_ends_as_one(self) -> None:
        jobs = workload(JobRow(0, 100, gpus=6), JobRow(1, 10, gpus=1, load_s=5))
        outcome = simulate(jobs, cluster(3, 2), "fifo", validate=True)
        assert times(outcome, 0) == close(0, 30, 100, 0)
        assert times(outcome, 1) == close(129, 5, 10, 0)
        assert outcome.busy_gpu_s == pytest.approx(6 * 130 + 15)

    def test_a_gang_over_several_hosts_is_preempted_as_one(self) -> None:
        jobs = workload(JobRow(0, 1000, gpus=3), JobRow(100, 50, load_s=20))
        outcome = simulate(jobs, cluster(3), "srtf", validate=True)
        assert times(outcome, 0) == close(70, 60, 1000, 8)
        assert list(outcome.preemptions) == [1, 0]

    def test_nothing_takes_no_time_where_loading_and_saving_do_not(self) -> None:
        jobs = workload(JobRow(0, 1000, load_s=0, pause_s=0), JobRow(100, 50, load_s=0, pause_s=0))
        outcome = simulate(jobs, cluster(1), "srtf", validate=True)
        assert times(outcome, 0) == close(50, 0, 1000, 0)
        assert times(outcome, 1) == close(0, 0, 50, 0)

    def test_jobs_that_arrive_together_start_in_their_order(self) -> None:
        outcome = simulate(workload(*[JobRow(0, 10)] * 4), cluster(1, 2), "fifo", validate=True)
        assert [times(outcome, row)[0] for row in range(4)] == [0, 0, 40, 40]

    def test_an_end_comes_before_an_arrival_of_the_same_instant(self) -> None:
        jobs = workload(JobRow(0, 10), JobRow(40, 5))
        outcome = simulate(jobs, cluster(1), "srtf", validate=True)
        assert times(outcome, 1) == close(0, 30, 5, 0)
        assert outcome.preemptions.sum() == 0

    def test_what_a_stop_loses_is_less_than_a_step(self) -> None:
        jobs = workload(JobRow(0, 1000), JobRow(100.0007, 50, load_s=20))
        outcome = simulate(jobs, cluster(1), "srtf", validate=True)
        assert outcome.run_s[0] == pytest.approx(1000.0007, abs=1e-6)
        assert outcome.rework_s[0] == 0.0

    def test_hp_jobs_are_never_preempted(self) -> None:
        jobs = workload(JobRow(0, 1000, hp=True), JobRow(100, 50))
        outcome = simulate(jobs, cluster(1), "srtf", validate=True)
        assert times(outcome, 1) == close(930, 30, 50, 0)

    def test_what_can_never_start_does_not_keep_the_run_going(self) -> None:
        outcome = simulate(workload(JobRow(0, 10), JobRow(0, 10, gpus=3)), cluster(1, 2), "interval-60")
        assert list(outcome.finished) == [True, False]
        assert np.isnan(outcome.jct_s[1])
        assert outcome.makespan_s == outcome.jct_s[0]

    def test_an_empty_workload_is_over_at_once(self) -> None:
        outcome = simulate(workload(), cluster(1), "fifo")
        assert (len(outcome.jct_s), outcome.makespan_s, outcome.events) == (0, 0.0, 0)


class FirstHostFailsOnce(Failures):
    def times(self, hosts: int, seed: int) -> FailureTimes:
        due = {0: iter([1500.0])}

        class Times(FailureTimes):
            def next_s(self, host: int) -> float:
                return next(due.get(host, iter(())), 1e12)

        return Times(self, hosts, seed)


class TestLostHosts:
    FAILURES = FirstHostFailsOnce(mean_between_s=1.0, repair_s=600.0)

    def run(self, *rows: JobRow, hosts: int, physics: Physics | None = None) -> RunResult:
        return simulate(
            workload(*rows), cluster(hosts), "fifo", failures=self.FAILURES, physics=physics, validate=True
        )

    def test_a_job_goes_on_elsewhere_from_its_last_periodic_checkpoint(self) -> None:
        outcome = self.run(JobRow(0, 2000), hosts=2)
        # Trained from 30 to 1500; what came after the checkpoint at 1200 s of training is done again.
        assert times(outcome, 0) == close(0, 60, 1470 + 800, 0)
        assert outcome.rework_s[0] == pytest.approx(270)

    def test_a_job_waits_for_the_only_host_and_still_finds_its_checkpoint(self) -> None:
        outcome = self.run(JobRow(0, 2000), hosts=1)
        assert times(outcome, 0) == close(600, 60, 1470 + 800, 0)
        assert outcome.rework_s[0] == pytest.approx(270)

    def test_a_gang_that_lost_a_part_leaves_its_other_hosts_when_told(self) -> None:
        outcome = self.run(JobRow(0, 2000, gpus=2), hosts=3, physics=Physics(kill_s=5.0))
        assert times(outcome, 0) == close(0, 60, 1470 + 800, 5)
        assert outcome.rework_s[0] == pytest.approx(270)
        assert outcome.busy_gpu_s == pytest.approx(2 * 1500 + 5 + 2 * 830)

    def test_a_job_that_was_loading_loads_again_and_nothing_is_futile(self) -> None:
        outcome = self.run(JobRow(0, 2000, load_s=1600), hosts=2)
        assert times(outcome, 0) == close(0, 1500 + 1600, 2000, 0)
        assert (outcome.rework_s[0], outcome.futile_s[0], outcome.preemptions[0]) == (0.0, 0.0, 0)

    def test_a_save_on_a_host_that_is_lost_was_for_nothing(self) -> None:
        jobs = workload(JobRow(0, 2000, pause_s=100), JobRow(1450, 50, load_s=20))
        outcome = simulate(jobs, cluster(1), "srtf", failures=self.FAILURES, validate=True)
        # Asked to save at 1450 after 1420 s of training, lost at 1500, back at 2100.
        assert times(outcome, 1) == close(650, 20, 50, 0)
        assert times(outcome, 0) == close(2170 - 1500, 60, 1420 + 800, 50)
        assert outcome.rework_s[0] == pytest.approx(220)


def test_the_same_hosts_fail_at_the_same_times_whatever_the_policy() -> None:
    failures = Failures(mean_between_s=3600.0)
    first, second = (FailureTimes(failures, 4, seed=5) for _ in range(2))
    draws = [[times.next_s(host) for host in order] for times, order in ((first, [0, 1]), (second, [1, 0]))]
    assert draws[0] == draws[1][::-1]
    assert FailureTimes(failures, 4, seed=6).next_s(0) != draws[0][0]


# --- Promises ---------------------------------------------------------------------------------------

ROWS = st.lists(
    st.builds(
        JobRow,
        submit_s=st.sampled_from([0.0, 0.0, 1.0, 7.5, 30.0, 100.0, 1000.0]),
        duration_s=st.one_of(st.sampled_from([0.0004, 1.0, 60.0]), st.floats(0.01, 5000.0)),
        gpus=st.sampled_from([1, 1, 1, 2, 3, 4]),
        load_s=st.sampled_from([0.0, 1.0, 30.0, 200.0]),
        pause_s=st.sampled_from([0.0, 2.0, 40.0]),
        model=st.sampled_from(["", "resnet50", "lstm:5", "a3c", "nobody knows it"]),
        hp=st.sampled_from([False, False, False, True]),
        expected_s=st.none(),
    ),
    min_size=1,
    max_size=12,
)


def spread(rows: list[JobRow]) -> list[JobRow]:
    """Drawn submit times are times between arrivals."""
    at_s = np.cumsum([0.0, *(row.submit_s for row in rows[1:])])
    return [row._replace(submit_s=float(when)) for row, when in zip(rows, at_s, strict=True)]


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=15)
@given(rows=ROWS, mean_between_s=st.sampled_from([None, None, 400.0, 3000.0]), seed=st.integers(0, 9))
def test_every_job_ends_and_all_accounts_agree(
    policy: str, rows: list[JobRow], mean_between_s: float | None, seed: int
) -> None:
    """What must agree is asserted inside: times, work, devices, and the engine's invariants."""
    failures = None if mean_between_s is None else Failures(mean_between_s=mean_between_s, repair_s=100.0)
    physics = Physics(kill_s=1.0 if seed % 2 else 0.0)
    # A short period: under frequent failures a job without a checkpoint would not come to an end.
    outcome = simulate(
        workload(*spread(rows)),
        cluster(2, 2),
        policy,
        seed=seed,
        failures=failures,
        physics=physics,
        checkpoint_every_s=50.0,
        validate=True,
    )
    assert outcome.finished.all()
    assert np.all(outcome.jct_s >= outcome.wait_s)
    if failures is None:
        assert np.all(outcome.rework_s == 0.0)


class Expecting(Ordered):
    """Passes another policy's answers on, and compares what was expected with what came."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.name = policy, policy.name
        self.ends_s: dict[str, float] = {}
        self.resumed = 0

    def queue_key(self, job: Any) -> tuple[float, ...]:
        return self.policy.queue_key(job)

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        if isinstance(event, ev.FirstStepDone):
            job = view.jobs[event.job_id]
            left_s = job.remaining_now_s(view.now_s)
            assert left_s is not None
            self.ends_s[job.job_id] = view.now_s + left_s
            self.resumed += job.attempt.number > 1
        if isinstance(event, ev.AttemptEnded) and view.jobs[event.job_id].phase is Phase.DONE:
            expected_s = self.ends_s[event.job_id]
            assert view.now_s == pytest.approx(expected_s, abs=0.001, rel=1e-9), event
        return self.policy.decide(view, event)

    def observe(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        self.policy.observe(view, event, decision)


@settings(max_examples=40)
@given(rows=ROWS, failing=st.booleans(), seed=st.integers(0, 9))
def test_what_the_engine_believes_is_left_is_what_is_left(
    rows: list[JobRow], failing: bool, seed: int
) -> None:
    """After any number of preemptions and lost hosts, if the estimates are true: to one step."""
    made: list[Expecting] = []

    def make(name: str, parameters: Parameters) -> Expecting:
        made.append(Expecting(registry.make(name, parameters)))
        return made[-1]

    simulate(
        workload(*spread(rows)),
        cluster(2, 2),
        "srtf",
        seed=seed,
        failures=Failures(mean_between_s=1000.0, repair_s=100.0) if failing else None,
        checkpoint_every_s=50.0,
        make_policy=make,
    )
    assert made[0].ends_s


@pytest.mark.parametrize("policy", ["srtf", "castor"])
def test_obeying_every_command_twice_changes_nothing(policy: str) -> None:
    jobs = workload(*busy_rows(60))
    failures = Failures(mean_between_s=5000.0)
    once = comparable(simulate(jobs, cluster(2, 2), policy, failures=failures))

    class Twice(World):
        def obey(self, commands: Any) -> None:
            super().obey(commands)
            super().obey(commands)

    again = simulate(jobs, cluster(2, 2), policy, failures=failures, make_world=Twice)
    assert comparable(again) == once


def busy_rows(jobs: int) -> Iterator[JobRow]:
    chance = np.random.default_rng(3)
    for number in range(jobs):
        yield JobRow(
            submit_s=40.0 * number,
            duration_s=float(chance.exponential(300.0)) + 1.0,
            gpus=int(chance.choice([1, 1, 2, 4])),
            model=str(chance.choice(["resnet50", "lstm", "transformer"])),
        )


PROGRAM = """
import hashlib
from cotenant.controller.sim.world.physics import Failures
from cotenant.controller.sim.simulate import simulate
from tests.controller.sim.test_simulate import busy_rows, comparable
from tests.controller.sim.workloads import cluster, workload
for policy in ("srtf", "castor", "patient"):
    failures = Failures(mean_between_s=9e3)
    print(comparable(simulate(workload(*busy_rows(80)), cluster(2, 2), policy, seed=4, failures=failures)))
"""


def test_one_seed_gives_one_result_in_every_process() -> None:
    said = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=os.fspath(pytest.importorskip("tests.controller.sim.workloads").__file__).rpartition(
                "/tests/"
            )[0],
            capture_output=True,
            text=True,
            check=True,
            timeout=within_s(60),
        )
        said.append(done.stdout)
    assert said[0] == said[1]
    assert said[0].count('"rework_s"') == 3


# --- Interruption, thinking --------------------------------------------------------------------------


def test_an_interrupted_run_gives_what_there_is() -> None:
    calls: list[tuple[int, int, float]] = []

    def watch(finished: int, total: int, now_s: float) -> None:
        calls.append((finished, total, now_s))
        if len(calls) == 2:
            raise KeyboardInterrupt

    rows = [JobRow(100.0 * number, 10.0) for number in range(2000)]
    outcome = simulate(workload(*rows), cluster(1), "fifo", watch=watch)
    finished, total, now_s = calls[-1]
    assert outcome.interrupted
    assert total == 2000
    assert 0 < finished == outcome.finished.sum() < 2000
    assert outcome.makespan_s == now_s
    assert np.array_equal(np.isnan(outcome.jct_s), ~outcome.finished)
    json.dumps(summarise(outcome), allow_nan=False)


class Thinker(Ordered):
    """Asks for a mean when a job arrives; remembers the answers."""

    def __init__(self, payload: dict[str, Any]) -> None:
        super().__init__("thinker", lambda job: (), OrderParameters())
        self.payload = payload
        self.answers: list[tuple[float, ev.Computed]] = []

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        placed = super().decide(view, event)
        if not isinstance(event, ev.JobArrived):
            return placed
        ask = Compute(reason=because("submitted", "a test"), request_id=7, kind="mean", payload=self.payload)
        return Decision(actions=(*placed.actions, ask))

    def observe(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        if isinstance(event, ev.Computed):
            self.answers.append((view.now_s, event))


@pytest.mark.parametrize(
    ("payload", "values", "error"),
    [({"values": [1.0, 3.0]}, (2.0,), ""), ({}, (), "ValueError: `values` must be a list of numbers")],
)
def test_a_computation_is_answered_inline_after_a_fixed_time(
    payload: dict[str, Any], values: tuple[float, ...], error: str
) -> None:
    thinker = Thinker(payload)
    outcome = simulate(
        workload(JobRow(0, 50)),
        cluster(1),
        "thinker",
        physics=Physics(charge_s=2.5),
        compute=compute,
        make_policy=lambda name, parameters: thinker,
    )
    ((at_s, answer),) = thinker.answers
    assert (at_s, answer.request_id, answer.values, answer.error) == (2.5, 7, values, error)
    assert outcome.thinking_s > 0.0


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="no policy 'nonsense'"):
        simulate(workload(JobRow(0, 1)), cluster(1), "nonsense")


def test_parameters_reach_the_policy() -> None:
    with pytest.raises(ValueError, match="has no parameter"):
        simulate(workload(JobRow(0, 1)), cluster(1), "castor", {"nonsense": 1})


@pytest.fixture
def pairs(tmp_path: Any) -> str:
    path = tmp_path / "pairs.csv"
    path.write_text("model1,batch1,model2,batch2,xi1,xi2\na,,b,,1.5,2.0\na,,a,,1.2,1.2\n")
    return str(path)


@pytest.fixture
def bad_pairs(tmp_path: Any) -> str:
    path = tmp_path / "pairs.csv"
    path.write_text("model1,batch1,model2,batch2,xi1,xi2\na,,b,,10,10\n")
    return str(path)


def test_a_workload_is_not_changed_by_a_run() -> None:
    jobs: Workload = workload(*busy_rows(20))
    before = jobs.duration_s.copy()
    simulate(jobs, cluster(2, 2), "srtf")
    assert np.array_equal(before, jobs.duration_s)
