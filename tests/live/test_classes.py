"""Classes on a real cluster: for an hp job the cheapest spot job saves, gives way, and resumes exactly."""

from __future__ import annotations

from cotenant.controller.domain import JobId, Phase
from cotenant.controller.wire import clients as wire
from tests.live.cluster import SMALL, Cluster, References, Training

HP = {"job_class": "hp", "iterations": None, "expected_s": 20.0}
NARROW = Training(name="narrow", script=SMALL, steps=300, pace_s=0.8)
WIDE = Training(name="wide", script=SMALL, steps=300, pace_s=0.8, workers=2)
URGENT = Training(name="urgent", script=SMALL, steps=12, gate_at=6, more=HP)
LATE = Training(name="late", script=SMALL, steps=8)


def trains(job: wire.JobView) -> bool:
    """It has something to lose, and can save it."""
    return job.phase is Phase.RUNNING and bool(job.resumable) and (job.step or 0) >= 3


def lines(cluster: Cluster, job_id: JobId) -> str:
    return " / ".join(cluster.client.ask(wire.Explain(job_id=job_id)).explanation.lines)


def test_the_cheapest_spot_job_saves_gives_way_and_resumes_exactly(
    cluster: Cluster, references: References
) -> None:
    """Three slots: one spot job on one, another, a gang of two ranks, on the others."""
    controller = cluster.add_controller("policy.name=gfs")
    controller.start()
    cluster.add_agent("a", "agent.devices=cpu:3", "agent.heartbeat_s=0.3").start()
    wide = cluster.submit(WIDE)
    cluster.until(lambda jobs: trains(jobs[wide]))
    narrow = cluster.submit(NARROW)
    cluster.until(lambda jobs: trains(jobs[narrow]))

    urgent = cluster.submit(URGENT)
    jobs = cluster.until(lambda jobs: cluster.is_at_gate(jobs[urgent]))
    assert (jobs[narrow].phase, jobs[wide].phase) == (Phase.QUEUED, Phase.RUNNING)
    assert jobs[narrow].preemptions == 1 and jobs[urgent].preemptions == 0
    first = cluster.shown(narrow).attempts[0]
    assert first.outcome == "preempted" and f"gave way to job {urgent} of class hp" in first.reason, (
        first.reason
    )
    assert first.end_step and "no checkpoint was made" not in first.reason
    placed = f"class hp: makes 1 spot job leave, which costs least: {narrow}, with "
    assert placed in lines(cluster, urgent), lines(cluster, urgent)

    # A spot job that waits is told which numbers keep devices from it; so is whoever asks for the policy.
    late = cluster.submit(LATE)
    told = lines(cluster, late)
    assert "their quota is " in told and "left by the demand forecast for class hp in 1 h" in told, told
    classes = cluster.client.ask(wire.GetPolicy(offers=False)).current.classes
    assert classes is not None and classes.evicted == 1
    (pool,) = classes.pools
    assert (pool.capacity, pool.hp_placed, pool.spot_may_take) == (3, 1, 0)

    for job_id in (urgent, narrow, wide):
        cluster.open_gate(job_id)
    cluster.until(lambda jobs: all(jobs[each].phase is Phase.DONE for each in (urgent, narrow, wide, late)))
    for job_id, training in ((narrow, NARROW), (wide, WIDE)):
        shown = cluster.check_history(job_id)
        assert cluster.sha256(job_id) == references.sha256(training, shown.attempts), "bit for bit"
    assert cluster.shown(narrow).job.attempt == 2 and cluster.shown(wide).job.attempt == 1
    cluster.await_no_process()
