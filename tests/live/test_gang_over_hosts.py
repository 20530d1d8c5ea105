"""Gangs over two hosts: they train, are preempted and resume to the last bit, and survive cut cables.

The hosts are two network namespaces; the controller listens on TCP with the keys that `cotenant init`
makes. A cut is noticed by nobody's result if it is short; after a long one the job goes on elsewhere, or
when the host is back, and never twice at once.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cotenant.controller.domain import WAITING, HostState, Phase
from cotenant.controller.system import keys
from cotenant.controller.wire import clients as wire
from tests.live.cluster import SMALL, Cluster, References, Training, all_done, one_cluster
from tests.live.network import GANG, HOSTS, UP, NoNetwork, TwoHosts

LONG_LEASE_S, SHORT_LEASE_S = 300.0, 10.0
SHORT_CUT_S = 3.0

PREEMPTED = Training(name="gang", script=SMALL, steps=220, workers=2, nodes=2, gate_at=30, pace_s=0.06)
PATIENT = replace(PREEMPTED, name="patient", gate_at=0, pace_s=0.1)
"""Has no gate: 22 s at this pace, so that a cable can be cut long before it is done."""

pytestmark = pytest.mark.root


class TwoHostCluster:
    def __init__(self, cluster: Cluster, network: TwoHosts) -> None:
        self.cluster, self.network = cluster, network
        cluster.endpoint = f"tcp://{network.controller_address}:{random.randrange(20_000, 30_000)}"
        cluster.keys = cluster.folder / "keys"
        keys.init_cluster(cluster.keys)
        self.start_controller(LONG_LEASE_S)
        cores = sorted(os.sched_getaffinity(0))
        half = max(1, len(cores) // 2)
        for host, mine in zip(HOSTS, (cores[:half], cores[-half:]), strict=True):
            self._start_agent(host, mine, keys.add_agent(cluster.keys, host).name)

    def start_controller(self, lease_s: float) -> None:
        self.cluster.add_controller(
            f"controller.lease_s={lease_s}",
            "controller.silent_after_s=3",
            "policy.back_off_s=0.5",
            "checkpoint.every_s=0.5",
        ).start()

    def _start_agent(self, host: str, cores: list[int], key: str) -> None:
        self.cluster.add_agent(
            host,
            "agent.devices=cpu:1",
            "agent.heartbeat_s=0.5",
            f"agent.keys_dir={self.cluster.folder / 'keys' / key}",
            f"agent.address={self.network.gang_address(host)}",
            f"agent.network={GANG}",
            f"checkpoint.root={self.cluster.folder / 'checkpoints'}",
            before=self.network.inside(host, cores),
        ).start()

    def shorten_lease(self) -> None:
        controller = self.cluster.controller
        assert controller is not None
        if f"controller.lease_s={SHORT_LEASE_S}" not in controller.words:
            controller.stop()
            self.start_controller(SHORT_LEASE_S)

    def state_of(self, host: str) -> HostState:
        nodes = self.cluster.client.ask(wire.ListNodes()).nodes
        return next(node.state for node in nodes if node.host == host)


@pytest.fixture(scope="module")
def network() -> Iterator[TwoHosts]:
    try:
        made = TwoHosts()
    except NoNetwork as reason:
        pytest.skip(str(reason))
    yield made
    made.close()


@pytest.fixture(scope="module")
def two(
    network: TwoHosts, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoHostCluster]:
    for cluster in one_cluster(tmp_path_factory.mktemp("two"), request.session):
        yield TwoHostCluster(cluster, network)


def host_of(job: wire.JobView) -> str:
    return job.devices[0].partition("/")[0]


def test_a_gang_over_two_hosts_resumes_exactly_and_a_short_cut_changes_nothing(
    two: TwoHostCluster, references: References
) -> None:
    cluster = two.cluster
    job = cluster.submit(PREEMPTED)
    jobs = cluster.until(lambda jobs: cluster.trains_at_gate(jobs[job]))
    assert jobs[job].devices == ("a/cpu0", "b/cpu0")

    # The agreement goes by way of the controller: the ranks are asked while none of them can go on.
    cluster.client.ask(wire.ChangeJobs(verb="preempt", job_ids=(job,)))
    cluster.until(lambda jobs: jobs[job].phase is Phase.CHECKPOINTING)
    cluster.open_gate(job, attempt=1)
    cluster.until(lambda jobs: jobs[job].attempt == 2 and cluster.trains_at_gate(jobs[job]))

    # Three seconds without the gang's cable and without the controller, in the middle of a step.
    two.network.cut("b", GANG, UP)
    cluster.open_gate(job)
    waited = cluster.client.ask(wire.WaitJobs(job_ids=(job,), timeout_s=SHORT_CUT_S))
    assert waited.jobs[0].phase is Phase.RUNNING, "a gang cannot train without its cable"
    two.network.heal()
    cluster.until(lambda jobs: all_done(jobs, [job]))

    shown = cluster.check_history(job)
    first, second = shown.attempts
    assert (first.outcome, second.outcome) == ("preempted", "finished")
    assert second.start_step == first.end_step > PREEMPTED.gate_at
    assert second.exact
    for host in HOSTS:
        stopped, finished = cluster.result(host, job, 1), cluster.result(host, job, 2)
        assert stopped is not None and (stopped.verdict.outcome, stopped.step) == ("stopped", first.end_step)
        assert finished is not None and finished.verdict.outcome == "finished"
    assert cluster.sha256(job) == references.sha256(PREEMPTED, shown.attempts)


def test_a_job_whose_host_is_cut_off_saves_stops_and_goes_on_elsewhere(
    two: TwoHostCluster, references: References
) -> None:
    two.shorten_lease()
    cluster = two.cluster
    # At this pace it is on no machine done before the lease is over, however late we cut the cable.
    training = Training(name="alone", script=SMALL, steps=400, pace_s=0.08)
    job = cluster.submit(training)
    jobs = cluster.until(lambda jobs: jobs[job].phase is Phase.RUNNING and jobs[job].durable_step > 0)
    lost = host_of(jobs[job])
    known_step = jobs[job].durable_step
    two.network.cut(lost, UP)
    jobs = cluster.until(lambda jobs: jobs[job].attempt == 2 and jobs[job].phase is Phase.RUNNING)
    assert host_of(jobs[job]) != lost
    result = cluster.result(lost, job, 1)
    assert result is not None, "its supervisor had ended it before the other host was allowed to start"
    assert result.verdict.outcome == "stopped"
    assert "the controller was out of reach" in result.verdict.detail
    two.network.heal()
    cluster.open_gate(job)
    cluster.until(lambda jobs: all_done(jobs, [job]))
    cluster.until(lambda _: two.state_of(lost) is HostState.OK)

    shown = cluster.check_history(job)
    assert [a.outcome for a in shown.attempts] == ["host-lost", "finished"]
    newest = max(durable.step for durable in result.status.durable)
    assert shown.attempts[1].start_step == newest > known_step, "it goes on from what was saved while cut off"
    assert cluster.sha256(job) == references.sha256(training, shown.attempts)


def test_a_gang_waits_for_its_lost_host_and_goes_on_when_it_is_back(
    two: TwoHostCluster, references: References
) -> None:
    two.shorten_lease()
    cluster = two.cluster
    job = cluster.submit(PATIENT)
    cluster.until(lambda jobs: jobs[job].phase is Phase.RUNNING and jobs[job].durable_step > 0)
    two.network.cut("b", GANG, UP)
    jobs = cluster.until(lambda jobs: jobs[job].phase in WAITING and two.state_of("b") is HostState.LOST)
    assert jobs[job].attempt == 1
    ended = [cluster.result(host, job, 1) for host in HOSTS]
    assert [result.verdict.outcome for result in ended if result is not None] == ["stopped", "stopped"]
    assert ended[1] is not None and "the controller was out of reach" in ended[1].verdict.detail
    two.network.heal()
    cluster.open_gate(job)
    cluster.until(lambda jobs: all_done(jobs, [job]))

    shown = cluster.check_history(job)
    assert [a.outcome for a in shown.attempts] == ["host-lost", "finished"]
    assert shown.attempts[1].start_step > 0
    assert cluster.sha256(job) == references.sha256(PATIENT, shown.attempts)
    cluster.await_no_process()
