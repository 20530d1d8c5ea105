"""Cores and main memory of hosts: who finds them, who waits for them, and what is said of that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from cotenant.controller.domain import (
    NOTHING,
    Decision,
    DeviceId,
    HostReport,
    Job,
    JobId,
    Place,
    Reason,
    Wake,
    because,
    render,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.state.ledger import Ledger
from cotenant.controller.engine.state.placing import exceeds_hosts
from cotenant.controller.planning import View, why_waiting
from cotenant.controller.policies.base import Stateless
from cotenant.controller.sim import Cluster, HostAsk, SimulatedHost, simulate
from tests.controller.building import Desk, report, spec
from tests.controller.sim.workloads import JobRow, workload


def big(name: str, devices: int, *, cpus: int = 8, memory_mib: int = 10_000, **more: Any) -> HostReport:
    return msgspec.structs.replace(report(name, devices, cpus=cpus, **more), memory_mib=memory_mib)


def test_a_job_goes_where_its_cores_are_left() -> None:
    at = Desk("fifo", big("a", 2), big("b", 4))
    at.submit(1, cpus=6)
    at.submit(2, cpus=6)
    at.submit(3, cpus=2)
    assert [at.devices(n) for n in (1, 2, 3)] == [("a/cpu0",), ("b/cpu0",), ("a/cpu1",)]


def test_a_job_goes_where_its_main_memory_is_left() -> None:
    at = Desk("fifo", big("a", 2), big("b", 4))
    at.submit(1, host_memory_mib=6_000)
    at.submit(2, host_memory_mib=6_000)
    assert [at.devices(n) for n in (1, 2)] == [("a/cpu0",), ("b/cpu0",)]


def test_who_asks_for_nothing_is_placed_as_ever() -> None:
    at = Desk("fifo", big("a", 2), big("b", 4))
    at.submit(1, cpus=8, host_memory_mib=10_000)
    at.submit(2)
    assert at.devices(2) == ("a/cpu1",)


def test_a_job_waits_until_the_cores_are_back_and_says_so() -> None:
    at = Desk("sjf", big("a", 4))
    at.run(1, cpus=6)
    at.submit(2, cpus=4, host_memory_mib=1_000)
    assert at.why(2) == (
        "needs 4 cores and 1000 MiB of main memory on each host; a has 3 free devices, and 2 cores and "
        "10000 MiB of main memory left"
    )
    at.submit(3, cpus=2)
    assert at.phase(3) == "loading", "sjf lets those pass that fit"
    at.end(1)
    assert at.phase(2) == "loading"


def test_a_leaving_job_keeps_its_cores_until_its_processes_are_gone() -> None:
    at = Desk("fifo", big("a", 4))
    at.run(1, cpus=6)
    at.tell(ev.CancelRequested(job_id=JobId("1"), by="ann"))
    at.submit(2, cpus=6)
    assert (at.phase(1), at.phase(2)) == ("stopping", "queued")
    at.end(1)
    assert at.phase(2) == "loading"


def test_a_gang_takes_them_on_each_of_its_hosts() -> None:
    at = Desk("fifo", big("a", 2), big("b", 2), big("c", 2))
    at.submit(1, cpus=6)
    at.submit(2, gpus=2, nodes=2, cpus=4)
    assert at.hosts(2) == ("b", "c")


def test_a_host_that_says_nothing_of_its_memory_limits_none() -> None:
    at = Desk("fifo", big("a", 2, memory_mib=0))
    at.submit(1, host_memory_mib=1 << 20)
    at.submit(2, host_memory_mib=1 << 20)
    assert (at.phase(1), at.phase(2)) == ("loading", "loading")


def test_a_victim_leaves_for_its_main_memory_alone() -> None:
    """Devices are free; what the newcomer lacks is what a longer job holds."""
    at = Desk("srtf", big("a", 4))
    at.run(1, host_memory_mib=8_000, expected_s=10_000.0)
    at.submit(2, host_memory_mib=8_000, expected_s=50.0)
    assert at.phase(1) == "checkpointing"
    at.end(1, "stopped")
    assert (at.phase(2), at.phase(1)) == ("loading", "queued")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"cpus": 9}, "needs 9 cores on one host; the largest host has 8"),
        (
            {"host_memory_mib": 10_001},
            "needs 10001 MiB of main memory on one host; the largest host has 10000 MiB",
        ),
        (
            {"cpus": 8, "host_memory_mib": 9_000},
            "needs 8 cores and 9000 MiB of main memory on one host, and no host has both",
        ),
        ({"cpus": 8, "gpus": 4}, "needs 4 devices; the largest possible placement here has 2"),
    ],
)
def test_what_never_fits_is_said_at_the_door(asked: dict[str, int], why: str) -> None:
    at = Desk("fifo", big("a", 2, memory_mib=8_000), big("b", 4, cpus=4, address="127.0.0.1"))
    reason = at.engine.never_fits(spec(1, **asked))
    assert reason is not None and render(reason) == why


class Careless(Stateless):
    """Puts each job on the device of its number, whatever the host has left, and wants to be asked again."""

    name = "careless"

    def queue_key(self, job: Job) -> tuple[float, ...]:
        return ()

    def decide(self, view: View, event: ev.AnyEvent) -> Decision:
        if not isinstance(event, ev.JobArrived):
            return NOTHING
        device = DeviceId(f"a/cpu{event.spec.job_id}")
        why = because("next-event")
        place = Place(job_id=event.spec.job_id, devices=(device,), reason=why)
        return Decision(actions=(place, Wake(at_s=view.now_s, reason=why)))

    def explain(self, view: View, job: Job) -> Reason:
        return why_waiting(view, job, self.name)


def test_the_engine_refuses_what_the_host_has_not_and_does_not_record_it() -> None:
    at = Desk("fifo", big("a", 4), make=lambda name, parameters: Careless())
    recorded = []
    for number in (0, 1):
        at.submit(number, cpus=6)
        recorded.append(sum(isinstance(each, Place) for each in at.engine.decision.actions))
    assert (recorded, at.phase(1)) == ([1, 0], "queued")
    assert [str(each) for each in at.engine.refusals] == [
        "job 1: a has 2 cores and 10000 MiB of main memory left"
    ]


def test_whoever_is_refused_everything_is_not_asked_again_at_once() -> None:
    """The answer would be the same for ever."""
    at = Desk("fifo", big("a", 4), make=lambda name, parameters: Careless())
    at.submit(0, cpus=6)
    assert at.engine.next_alarm_s == at.engine.now_s, "it got a device: others may get some now"
    at.wait(1.0)
    at.submit(1, cpus=6)
    assert at.engine.next_alarm_s != at.engine.now_s


@pytest.mark.parametrize("name", ["gfs", "gfs-rise", "yarn-cs", "fgd", "lyra"])
def test_an_hp_job_preempts_where_the_memory_it_needs_comes_free(name: str) -> None:
    """On host a a device is free, and nobody who could leave it has any memory to give."""
    hosts = [big("a", 2, checkpoint_domain="nfs"), big("b", 1, checkpoint_domain="nfs")]
    at = Desk(name, *hosts, ageing_s=0.0)
    at.submit(1, job_class="hp", host_memory_mib=8_000)
    at.submit(2, host_memory_mib=8_000, expected_s=9000.0)
    for number in (1, 2):
        at.start(number)
    assert (at.devices(1), at.devices(2)) in [(("b/cpu0",), ("a/cpu0",)), (("a/cpu0",), ("b/cpu0",))]
    at.submit(3, job_class="hp", host_memory_mib=8_000)
    at.wait(1.0)
    assert at.phase(2) == "checkpointing" and at.phase(1) == "running"
    at.durable(2, 5)
    at.end(2, "stopped", step=5)
    at.wait(1.0)
    assert at.phase(3) == "loading"


def test_a_promise_counts_on_memory_that_comes_free() -> None:
    at = Desk("fifo", big("a", 2))
    at.run(1, host_memory_mib=8_000, expected_s=100.0, load_s=10.0)
    found = at.engine.promises.offer([spec(2, host_memory_mib=8_000, expected_s=50.0, load_s=10.0)], at.now_s)
    assert isinstance(found, list) and found[0] >= at.now_s + 100.0 + 60.0


@pytest.mark.parametrize(("memory_mib", "waits_s"), [(400, 0.0), (600, 1030.0)])
def test_the_simulated_world_has_hosts_with_memory(memory_mib: int, waits_s: float) -> None:
    jobs = workload(JobRow(0.0, 1000.0), JobRow(0.0, 1000.0))
    asking = replace(jobs, asks=(HostAsk(main_memory_mib=memory_mib),) * 2)
    shape = SimulatedHost(gpus=2, gpu_type="gpu", cpus=8, main_memory_mib=1000)
    outcome = simulate(asking, Cluster(hosts=1, gpus_per_host=2, shapes=(shape,)), "fifo", validate=True)
    assert outcome.wait_s.tolist() == pytest.approx([0.0, waits_s], abs=0.1)


def test_backfilling_leaves_the_memory_that_the_head_needs() -> None:
    """Job 3 would outlast the head's start on a device that it does not need, with memory that it does."""
    at = Desk("fifo", big("a", 4), ageing_s=0.0)
    at.tell(ev.PolicyChanged(name="fifo", parameters={"backfill": "easy"}))
    at.run(1, gpus=2, host_memory_mib=2_000, expected_s=1000.0, load_s=10.0)
    at.submit(2, host_memory_mib=9_000, expected_s=50.0, load_s=10.0)
    at.submit(3, host_memory_mib=2_000, expected_s=1e6, load_s=10.0)
    assert (at.phase(2), at.phase(3)) == ("queued", "queued")
    at.submit(4, host_memory_mib=1_000, expected_s=1e6, load_s=10.0)
    assert at.phase(4) == "queued", "conservative: what job 1 holds counts for the head as well"
    at.submit(5, expected_s=1e6, load_s=10.0)
    assert at.phase(5) == "loading"


def test_a_job_that_leaves_counts_on_hosts_where_nobody_waits_for_it() -> None:
    """It leaves one host after the other, and the gang starts when its devices are free."""
    at = Desk("fifo", big("a", 1), big("b", 2))
    at.run(1, gpus=2, nodes=2, host_memory_mib=8_000)
    at.tell(ev.CancelRequested(job_id=JobId("1"), by="ann"))
    at.submit(2, gpus=2, nodes=2, host_memory_mib=8_000)
    ledger = at.engine.ledger
    assert isinstance(ledger, Ledger)
    for devices, refused in ((("a/cpu0", "b/cpu0"), False), (("a/cpu0", "b/cpu1"), True)):
        place = Place(job_id=JobId("2"), devices=tuple(map(DeviceId, devices)), reason=because("next-event"))
        assert (exceeds_hosts(ledger, place) is not None) == refused
