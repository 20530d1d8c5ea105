"""The numbers of a run: their names, what they mean, and that none is ever made up."""

from __future__ import annotations

import json

import pytest

from cotenant.controller.sim.results.summary import summarise
from cotenant.controller.sim.simulate import simulate
from cotenant.controller.sim.world.physics import Physics
from tests.controller.sim.workloads import JobRow, cluster, workload

CONTRACT = {
    "policy", "jobs", "finished", "offered_load", "makespan_s", "jct_s", "wait_s", "load_s", "pause_s",
    "rework_s", "preemptions", "futile_preemptions", "aborted_preemptions", "futile_s", "gpu_busy_ratio",
    "sharing_benefit", "shared_jobs", "decision_ms", "events", "wall_s", "cpu_s", "hp", "spot",
    "allocation_ratio", "lost_gpu_s",
}  # fmt: skip


def test_a_run_has_every_number_of_the_contract() -> None:
    jobs = workload(JobRow(0, 1000), JobRow(10, 50, load_s=20), JobRow(20, 100, hp=True))
    summary = summarise(simulate(jobs, cluster(2), "srtf"))
    assert set(summary) >= CONTRACT
    for name in ("jct_s", "wait_s", "load_s", "run_s", "pause_s", "rework_s"):
        assert set(summary[name]) == {"mean", "p50", "p95", "p99"}
    assert set(summary["futile_s"]) == {"mean", "p50", "p95", "total_gpu_s"}
    assert (summary["jobs"], summary["hp"]["jobs"], summary["spot"]["jobs"]) == (3, 1, 2)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_futile_time_is_told_of_all_jobs_of_those_that_waited_and_of_those_hit() -> None:
    jobs = workload(JobRow(0, 1000, gpus=2), JobRow(10, 50, gpus=2, load_s=20), JobRow(5000, 10))
    summary = summarise(simulate(jobs, cluster(1, 2), "srtf"))
    assert summary["futile_preemptions"] == summary["preemptions"] == 1
    assert summary["futile_s"]["mean"] == pytest.approx(10 / 3)
    assert summary["futile_s_waited"]["mean"] == summary["futile_s_hit"]["mean"] == pytest.approx(10)
    assert [summary[f"futile_s{of}"]["total_gpu_s"] for of in ("", "_waited", "_hit")] == [20.0] * 3
    assert summary["spot"] is None, "there are no classes"


def test_classes_are_told_apart_with_evictions_and_what_they_cost() -> None:
    jobs = workload(
        JobRow(0, 9000, gpus=2), JobRow(100, 400, gpus=2, load_s=20), JobRow(4500, 50, gpus=2, load_s=0),
        JobRow(6000, 10, gpus=1, hp=True, load_s=0),
    )  # fmt: skip
    outcome = simulate(jobs, cluster(1, 2), "srtf", physics=Physics(on_preempt="lose"))
    summary = summarise(outcome)
    spot = summary["spot"]
    assert spot["eviction_rate"] == pytest.approx(3 / 6), "three runs of six ended in a preemption"
    assert spot["broken_ratio"] == pytest.approx(2 / 6), "the first run had more than an hour"
    assert summary["lost_gpu_s"] == pytest.approx(2 * float(outcome.rework_s.sum()))
    assert 0.9 < summary["allocation_ratio"] <= 1.0
    assert summary["hp"]["wait_s"]["mean"] == pytest.approx(0.0)


def test_in_a_world_that_loses_nobody_saves_and_a_victim_begins_again() -> None:
    jobs = workload(JobRow(0, 1000, load_s=0, pause_s=8), JobRow(400, 50, load_s=0))
    lost = simulate(jobs, cluster(1), "srtf", physics=Physics(on_preempt="lose"), validate=True)
    saved = simulate(jobs, cluster(1), "srtf", validate=True)
    assert list(lost.jct_s) == pytest.approx([1000 + 400 + 50, 50])
    assert list(saved.jct_s) == pytest.approx([1000 + 50 + 8, 58])
    assert list(lost.rework_s) == pytest.approx([400, 0])


def test_how_busy_devices_were_counts_from_the_first_arrival_to_the_last_end() -> None:
    summary = summarise(simulate(workload(JobRow(0, 70), JobRow(50, 170)), cluster(1, 2), "fifo"))
    assert summary["makespan_s"] == pytest.approx(250)
    assert summary["gpu_busy_ratio"] == pytest.approx((100 + 200) / 500)
    assert summary["offered_load"] == pytest.approx((70 + 170) / (50 * 2))


def test_what_makes_no_sense_is_null() -> None:
    nothing = summarise(simulate(workload(), cluster(1), "fifo"))
    one = summarise(simulate(workload(JobRow(0, 10)), cluster(1), "fifo"))
    for name in ("jct_s", "futile_s", "offered_load", "gpu_busy_ratio", "decision_ms", "hp", "spot"):
        assert nothing[name] is None, name
    for name in ("futile_s_hit", "futile_s_waited", "offered_load", "sharing_benefit", "hp"):
        assert one[name] is None, name
    json.dumps([nothing, one], allow_nan=False)
