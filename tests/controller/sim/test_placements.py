"""What is drawn of a simulated run is what the run itself counted."""

from __future__ import annotations

import pytest

from cotenant.controller.sim.results.placements import Placements
from cotenant.controller.sim.simulate import simulate
from cotenant.controller.sim.world.physics import Failures, Physics
from cotenant.controller.timeline import Timeline
from tests.controller.sim.workloads import JobRow, cluster, workload

ROWS = (
    JobRow(0.0, 900.0, gpus=2, model="ResNet-18:64"),
    JobRow(100.0, 50.0, load_s=20.0, model="LM:20"),
    JobRow(120.0, 30.0, gpus=2),
    JobRow(125.0, 10.0, gpus=2),
    JobRow(600.0, 400.0, model="LM:20"),
)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "castor", "interval-60"])
@pytest.mark.parametrize("failures", [None, Failures(mean_between_s=300.0)])
def test_a_timeline_has_the_seconds_that_the_run_has(policy: str, failures: Failures | None) -> None:
    placements = Placements()
    jobs = workload(*ROWS)
    outcome = simulate(
        jobs, cluster(1, 2), policy, physics=Physics(), failures=failures, look=placements, validate=True
    )
    drawn = placements.timeline("by hand", policy)
    for row, gpus in enumerate(jobs.gpus):
        loads = seconds(drawn, str(row), "loading", "futile") / gpus
        assert loads == pytest.approx(outcome.load_s[row])
        assert seconds(drawn, str(row), "running") / gpus == pytest.approx(outcome.run_s[row])
        assert seconds(drawn, str(row), "checkpointing") / gpus == pytest.approx(outcome.pause_s[row])
        waited = sum(wait.end_s - wait.start_s for wait in drawn.waits if wait.job == str(row))
        assert waited == pytest.approx(outcome.wait_s[row], abs=0.5)
    futile = sum(seconds(drawn, str(row), "futile") / gpus for row, gpus in enumerate(jobs.gpus))
    assert failures is not None or futile == pytest.approx(outcome.futile_s.sum())
    assert [change.policy for change in drawn.policies] == [policy]


def seconds(drawn: Timeline, job: str, *phases: str) -> float:
    return sum(s.end_s - s.start_s for s in drawn.segments if s.job == job and s.phase in phases)


def test_it_keeps_so_many_attempts_and_says_so() -> None:
    placements = Placements(attempts_max=3)
    simulate(workload(*ROWS), cluster(1, 2), "fifo", look=placements)
    drawn = placements.timeline("by hand", "fifo", "simulated.")
    assert len(drawn.attempts) == 3
    assert drawn.subtitle == "simulated. The first 3 attempts."
