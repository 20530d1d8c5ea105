"""A real DDP job on two CPU slots shrinks for another and grows again, and trains as if nothing had been."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cotenant.controller.domain import JobId, JobSpec, Launch, Phase
from cotenant.controller.wire import clients as wire
from tests.checkpoint.ranks import Warm, launch
from tests.live.cluster import EAGER, PATIENCE_S, Cluster, is_past

SCRIPT = Path(__file__).with_name("elastic_job.py")
STEPS = 100
ROWS = 4
RELATIVE = 1e-12
"""Of a loss in float64: the same numbers are added up, in another order on another number of ranks."""


def submit(cluster: Cluster, *argv: str, **fields: object) -> JobId:
    env = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "TMPDIR": str(cluster.folder / "tmp")}
    env["PYTHONPATH"] = EAGER
    spec = JobSpec(
        job_id=JobId("new-0"),
        launch=Launch(argv=argv, workdir=str(cluster.folder), env=env, uid=os.getuid(), gid=os.getgid()),
        **fields,  # type: ignore[arg-type]
    )
    return cluster.client.ask(wire.Submit(specs=(spec,))).job_ids[0]


def losses(folder: Path) -> dict[int, tuple[int, float]]:
    """By step: on how many ranks, and the loss of its whole batch."""
    lines = (line.split() for line in (folder / "losses").read_text().splitlines())
    return {int(step): (int(ranks), float.fromhex(loss)) for step, ranks, loss in lines}


def trains_on(job: wire.JobView, devices: int, resizes: int, step: int = 0) -> bool:
    return (
        job.phase is Phase.RUNNING
        and (job.gpus, job.resizes) == (devices, resizes)
        and is_past(job, job.durable_step + 5)
        and job.step >= step
    )


def test_a_job_shrinks_for_another_and_grows_again_with_the_losses_of_an_undisturbed_run(
    cluster: Cluster, warm: Warm, tmp_path: Path
) -> None:
    cluster.add_controller("policy.resize_lease_s=1").start()
    cluster.client.ask(wire.SetPolicy(name="max-min", parameters={"min_lease_s": 1.0, "lease_factor": 0.0}))
    cluster.add_agent("h1", "agent.devices=cpu:2").start()
    argv = (sys.executable, str(SCRIPT), str(cluster.folder), str(STEPS))
    job = submit(cluster, *argv, gpus_min=1, gpus_max=2, batch_size=ROWS, expected_s=1e5, name="elastic")
    cluster.until(lambda jobs: trains_on(jobs[job], 2, 0))

    waiter = submit(cluster, "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done", name="waiter")
    seen = cluster.until(lambda jobs: trains_on(jobs[job], 1, 1) and jobs[waiter].phase is Phase.RUNNING)
    assert "instead of 2, as is its part under max-min" in cluster.shown(job).attempts[0].reason
    (cluster.folder / "go").touch()
    cluster.until(lambda jobs: trains_on(jobs[job], 2, 2, seen[job].step))
    (cluster.folder / "hurry").touch()
    cluster.until(lambda jobs: jobs[job].phase is Phase.DONE)

    shown = cluster.shown(job)
    assert [(len(a.devices), a.accumulation_steps, a.outcome) for a in shown.attempts] == [
        (2, 1, "resized"), (1, 2, "resized"), (2, 1, "finished"),
    ]  # fmt: skip
    assert [a.exact for a in shown.attempts][1:] == [False, False], "another world size is equivalent"
    assert (shown.job.preemptions, shown.job.speedups_source) == (0, "seen")

    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "hurry").touch()
    launch(warm, SCRIPT, alone, str(alone), str(STEPS), ranks=2, env={}).wait(deadline_s=PATIENCE_S)
    resized, undisturbed = losses(cluster.folder), losses(alone)
    assert sorted(resized) == sorted(undisturbed) == list(range(STEPS))
    before = next(step for step in range(STEPS) if resized[step][0] == 1)
    assert {step: resized[step] for step in range(before)} == {s: undisturbed[s] for s in range(before)}
    for step in range(before, STEPS):
        assert resized[step][1] == pytest.approx(undisturbed[step][1], rel=RELATIVE), f"step {step}"
