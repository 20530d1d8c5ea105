"""Somebody's trees that were made to do harm, against a real agent: it survives them all, stays small, and
its host takes the next job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, JobSpec, Launch
from cotenant.controller.system import paths
from cotenant.controller.wire import clients as wire
from tests.building.evil_trees import EVIL, make
from tests.live.person import Person, at_home

PEAK_KIB_MAX = 300 * 1024
LINE_BYTES_MAX = 2048


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with at_home(tmp_path / "home", agent__devices="cpu:2") as someone:
        yield someone


def agent_of(person: Person) -> psutil.Process:
    assert person.process is not None
    children = psutil.Process(person.process.pid).children()
    (agent,) = [each for each in children if "cotenant.agent" in each.cmdline()]
    return agent


def peak_kib(process: psutil.Process) -> int:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError("it is gone")


def spec_of(name: str, person: Person) -> JobSpec:
    launch = Launch(
        argv=("true",),
        workdir=str(person.work),
        snapshot=make(EVIL[name].stream, paths.packed_trees()),
        uid=os.getuid(),
        gid=os.getgid(),
    )
    return JobSpec(job_id=JobId("new-0"), batch_size=1, launch=launch, retries=0)


def test_the_agent_survives_all_of_them_and_the_next_job_starts(person: Person) -> None:
    agent = agent_of(person)
    jobs: dict[str, str] = {}
    with Client(f"ipc://{person.socket}") as client:
        for name in EVIL:
            (jobs[name],) = client.ask(wire.Submit(specs=(spec_of(name, person),))).job_ids
    for name, tree in EVIL.items():
        job = person.until_state(jobs[name], "failed" if tree.says else "done")
        assert tree.says in job["reason"], (name, job["reason"])
        assert len(job["reason"]) < 1000
    assert agent_of(person) == agent, "it is the same process, by its pid and its start"
    assert peak_kib(agent) < PEAK_KIB_MAX
    (node,) = person.json("nodes")["nodes"]
    assert node["state"] == "ok"
    person.until_state(person.submit("--", "true"), "done")
    lines = (person.home / "up.log").read_bytes().splitlines()
    assert max(map(len, lines), default=0) <= LINE_BYTES_MAX
    assert not list((person.agent_state / "trees" / "copies").glob(".unpacking-*"))
