"""What is launched is what was typed: words about ranks, devices and processes of real jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.person import Person, at_home

WORDS = """
import json, os, sys
GIVEN = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"
found = {name: os.environ[name] for name in GIVEN if name in os.environ and not name.startswith("MASTER")}
cores, threads = len(os.sched_getaffinity(0)), int(os.environ["OMP_NUM_THREADS"])
print(json.dumps([found, "MASTER_PORT" in os.environ, cores, threads]), flush=True)
"""
GROUP = (
    WORDS
    + """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.destroy_process_group()
"""
)
GUARDED = """
import os, time, torch, torch.distributed as dist
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(20):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    print(step, ddp, loss.item())
if ddp:
    dist.destroy_process_group()
    time.sleep(0.5)  # A thread of gloo's may abort a process that ends just now, with us or without.
"""
PLAIN = """
import torch
model = torch.nn.DataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    print(step)
open("made", "x")
"""
NEEDS = "import sys, torch.distributed as dist\nif len(sys.argv) > 1:\n    dist.init_process_group('gloo')\n"


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    with at_home(tmp_path_factory.mktemp("s"), agent__devices="cpu:2", profiler__seconds="0") as made:
        made.write("words.py", WORDS)
        made.write("group.py", GROUP)
        made.write("guarded.py", GUARDED)
        yield made


def words_of(person: Person, *flags: str, ranks: int = 1) -> list[Any]:
    """What each process of a job has printed first."""
    job = person.submit(*flags)
    person.until_state(job, "done")
    return [json.loads(person("logs", "-r", str(no), job).out.splitlines()[0]) for no in range(ranks)]


def test_a_plain_script_is_one_process_without_a_rank_on_all_its_devices(person: Person) -> None:
    plain = ("--", sys.executable, "words.py")
    assert words_of(person, *plain) == [[{}, False, 1, 1]]
    assert words_of(person, "-g", "2", *plain) == [[{}, False, 2, 2]]
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}
    assert words_of(person, "--launch", "worker", *plain) == [[rank, True, 1, 1]]
    assert words_of(person, "-g", "2", "--launch", "host", *plain) == [[{"GROUP_RANK": "0"}, True, 2, 1]]


def test_a_script_that_makes_a_process_group_is_one_rank_per_device(person: Person) -> None:
    for devices in (1, 2):
        command = ("--", sys.executable, "group.py")
        found = words_of(person, "-g", str(devices), *command, ranks=devices)
        assert [words["RANK"] for words, *_ in found] == [str(no) for no in range(devices)]
        assert all(words["WORLD_SIZE"] == str(devices) and meets for words, meets, *_ in found)


def test_a_script_that_asks_for_its_rank_prints_what_it_prints_alone(person: Person) -> None:
    env = {name: value for name, value in os.environ.items() if name != "RANK"}
    command, single = (sys.executable, "guarded.py"), {"OMP_NUM_THREADS": "1"}
    bare = subprocess.run(command, cwd=person.work, env={**env, **single}, capture_output=True, check=True)
    done = person("run", "-q", "--", *command)
    assert (done.code, done.out) == (0, bare.stdout.decode())
    gang = person("run", "-q", "-g", "2", "--", *command)
    assert "2 processes, one per GPU: guarded.py line 7 calls init_process_group" in gang.err
    assert (gang.code, gang.out.splitlines()[0].split()[:2]) == (0, ["0", "True"])


def test_an_unchanged_script_on_two_devices_trains_once(person: Person) -> None:
    person.write("plain.py", PLAIN)
    done = person("run", "-q", "-g", "2", "--", sys.executable, "plain.py")
    assert (done.code, done.out.split()) == (0, [str(step) for step in range(20)]), done.err
    assert "one process that sees 2 GPUs of one host: plain.py makes no process group" in done.err
    [job] = [each for each in person.json("queue", "--ended")["jobs"] if each["name"] == "plain"]
    assert (job["step"], job["gpus"], job["exit_code"]) == (20, 2, 0)


def test_who_dies_for_want_of_a_rank_is_told_the_flag(person: Person) -> None:
    person.write("needs.py", NEEDS)
    command = ("--", sys.executable, "needs.py", "yes")
    failed = person.until_state(person.submit(*command), "failed")
    assert "environment variable RANK expected" in failed["reason"] and "--launch worker" in failed["reason"]
    person.until_state(person.submit("--launch", "worker", *command), "done")
