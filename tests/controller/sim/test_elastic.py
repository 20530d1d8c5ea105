"""The simulated world with elastic jobs: how fast they are on what they have, and what changes cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cotenant.controller.sim.simulate import simulate
from cotenant.controller.sim.world.physics import Failures
from cotenant.controller.sim.world.workload import Cluster
from tests.controller.sim.workloads import JobRow, workload

HALF_LINEAR = (1.0, 1.5, 2.0, 2.5)


def test_a_job_alone_has_all_devices_and_takes_what_its_curve_says() -> None:
    jobs = replace(workload(JobRow(0.0, 1000.0, 4)), speedups=(HALF_LINEAR,))
    outcome = simulate(jobs, Cluster(hosts=1, gpus_per_host=4), "max-min", validate=True)
    assert outcome.run_s[0] == pytest.approx(1000.0), "alone on all of them, as the workload says"


def test_resizes_are_charged_with_pauses_and_loads_and_the_accounts_agree() -> None:
    """`simulate` compares engine and world at each job's end; work is conserved whatever the sizes."""
    rows = [JobRow(100.0 * number, 4000.0, 4) for number in range(6)]
    jobs = replace(workload(*rows), speedups=(HALF_LINEAR,) * 6)
    cluster = Cluster(hosts=2, gpus_per_host=4)
    rigid = simulate(workload(*rows), cluster, "fifo")
    for policy in ("max-min", "afs-l"):
        outcome = simulate(jobs, cluster, policy, {"min_lease_s": 60.0}, validate=True)
        assert bool(np.all(outcome.finished)) and int(outcome.resizes.sum()) > 0, policy
        times = outcome.wait_s + outcome.load_s + outcome.run_s + outcome.pause_s
        assert np.allclose(times, outcome.jct_s)
        assert float(outcome.pause_s.sum()) >= float(jobs.pause_s[0]) * int(outcome.resizes.sum()) - 1e-6
        assert float(outcome.wait_s.mean()) < float(rigid.wait_s.mean()), "jobs share what there is"
    again = simulate(jobs, cluster, "max-min", {"min_lease_s": 60.0})
    once = simulate(jobs, cluster, "max-min", {"min_lease_s": 60.0})
    assert np.array_equal(again.jct_s, once.jct_s)


def test_hosts_that_fail_lose_no_elastic_job() -> None:
    jobs = replace(workload(*(JobRow(50.0 * n, 3000.0, 4) for n in range(8))), speedups=(HALF_LINEAR,) * 8)
    outcome = simulate(
        jobs, Cluster(hosts=3, gpus_per_host=4), "max-min", {"min_lease_s": 30.0}, seed=3,
        failures=Failures(mean_between_s=2500.0), validate=True,
    )  # fmt: skip
    assert bool(np.all(outcome.finished))
