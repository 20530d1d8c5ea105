"""Two halves of one CPU slot run at the same time, each on cores of its own, and both end exactly."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from cotenant.controller.domain import JobId, Phase
from cotenant.controller.wire import clients as wire
from tests.live.cluster import SMALL, Cluster, References, Training

HALF = {"gpu_fraction": 0.5}
HALVES = tuple(
    Training(name=name, script=SMALL, steps=12, gate_at=6, more=HALF) for name in ("left", "right")
)
THIRD = Training(name="third", script=SMALL, steps=4, more=HALF)
WHOLE = Training(name="whole", script=SMALL, steps=4)


def cores_of(cluster: Cluster, job_id: JobId) -> set[int]:
    """On which the job's only rank may run, as the kernel says."""
    (_, pid) = cluster.starts(job_id)[0][-1]
    return os.sched_getaffinity(pid)


def jobs_on_slots(cluster: Cluster) -> list[tuple[Sequence[JobId], Sequence[float]]]:
    nodes = cluster.client.ask(wire.ListNodes()).nodes
    return [(device.jobs, device.parts) for node in nodes for device in node.devices]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a slot of one core cannot be divided")
def test_two_halves_of_a_slot_train_at_once_and_exactly(cluster: Cluster, references: References) -> None:
    cluster.add_controller("policy.name=fifo").start()
    cluster.add_agent("a", "agent.devices=cpu:1", "agent.heartbeat_s=0.3").start()
    left, right = (cluster.submit(half) for half in HALVES)
    jobs = cluster.until(lambda jobs: all(cluster.is_at_gate(jobs[each]) for each in (left, right)))
    assert jobs[left].devices == jobs[right].devices == ("a/cpu0",)
    assert (jobs[left].gpus, jobs[left].gpu_fraction, jobs[left].co_tenants) == (1, 0.5, ())
    assert jobs_on_slots(cluster) == [((left, right), (0.5, 0.5))]
    mine, theirs = cores_of(cluster, left), cores_of(cluster, right)
    assert mine.isdisjoint(theirs), (mine, theirs)

    # Nobody gets a third half, or the whole slot, before enough of it is free.
    third, whole = cluster.submit(THIRD), cluster.submit(WHOLE)
    told = cluster.client.ask(wire.Explain(job_id=third)).explanation.lines
    assert any("a/cpu0 has 0.00 left of itself; the part that is asked for is 0.50" in line for line in told)
    cluster.open_gate(left)
    cluster.until(lambda jobs: jobs[third].phase is Phase.DONE)
    assert cluster.look()[whole].phase is Phase.QUEUED
    cluster.open_gate(right)
    cluster.until(lambda jobs: all(jobs[each].phase is Phase.DONE for each in (right, whole)))
    for job_id, training in ((left, HALVES[0]), (right, HALVES[1]), (third, THIRD), (whole, WHOLE)):
        shown = cluster.check_history(job_id)
        assert cluster.sha256(job_id) == references.sha256(training, shown.attempts), "bit for bit"
    cluster.await_no_process()
