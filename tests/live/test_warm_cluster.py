"""Warm starts end to end: controller, agent, supervisors, and real training whose parameters are compared."""

from __future__ import annotations

from cotenant.controller.domain import JobId, Phase
from cotenant.controller.wire import clients as wire
from tests.live.cluster import SMALL, Cluster, References, Training, all_done


def launches(cluster: Cluster, job_id: JobId) -> list[tuple[str, str]]:
    return [(each.launch, each.launch_why) for each in cluster.shown(job_id).attempts]


def await_server(cluster: Cluster, host: str = "one") -> None:
    """Until the agent has said that a server is ready."""
    log = cluster.folder / f"agent-{host}.log"
    cluster.until(lambda _: "is ready" in log.read_text())


def test_a_second_job_of_its_kind_starts_warm(cluster: Cluster, references: References) -> None:
    cluster.add_controller("policy.name=fifo").start()
    cluster.add_agent("one", "agent.devices=cpu:2", "launch.warm=true", "launch.first_word_s=60").start()
    first = cluster.submit(Training(name="first", script=SMALL, steps=6, seed=3))
    cluster.until(lambda jobs: all_done(jobs, [first]))
    ((launch, why),) = launches(cluster, first)
    assert launch == "cold"
    assert "no server for its environment" in why
    await_server(cluster)

    again = Training(name="again", script=SMALL, steps=6, seed=3)
    wide = Training(name="wide", script=SMALL, steps=12, seed=4, workers=2, gate_at=3)
    same, gang = cluster.submit(again), cluster.submit(wide)
    jobs = cluster.until(lambda jobs: all_done(jobs, [same]) and cluster.trains_at_gate(jobs[gang]))
    assert launches(cluster, same) == launches(cluster, gang) == [("warm", "")]
    assert cluster.sha256(first) == cluster.sha256(same) == references.sha256(again)
    assert 0.0 < (jobs[gang].expected_load_s or 0.0) < jobs[first].load_s, "they are learned apart"

    cluster.agents["one"].kill()  # The ranks stay; the server goes with the agent.
    cluster.agents["one"].start()
    cluster.open_gate(gang)
    cluster.until(lambda jobs: all_done(jobs, [gang]))
    shown = cluster.check_history(gang)
    assert cluster.sha256(gang) == references.sha256(wide, shown.attempts)
    assert len(shown.attempts) == 1
    cluster.await_no_process()


def test_a_preempted_job_goes_on_warm_from_its_step(cluster: Cluster, references: References) -> None:
    cluster.add_controller("policy.name=fifo").start()
    cluster.add_agent("one", "agent.devices=cpu:1", "launch.warm=true", "launch.first_word_s=60").start()
    training = Training(name="long", script="language_model", steps=80, seed=5, gate_at=4, pace_s=0.2)
    job_id = cluster.submit(training)
    cluster.until(lambda jobs: cluster.trains_at_gate(jobs[job_id]))
    await_server(cluster)
    cluster.client.ask(wire.ChangeJobs(verb="preempt", job_ids=(job_id,)))
    cluster.until(lambda jobs: jobs[job_id].phase is Phase.CHECKPOINTING)
    cluster.open_gate(job_id, attempt=1)
    cluster.until(lambda jobs: jobs[job_id].attempt == 2 and cluster.trains_at_gate(jobs[job_id]))
    cluster.open_gate(job_id)
    cluster.until(lambda jobs: all_done(jobs, [job_id]))
    shown = cluster.check_history(job_id)
    assert [each.launch for each in shown.attempts] == ["cold", "warm"]
    assert shown.attempts[1].start_step >= 4
    assert cluster.sha256(job_id) == references.sha256(training, shown.attempts)
