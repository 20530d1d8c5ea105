"""Our policies' orders for Slurm's jobs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cotenant.controller.policies import registry
from cotenant.controller.slurm.steer.core.estimates import Estimate
from cotenant.controller.slurm.steer.core.ordering import ORDERS, order_queue
from cotenant.controller.slurm.steer.core.queue import QueueJob
from tests.controller.slurm.steer.building import job, node, queue

HOUR_S = 3600.0
JOBS = {
    "early and long": (job(1, cpus=1, submitted_s=100.0), 10 * HOUR_S),
    "wide and short": (job(2, cpus=8, submitted_s=200.0), 0.5 * HOUR_S),
    "narrow and middling": (job(3, cpus=1, submitted_s=300.0), 2 * HOUR_S),
    "late and unknown": (job(4, cpus=1, submitted_s=400.0), None),
}
WANTED = {
    "fifo": [1, 2, 3, 4],
    "sjf": [2, 3, 1, 4],
    "srtf": [2, 3, 1, 4],
    "ssf": [3, 2, 1, 4],
    "srsf": [3, 2, 1, 4],
}


def order_of(name: str, jobs: Sequence[tuple[QueueJob, float | None]], now_s: float = 1000.0) -> list[int]:
    waiting = [each for each, _ in jobs]
    estimates = {each.job_id: Estimate(seconds=seconds, why="") for each, seconds in jobs}
    found = order_queue(registry.make(name, {}), queue(*waiting, now_s=now_s), waiting, estimates)
    assert [each.rank for each in found.placed] == list(range(1, len(jobs) + 1))
    assert all(isinstance(found.tell(each.rank), str) for each in found.placed)
    return [each.job.job_id for each in found.placed]


@pytest.mark.parametrize("name", WANTED)
def test_the_order(name: str) -> None:
    assert order_of(name, list(JOBS.values())) == WANTED[name]


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_orders_each_job_once(name: str) -> None:
    jobs = [(job(n, cpus=1 + n % 8), 60.0 * (n * 37 % 100 + 1)) for n in range(1, 301)]
    assert sorted(order_of(name, jobs)) == list(range(1, 301))


def test_a_job_that_has_waited_long_comes_forward() -> None:
    jobs = [(job(1, submitted_s=0.0), 2 * HOUR_S), (job(2, submitted_s=99.9 * HOUR_S), HOUR_S)]
    assert order_of("sjf", jobs, now_s=100 * HOUR_S) == [2, 1]
    assert order_of("wfp3", jobs, now_s=100 * HOUR_S) == [1, 2]


def test_a_learned_order_says_why() -> None:
    waiting = [each for each, _ in JOBS.values()]
    estimates = {each.job_id: Estimate(seconds=seconds, why="") for each, seconds in JOBS.values()}
    nodes = (node(gpus=8, free_gpus=3),)
    for name, word in (("scorer", "rank 1"), ("rltune", "1")):
        found = order_queue(registry.make(name, {}), queue(*waiting, nodes=nodes), waiting, estimates)
        assert word in found.tell(1)


def test_a_clock_that_is_behind_slurms_changes_nothing() -> None:
    assert order_of("sjf", [(job(1, submitted_s=2000.0), 60.0)], now_s=1000.0) == [1]
