"""cotenant on a real cluster: who shares, who preempts, and the costs that each decision names.

The jobs are real trainings of the demo. What they should take is said: so it is certain what costs less.
"""

from __future__ import annotations

from typing import Any

from cotenant.controller.domain import JobId, Phase
from cotenant.controller.performance import Profile, ProfilePoint
from cotenant.controller.wire import clients as wire
from tests.live.cluster import Cluster, References, Training, is_past

KNOWN = Profile(
    points=(ProfilePoint(sub_batch=8, accumulation_steps=1, step_s=0.2, memory_mib=300.0),),
    duty_cycle=0.4,
)


def training(name: str, steps: int, expected_s: float, **fields: Any) -> Training:
    told = {"iterations": None, "expected_s": expected_s}
    return Training(name=name, script="compute_bound", steps=steps, more=told, **fields)


def reasons(cluster: Cluster, job_id: JobId) -> str:
    decisions = cluster.client.ask(wire.GetDecisions(job_id=job_id)).decisions
    return "\n".join(each.reason for each in decisions)


def test_each_takes_what_costs_least_and_says_what_the_rest_would_cost(
    cluster: Cluster, references: References
) -> None:
    cluster.add_controller("policy.name=cotenant").start()
    cluster.add_agent(
        "a", "agent.devices=cpu:1", "agent.slot_memory_mib=4000", "agent.heartbeat_s=0.3", "launch.warm=true"
    ).start()
    long = cluster.submit(training("long", 40, 900.0, gate_at=20, pace_s=0.1, profile=KNOWN))
    cluster.until(lambda jobs: is_past(jobs[long], 5))

    # Nothing is known of this one's memory, so it may share with nobody.
    unknown = cluster.submit(training("unknown", 12, 5.0))
    cluster.until(lambda jobs: jobs[unknown].phase is Phase.DONE)
    assert f"preempts {long}" in reasons(cluster, unknown)
    assert "sharing is not possible" in reasons(cluster, unknown)

    cluster.until(lambda jobs: jobs[long].phase is Phase.RUNNING and jobs[long].attempt == 2)
    known = cluster.submit(training("known", 12, 30.0, profile=KNOWN))
    cluster.until(lambda jobs: jobs[known].phase is Phase.DONE)
    (attempt,) = cluster.shown(known).attempts
    assert attempt.co_tenants == (long,)
    assert f"shares with {long}, which delays the jobs involved by " in reasons(cluster, known)
    assert ", preempting is not possible" in reasons(cluster, known), "it has just loaded"

    cluster.open_gate(long)
    cluster.until(lambda jobs: jobs[long].phase is Phase.DONE)
    for job_id in (long, unknown, known):
        shown = cluster.check_history(job_id)
        assert cluster.sha256(job_id) == references.sha256(cluster.trainings[job_id], shown.attempts)
