"""Hosts from a real Slurm of three nodes: asked for when a job waits, given back at their limit, when they
are idle, lost with a node, ended by `scancel`; they follow a controller that is a Slurm job itself. What
trained goes on exactly.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from math import ceil
from pathlib import Path

import msgspec
import pytest

from cotenant.agent.host.locks import LOCK_DIR_ENV
from cotenant.controller.client.connection import Client, Unreachable
from cotenant.controller.domain import AllocationTerms, JobId, Phase
from cotenant.controller.system import keys
from cotenant.controller.wire import clients as wire
from tests.building.limits import within_s
from tests.building.slurm import LocalSlurm, local_slurm
from tests.live.cluster import SMALL, Cluster, Daemon, References, Training, one_cluster, wait_for_exit
from tests.ports import block_of_ports, free_port

QUICK = {"load_s": 1.0, "pause_s": 1.0}
"""What a load and a save are said to take: the hosts here stay for seconds."""
STAYS_S = within_s(18.0)
"""How long the host with a limit takes work: its agent starts in this time, and a job loads and trains."""
LIMIT_S = 60.0 * ceil((STAYS_S + 30.0) / 60.0)
"""Slurm's own limits are minutes."""
SCRIPT = Path(__file__).parents[2] / "examples" / "deploy" / "slurm-controller.sh"


def training(name: str) -> Training:
    """All train the same, so that one undisturbed run is enough to compare them with."""
    return Training(name=name, script=SMALL, steps=120, pace_s=0.5, more=QUICK)


