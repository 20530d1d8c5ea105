"""EASY backfilling: who may pass the head, and that nobody delays it."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import Decision, JobId, Place
from cotenant.controller.domain import events as ev
from cotenant.controller.planning import Plan, View, is_possible
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters, Policy
from cotenant.controller.policies.toolkit import reserve
from cotenant.controller.sim import RunResult, simulate
from tests.controller.building import Desk, report
from tests.controller.sim.workloads import JobRow, cluster, workload

NEAR_S = 0.01
"""Steps of 1 ms in the world's accounts."""


def desk(*devices: int) -> Desk:
    hosts = [report(name, count) for name, count in zip("abc", devices, strict=False)]
    at = Desk("fifo", *hosts, ageing_s=0.0)
    at.tell(ev.PolicyChanged(name="fifo", parameters={"backfill": "easy"}))
    return at


def job(at: Desk, number: int, gpus: int, expected_s: float | None = None) -> str:
    at.submit(number, gpus=gpus, expected_s=expected_s, load_s=10.0)
    return at.phase(number)


def test_a_job_that_ends_before_the_head_can_start_passes_it() -> None:
    at = desk(2)
    at.run(1, expected_s=1000.0, load_s=10.0)
    assert job(at, 2, gpus=2, expected_s=50.0) == "queued"
    assert job(at, 3, gpus=1, expected_s=2000.0) == "queued", "it would end after the head could start"
    assert job(at, 4, gpus=1, expected_s=900.0) == "loading"
    assert "ahead of job 2, the first in fifo order: it is expected to end before" in at.why(4)
    assert at.why(3) == "behind job 2 in fifo order; it needs 1 device, and 0 are free"


def test_the_load_counts() -> None:
    at = desk(2)
    at.run(1, expected_s=1000.0, load_s=10.0)
    job(at, 2, gpus=2, expected_s=50.0)
    assert job(at, 3, gpus=1, expected_s=995.0) == "queued"


def test_a_long_job_passes_on_devices_that_the_head_does_not_need() -> None:
    at = desk(2, 2)
    at.run(1, gpus=1, expected_s=1000.0, load_s=10.0)
    at.run(2, gpus=2, expected_s=100.0, load_s=10.0)
    job(at, 3, gpus=2, expected_s=50.0)
    assert job(at, 4, gpus=1, expected_s=1e6) == "loading", "the head will be where job 2 is"
    assert "on devices that job 3 does not need" in at.why(4)


def test_a_job_of_unknown_length_is_expected_to_need_as_much_as_it_has_had() -> None:
    at = desk(2)
    at.run(1)  # Nothing is said of its length: five minutes.
    job(at, 2, gpus=2, expected_s=50.0)
    assert job(at, 3, gpus=1, expected_s=295.0) == "queued"
    assert job(at, 4, gpus=1) == "queued"
    assert job(at, 5, gpus=1, expected_s=1.0) == "loading"
    at.end(5)
    at.wait(500.0)
    assert (at.phase(3), at.phase(4)) == ("loading", "queued"), "job 1 has had 450 s"


def test_a_job_past_its_estimate_counts_as_ending_now() -> None:
    at = desk(2)
    at.run(1, expected_s=100.0, load_s=10.0)
    at.wait(5000.0)
    job(at, 2, gpus=2, expected_s=50.0)
    assert job(at, 3, gpus=1, expected_s=20.0) == "queued"


def test_a_head_that_can_never_fit_is_no_head() -> None:
    at = desk(2)
    at.run(1, expected_s=100.0)
    assert job(at, 2, gpus=16, expected_s=50.0) == "queued"
    assert job(at, 3, gpus=1, expected_s=1e6) == "loading"


class Watching:
    """A policy with its forecasts of the head's start, made at each decision with what follows it."""

    def __init__(self, inner: Policy, forecasts: dict[JobId, float]) -> None:
        self._inner, self.forecasts = inner, forecasts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        decision = self._inner.decide(view, event)
        plan = Plan(view)
        for action in decision.actions:
            if isinstance(action, Place):
                plan.place(view.jobs[action.job_id], action.devices, action.reason)
        waiting = (job for job in view.queue.jobs_in_order() if not plan.is_placed(job.job_id))
        head = next((job for job in waiting if is_possible(view, job)), None)
        if head is not None and (found := reserve(plan, head)) is not None:
            self.forecasts[head.job_id] = min(found.start_s, self.forecasts.get(head.job_id, found.start_s))
        return decision


def world(
    seed: int, backfill: str, *, error: float, forecasts: dict[JobId, float] | None = None
) -> RunResult:
    """Forty random jobs on three hosts of four under fifo."""
    chance = random.Random(seed)
    rows, at_s = [], 0.0
    for _ in range(40):
        duration_s = float(round(10 ** chance.uniform(1.0, 3.5)))
        told_s = duration_s * (10 ** chance.uniform(-error, error))
        gpus = chance.choices((1, 2, 3, 4, 8), (8, 4, 1, 3, 1))[0]
        rows.append(JobRow(at_s, duration_s, gpus, load_s=float(chance.randint(0, 60)), expected_s=told_s))
        at_s += float(chance.randint(0, 200))

    def make(name: str, parameters: Parameters) -> Any:
        made = registry.make(name, parameters)
        return made if forecasts is None else Watching(made, forecasts)

    return simulate(workload(*rows), cluster(3, 4), "fifo", {"backfill": backfill}, make_policy=make)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=15)
def test_with_exact_estimates_the_head_starts_when_it_was_first_told_or_before(seed: int) -> None:
    forecasts: dict[JobId, float] = {}
    outcome = world(seed, "easy", error=0.0, forecasts=forecasts)
    assert outcome.finished.all()
    for job_id, start_s in forecasts.items():
        row = int(job_id)
        assert outcome.workload.submit_s[row] + outcome.wait_s[row] <= start_s + NEAR_S, job_id


@given(seed=st.integers(0, 2**32))
@settings(max_examples=15)
def test_the_first_head_starts_no_later_than_without_backfilling(seed: int) -> None:
    """Up to the first job that waits, both do the same."""
    without, with_it = (world(seed, backfill, error=0.0) for backfill in ("none", "easy"))
    late = without.wait_s > NEAR_S
    if late.any():
        head = int(late.argmax())
        assert with_it.wait_s[head] <= without.wait_s[head] + NEAR_S


@given(seed=st.integers(0, 2**32))
@settings(max_examples=10)
def test_with_wrong_estimates_every_job_still_ends(seed: int) -> None:
    assert world(seed, "easy", error=1.0).finished.all()


def test_backfilling_is_of_use() -> None:
    mean_s = {backfill: float(world(3, backfill, error=0.0).wait_s.mean()) for backfill in ("none", "easy")}
    assert mean_s["easy"] < 0.9 * mean_s["none"], mean_s
