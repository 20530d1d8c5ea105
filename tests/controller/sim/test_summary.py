"""The numbers of a run: their names, what they mean, and that none is ever made up."""

from __future__ import annotations

import json

import pytest

from cotenant.controller.sim.results.summary import summarise
from cotenant.controller.sim.simulate import simulate
from tests.controller.sim.workloads import JobRow, cluster, workload

CONTRACT = {
    "policy", "jobs", "finished", "offered_load", "makespan_s", "jct_s", "wait_s", "load_s", "pause_s",
    "rework_s", "preemptions", "futile_preemptions", "aborted_preemptions", "futile_s", "gpu_busy_ratio",
    "sharing_benefit", "shared_jobs", "decision_ms", "events", "wall_s", "cpu_s", "hp", "spot",
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
    assert summary["spot"]["eviction_rate"] == pytest.approx(1 / 4)


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