class Site:
    """A controller that asks a private Slurm for hosts."""

    def __init__(self, cluster: Cluster, slurm: LocalSlurm) -> None:
        self.cluster, self.slurm = cluster, slurm
        cluster.keys = cluster.folder / "keys"
        keys.init_cluster(cluster.keys)

    def daemon(self) -> Daemon:
        """A controller at an endpoint of its own; nobody has started it."""
        self.cluster.endpoint = f"tcp://127.0.0.1:{free_port()}"
        daemon = self.cluster.add_controller("controller.slurm_every_s=0.5", "checkpoint.every_s=1")
        daemon.env["SLURM_CONF"] = self.slurm.env["SLURM_CONF"]
        return daemon

    @property
    def client(self) -> Client:
        return self.cluster.client

    @property
    def before(self) -> str:
        """Nodes are one machine here: each has locks and ports of its own."""
        ports = {node: block_of_ports() for node in self.slurm.nodes}
        words = [f"export {LOCK_DIR_ENV}={self.cluster.folder}/locks-$SLURMD_NODENAME"]
        words += ["export COTENANT_LAUNCH__WARM=false"]
        words += [
            f"[ $SLURMD_NODENAME = {node} ] && export COTENANT_AGENT__PORT_FIRST={port}"
            for node, port in ports.items()
        ]
        return "; ".join(words)

    def add(self, name: str, **more: object) -> None:
        fields = {"max_hosts": 2, "idle_s": 2.0, "time_limit_s": 600.0, "grace_s": 60.0, **more}
        shape = {"devices": 1, "kind": "cpu", "cpus": 1}
        folder = str(self.cluster.folder / "shared" / name)
        fields |= {"name": name, "shape": shape, "before": self.before, "folder": folder}
        terms = msgspec.convert(fields, AllocationTerms)
        self.client.ask(wire.AddAllocations(terms=terms))

    def change(self, verb: str, name: str) -> None:
        self.client.ask(msgspec.convert({"verb": verb, "name": name}, wire.ChangeAllocations))

    def queues(self) -> dict[str, wire.AllocationQueueView]:
        return {queue.name: queue for queue in self.client.ask(wire.ListAllocations()).queues}

    def until_given_back(self, name: str) -> None:
        """Nothing of it is in Slurm, and nothing of it runs."""
        self.cluster.until(lambda _: not self.queues()[name].allocations)
        self.slurm.await_said("squeue", "-h", "-o", "%i", wanted="")
        self.cluster.await_no_process()

    def print_logs(self, *, asks: bool = True) -> None:
        """For a failing test. `asks`: also what the controller knows, which has to be there."""
        with suppress(Unreachable):
            print(self.log() if asks else "")
        print(self.slurm.said())
        for path in sorted((self.cluster.folder / "shared").glob("*/logs/*")):
            print(f"=== {path.name}\n{path.read_text(errors='replace')[-2000:]}")

    def log(self) -> str:
        return "\n".join(line.text for line in self.client.ask(wire.GetAllocationLog(limit=500)).lines)

    def await_controller(self, slurm_id: int, endpoints: dict[str, str]) -> str:
        """The node on which this Slurm job's controller answers from now on."""
        self.slurm.await_said("squeue", "-h", "-j", str(slurm_id), "-o", "%T", wanted="RUNNING")
        node = self.slurm.run("squeue", "-h", "-j", str(slurm_id), "-o", "%N")
        self.cluster.endpoint = endpoints[node]
        self.slurm.await_answer("cat", f"slurm-{slurm_id}.out", wanted=f"ready {endpoints[node]}")
        return node

    def node_of(self, job_id: JobId) -> tuple[str, str]:
        """The node that a job is on, and its Slurm job."""
        for queue in self.queues().values():
            for each in queue.allocations:
                if job_id in each.jobs and each.node and each.slurm_id:
                    return each.node, each.slurm_id
        raise AssertionError(f"job {job_id} is on no node: {self.queues()}")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSlurm]:
    settings = {"KillWait": "30"}  # So long has a controller for its end, as by default.
    with local_slurm(tmp_path_factory.mktemp("s"), nodes=3, cpus=1, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest, slurm: LocalSlurm, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    for cluster in one_cluster(tmp_path_factory.mktemp("t"), request.session):
        made = Site(cluster, slurm)
        made.daemon().start()
        yield made
        if request.session.testsfailed:
            made.print_logs()
        slurm.cancel_all()


@pytest.fixture
def moving(request: pytest.FixtureRequest, cluster: Cluster, slurm: LocalSlurm) -> Iterator[Site]:
    """Its controller is a Slurm job itself."""
    made = Site(cluster, slurm)
    yield made
    if request.session.testsfailed:
        made.print_logs(asks=False)  # Its controller ends with the test.
    slurm.cancel_all()


def trains(job: wire.JobView) -> bool:
    return job.phase is Phase.RUNNING and bool(job.resumable) and (job.step or 0) >= 3


def check_exact(site: Site, job_id: JobId, references: References) -> None:
    shown = site.cluster.check_history(job_id)
    trained = site.cluster.trainings[job_id]
    assert site.cluster.sha256(job_id) == references.sha256(trained, shown.attempts)


def test_at_its_limit_a_host_is_left_and_the_job_goes_on_exactly_on_the_next_one(
    site: Site, references: References
) -> None:
    """Also over a `kill -9` of the controller, which finds the allocation again and asks for no other."""
    site.add("limit", time_limit_s=LIMIT_S, grace_s=LIMIT_S - STAYS_S)
    site.cluster.until(lambda _: site.queues()["limit"].decided)
    assert "no job waits" in site.queues()["limit"].why
    job_id = site.cluster.submit(training("long"))
    site.cluster.until(lambda jobs: trains(jobs[job_id]))
    first = site.node_of(job_id)
    controller = site.cluster.controller
    assert controller is not None
    controller.kill()
    controller.start()
    site.cluster.until(lambda jobs: jobs[job_id].attempt >= 2)
    site.cluster.open_gate(job_id)
    site.cluster.until(lambda jobs: jobs[job_id].phase is Phase.DONE)
    assert first[1] not in {each.slurm_id for each in site.queues()["limit"].allocations}
    check_exact(site, job_id, references)
    attempts = site.cluster.shown(job_id).attempts
    for before, after in pairwise(attempts):
        assert after.start_step == before.end_step, "not a step was lost"
    site.until_given_back("limit")
    assert site.log().count("submitting") == len(attempts), "a host for each attempt, and no other"
    site.change("remove", "limit")
    site.cluster.until(lambda _: "limit" not in site.queues())


def test_with_a_node_only_what_was_not_saved_is_lost(site: Site, references: References) -> None:
    site.add("node")
    job_id = site.cluster.submit(training("hit"))
    site.cluster.until(lambda jobs: trains(jobs[job_id]) and bool(jobs[job_id].durable_step))
    node, slurm_id = site.node_of(job_id)
    site.slurm.kill_node(node)
    kill_all_of(site, slurm_id)
    site.slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=killed")
    site.cluster.until(lambda jobs: jobs[job_id].attempt >= 2 and trains(jobs[job_id]))
    assert site.node_of(job_id)[0] != node
    site.cluster.open_gate(job_id)
    site.cluster.until(lambda jobs: jobs[job_id].phase is Phase.DONE)
    check_exact(site, job_id, references)
    site.slurm.start_node(node)
    site.slurm.resume_node(node)
    site.change("remove", "node")
    site.cluster.until(lambda _: "node" not in site.queues())


def test_scancel_of_everything_leaves_no_process_and_no_job_is_lost(
    site: Site, references: References
) -> None:
    site.add("cancel")
    job_id = site.cluster.submit(training("ended"))
    site.cluster.until(lambda jobs: trains(jobs[job_id]))
    site.change("pause", "cancel")
    site.slurm.run("scancel", "--user", str(os.getuid()))
    site.until_given_back("cancel")
    job = site.cluster.until(lambda jobs: jobs[job_id].phase in (Phase.QUEUED, Phase.BLOCKED))[job_id]
    assert job.attempt == 1
    assert "paused" in site.queues()["cancel"].why
    site.change("resume", "cancel")
    site.cluster.open_gate(job_id)
    site.cluster.until(lambda jobs: jobs[job_id].phase is Phase.DONE)
    check_exact(site, job_id, references)


def test_hosts_follow_a_controller_from_one_slurm_job_to_the_next(
    moving: Site, references: References
) -> None:
    """Each of its jobs submits the next one, which waits for its end. The node of the first goes into
    maintenance; the next one finds the state that it left, on another."""
    slurm, cluster = moving.slurm, moving.cluster
    environment, endpoints = controller_on_path(moving)
    first = int(slurm.run("sbatch", "--parsable", environment, str(SCRIPT)))
    left = moving.await_controller(first, endpoints)
    second = int(slurm.run("squeue", "-h", "-n", "cotenant-controller", "-t", "PENDING", "-o", "%i"))
    moving.add("follow", max_hosts=1)
    job_id = cluster.submit(training("followed"))
    cluster.until(lambda jobs: trains(jobs[job_id]))
    host = moving.node_of(job_id)
    shared = cluster.folder / "shared" / "follow"
    assert (shared / "endpoint").read_text().strip() == endpoints[left]
    assert {path.stat().st_mode & 0o777 for path in shared.glob("[!cl]*")} == {0o600}, "endpoint and key"

    slurm.run("scontrol", "update", f"NodeName={left}", "State=DRAIN", "Reason=maintenance")
    slurm.run("scancel", str(first))
    there = moving.await_controller(second, endpoints)
    assert there not in (left, host[0])
    before = cluster.look()[job_id].step or 0
    cluster.until(lambda jobs: (jobs[job_id].step or 0) > before + 3)
    assert (shared / "endpoint").read_text().strip() == endpoints[there]
    cluster.open_gate(job_id)
    cluster.until(lambda jobs: jobs[job_id].phase is Phase.DONE)
    assert len(cluster.shown(job_id).attempts) == 1 and moving.log().count("submitting") == 1
    check_exact(moving, job_id, references)
    slurm.resume_node(left)
    cluster.until(lambda _: not moving.queues()["follow"].allocations)
    slurm.cancel_all()
    cluster.await_no_process()


def controller_on_path(site: Site) -> tuple[str, dict[str, str]]:
    """What sbatch is told, so that `cotenant` in the script is this test's; and where it is on each node."""
    folder = site.cluster.folder / "bin"
    folder.mkdir()
    endpoints, lines = {}, ["#!/bin/sh", "case $SLURMD_NODENAME in"]
    for node in site.slurm.nodes:
        daemon = site.daemon()
        endpoints[node] = site.cluster.endpoint
        told = (f"{key}={value}" for key, value in daemon.env.items() if key.startswith("COTENANT_"))
        words = shlex.join(["exec", "env", *told, *daemon.words])
        lines.append(f'{node}) {words} --state-dir "$5" ;;')
    site.cluster.controller = None
    (folder / "cotenant").write_text("\n".join([*lines, "esac", ""]))
    (folder / "cotenant").chmod(0o755)
    return f"--export=ALL,HOME={site.cluster.folder},PATH={folder}:{os.environ['PATH']}", endpoints


def kill_all_of(site: Site, slurm_id: str) -> None:
    """Everything of one Slurm job at once, as when its node goes off: nobody can say anything any more."""
    marks = (f"SLURM_JOB_ID={slurm_id}\0".encode(), f"SLURM_JOBID={slurm_id}\0".encode())
    for pid in site.cluster.processes():
        environ = Path(f"/proc/{pid}/environ")
        try:
            mine = any(mark in environ.read_bytes() for mark in marks)
        except OSError:
            continue
        if mine:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_for_exit(pid, 10.0)
