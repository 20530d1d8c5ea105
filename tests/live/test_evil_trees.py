"""Somebody's trees that were made to do harm, against a real agent: it survives them all, stays small, and
its host takes the next job, of theirs or of somebody else."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.controller.client.connection import Client
from cotenant.controller.domain import HostId, JobId, JobSpec, Launch, Phase
from cotenant.controller.system import paths
from cotenant.controller.system.keys import add_agent, add_user, init_cluster
from cotenant.controller.wire import clients as wire
from tests.building.evil_trees import EVIL, entry, make, of, padded
from tests.live.cluster import Cluster
from tests.live.person import PATIENCE_S, Person, at_home
from tests.ports import block_of_ports

PEAK_KIB_MAX = 300 * 1024
LINE_BYTES_MAX = 2048
OTHER = "nobody"


@pytest.fixture(autouse=True)
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a client looks for what it is to send."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return paths.packed_trees()


def peak_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def submit(client: Client, name: str, packed: Path, *argv: str) -> JobId:
    stream = EVIL[name].stream if name in EVIL else of(entry(b"good.txt", size=3), padded(b"hi\n"))
    launch = Launch(
        argv=argv or ("true",), workdir="/", snapshot=make(stream, packed), uid=os.getuid(), gid=os.getgid()
    )
    spec = JobSpec(job_id=JobId("new-0"), batch_size=1, launch=launch, retries=0)
    return client.ask(wire.Submit(specs=(spec,))).job_ids[0]


def test_the_agent_survives_all_of_them_and_the_next_job_starts(tmp_path: Path, packed: Path) -> None:
    with at_home(tmp_path / "home", agent__devices="cpu:2") as person:
        agent = agent_of(person)
        with Client(f"ipc://{person.socket}") as client:
            jobs = {name: submit(client, name, packed) for name in EVIL}
        for name, tree in EVIL.items():
            job = person.until_state(jobs[name], "failed" if tree.says else "done")
            assert tree.says in job["reason"] and len(job["reason"]) < 1000, (name, job["reason"])
        assert agent_of(person) == agent and peak_kib(agent[0]) < PEAK_KIB_MAX
        (node,) = person.json("nodes")["nodes"]
        assert node["state"] == "ok"
        person.until_state(person.submit("--", "true"), "done")
        lines = (person.home / "up.log").read_bytes().splitlines()
        assert max(map(len, lines), default=0) <= LINE_BYTES_MAX
        assert not list((person.agent_state / "trees" / "copies").glob(".unpacking-*"))


def agent_of(person: Person) -> tuple[int, str]:
    """Its pid, and when it was started."""
    assert person.process is not None
    children = Path(f"/proc/{person.process.pid}/task/{person.process.pid}/children").read_text().split()
    (pid,) = [each for each in children if b"cotenant.agent\0" in Path(f"/proc/{each}/cmdline").read_bytes()]
    return int(pid), Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


# --- Root's agent, another user's trees --------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("needs root: jobs of another user")
    folder = Path(tempfile.mkdtemp(prefix="et", dir="/tmp"))  # pytest's folders are closed to other users.
    folder.chmod(0o755)
    made = Cluster(folder)
    made.keys = folder / "keys"
    init_cluster(made.keys)
    add_agent(made.keys, "h1")
    made.endpoint = f"tcp://127.0.0.1:{block_of_ports()}"
    try:
        made.add_controller("policy.name=fifo").start()
        made.add_agent("h1", "agent.devices=cpu:2", f"agent.keys_dir={made.keys}").start()
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


def await_end(client: Client, job_id: JobId) -> wire.Shown:
    deadline_s = time.monotonic() + PATIENCE_S
    while (shown := client.ask(wire.ShowJob(job_id=job_id))).job.phase not in (Phase.DONE, Phase.FAILED):
        assert time.monotonic() < deadline_s, (shown.job.phase, shown.job.reason)
        client.ask(wire.WaitJobs(job_ids=(job_id,), timeout_s=1.0), timeout_s=PATIENCE_S)
    return shown


def test_what_is_unpacked_by_roots_agent_is_its_users(cluster: Cluster, packed: Path) -> None:
    agent = cluster.agents[HostId("h1")].pid
    assert cluster.keys is not None
    with Client(cluster.endpoint, add_user(cluster.keys, OTHER), timeout_s=PATIENCE_S) as client:
        for name in ("a name of 300 characters",) * 4 + ("5,000 nested names", "1,000 folders deep"):
            shown = await_end(client, submit(client, name, packed))
            assert shown.job.phase == Phase.FAILED and EVIL[name].says in str(shown.job.reason)
        good = submit(client, "good", packed, "sh", "-c", "cat good.txt > copied && id -u > whose")
        assert await_end(client, good).job.phase == Phase.DONE
    (copy,) = [each for each in (cluster.state("h1") / "trees" / "copies").iterdir() if each.is_dir()]
    uid = pwd.getpwnam(OTHER).pw_uid
    assert {each.stat().st_uid for each in (copy, *copy.iterdir())} == {uid}
    assert (copy / "copied").read_text() == "hi\n" and (copy / "whose").read_text().split() == [str(uid)]
    assert cluster.agents[HostId("h1")].pid == agent and peak_kib(agent) < PEAK_KIB_MAX
    assert {each.state for each in cluster.client.ask(wire.ListNodes()).nodes} == {"ok"}
