"""Whole workloads under each policy: everything ends, nobody starves, no device idles while a job fits."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.domain import Phase
from cotenant.controller.policies import registry
from tests.controller.building import engine, profile, report, spec
from tests.controller.driver import Driver, Truth

POLICIES = tuple(registry.ours_available())


def workload(driver: Driver, seed: int, jobs: int, *, load: float = 1.2) -> Driver:
    """Poisson arrivals at a load on the cluster's devices, lengths over two orders of magnitude."""
    chance = random.Random(seed)
    devices = len(driver.engine.ledger.devices)
    at_s = 0.0
    for number in range(1, jobs + 1):
        gpus = chance.choices((1, 2, 4), (6, 3, 1))[0]
        train_s = round(10 ** chance.uniform(1.0, 2.8))
        more: dict[str, Any] = {}
        if chance.random() < 0.7:
            memory = chance.choice((200.0, 450.0, 700.0))
            points = [(s, 1.0 + 0.02 * s, memory / s) for s in (1, 2, 8)]
            more = {"batch_size": 8, "profile": profile(8, *points, duty=chance.choice((0.3, 0.7, 1.0)))}
        expected_s = float(train_s) * chance.uniform(0.6, 1.6)
        job = spec(
            number, gpus=gpus, expected_s=expected_s, job_class=chance.choice(("spot", "spot", "hp")), **more
        )
        truth = Truth(train_s=train_s, load_s=chance.uniform(1, 20), save_s=chance.uniform(1, 10))
        driver.submit(job, truth, at_s)
        at_s += chance.expovariate(load * devices / (130.0 * 1.7))
    return driver


def driver(policy: str, **settings: Any) -> Driver:
    hosts = [report("a", 4, checkpoint_domain="nfs"), report("b", 4, checkpoint_domain="nfs"), report("c", 2)]
    return Driver(engine(policy, **settings), hosts)


@pytest.mark.parametrize("policy", POLICIES)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=3)
def test_every_job_ends_and_its_time_is_wait_load_run_and_pause(policy: str, seed: int) -> None:
    done = workload(driver(policy, ageing_s=2000.0), seed, 30).run()
    jobs = done.engine.jobs.values()
    assert {job.phase for job in jobs} == {Phase.DONE}
    for job in jobs:
        assert job.ended_s is not None
        spent_s = job.spent.wait_s + job.spent.load_s + job.spent.run_s + job.spent.pause_s
        assert spent_s == pytest.approx(job.ended_s - job.submitted_s, abs=1e-6)
        truth = done.truths[job.job_id]
        assert job.spent.run_s >= truth.train_s - 1.0 * (1 + job.counts.preemptions)
        assert job.spent.load_s >= truth.load_s - 1e-6
    assert done.runs == {}


def test_srtf_preempts_castor_shares_and_the_others_do_neither() -> None:
    counted = {}
    for policy in ("fifo", "sjf", "srtf", "castor"):
        done = workload(driver(policy), 7, 50).run()
        jobs = done.engine.jobs.values()
        counted[policy] = (sum(j.counts.preemptions for j in jobs) > 0, any(j.co_tenants for j in jobs))
    assert counted == {
        "fifo": (False, False),
        "sjf": (False, False),
        "srtf": (True, False),
        "castor": (False, True),
    }


def test_shorter_jobs_first_is_better_on_average_than_first_come_first_served() -> None:
    mean_s = {}
    for policy in ("fifo", "sjf", "srtf"):
        jobs = workload(driver(policy), 11, 60).run().engine.jobs.values()
        mean_s[policy] = sum((j.ended_s or 0.0) - j.submitted_s for j in jobs) / len(jobs)
    assert mean_s["sjf"] < mean_s["fifo"]
    assert mean_s["srtf"] < mean_s["fifo"]


def stream(policy: str, ageing_s: float) -> Driver:
    """One GPU each, and always one more waiting; among them a job that needs all four."""
    cluster = Driver(engine(policy, ageing_s=ageing_s), [report("a", 4)])
    for number in range(2, 150):
        cluster.submit(spec(number, expected_s=20.0), Truth(train_s=20.0, load_s=1.0), number * 5.0)
    cluster.submit(spec(1, gpus=4, expected_s=500.0), Truth(train_s=500.0), 12.0)
    return cluster


@pytest.mark.no_cover  # Thousands of decisions in lines that the runs above cover as well.
@pytest.mark.parametrize("policy", ["sjf", "srtf", "castor"])
def test_a_long_wide_job_does_not_starve_under_a_stream_of_short_ones(policy: str) -> None:
    ageing_s = 300.0
    cluster = stream(policy, ageing_s).run(until_s=3000.0)
    wide = cluster.engine.jobs[spec(1).job_id]
    assert wide.first_start_s is not None
    assert wide.first_start_s - wide.submitted_s < ageing_s + 60.0
    assert wide.phase is Phase.DONE
    assert wide.counts.preemptions == 0


def test_without_ageing_it_would() -> None:
    cluster = stream("sjf", 0.0).run(until_s=700.0)
    assert cluster.engine.jobs[spec(1).job_id].first_start_s is None


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_workload_is_the_same_run(policy: str) -> None:
    def ends() -> list[tuple[float | None, int, str]]:
        jobs = workload(driver(policy), 3, 30).run().engine.jobs.values()
        return [(job.ended_s, job.attempt.number, str(job.reason)) for job in jobs]

    assert ends() == ends()
