"""A job that hangs in a collective: its stacks are in its log, it is ended, and it goes on where it had
saved.

Through the real command line, controller, agent, supervisor and two ranks of gloo. In its first attempt one
rank leaves the training loop's path for ever; in the second one nothing is wrong any more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.building.limits import within_s
from tests.live.person import Person, at_home

WATCHDOG_S = round(within_s(4))
"""In half of it a rank is looked at ten times; it must get to a core between two looks."""
SCRIPT = """
import os, threading
import torch, torch.distributed as dist
from torch import nn
from cotenant import checkpoint

dist.init_process_group("gloo")
torch.manual_seed(3)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = checkpoint.Session(model, optimizer)

def lost_its_way():
    threading.Event().wait()

while state.step < 24:
    if state.step == 12 and os.environ["COTENANT_ATTEMPT"] == "1" and dist.get_rank() == 1:
        lost_its_way()
    optimizer.zero_grad()
    model(torch.full((3, 4), float(state.step))).sum().backward()
    optimizer.step()
    state.step_done()
    if state.step == 8:
        state.save()
dist.barrier()  # Else the first to leave may cut the other off in its last collective.
state.close()
os._exit(0)  # gloo's threads abort some processes in Python's teardown, with cotenant and without.
"""
EVALUATES = """
import time
import torch
from torch import nn
from cotenant import checkpoint

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = checkpoint.Session(model, optimizer)
while state.step < 16:
    if state.step == 8:
        until_s = time.monotonic() + EVALUATES_S
        while time.monotonic() < until_s:  # Far beyond its watchdog, and at work.
            for row in range(100):
                with torch.no_grad():
                    model(torch.ones(4))
            torch.ones(300, 300) @ torch.ones(300, 300)
    optimizer.zero_grad()
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    state.step_done()
"""


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    settings = {"agent__devices": "cpu:2", "agent__heartbeat_s": "0.3", "policy__back_off_s": "0.1"}
    with at_home(tmp_path_factory.mktemp("h"), **settings) as made:
        yield made


def test_a_job_that_hangs_in_a_collective_is_seen_shown_ended_and_resumed(person: Person) -> None:
    script = person.write("hangs.py", SCRIPT)
    job = person.submit("-g", "2", "--watchdog", f"{WATCHDOG_S}s", "--", sys.executable, str(script))
    person.until(job, lambda found: found["durable_step"] == 8)
    person.until(job, lambda found: found["attempt"] == 2)
    found = person.until_state(job, "done")
    assert found["step"] == 24
    first, second = person.show(job)["attempts"]
    assert (first["outcome"], second["outcome"]) == ("infra-failed", "finished")
    assert second["start_step"] == 8, "from its checkpoint"

    logs = {rank: log_of(person, job, 1, rank) for rank in (0, 1)}
    assert "lost_its_way" in logs[1], logs[1]
    assert "hangs.py" in logs[0] and "most recent call first" in logs[0], logs[0]
    assert "it hangs" in first["reason"] and "goes back to step 8" in first["reason"]


def test_a_job_that_evaluates_for_longer_than_its_watchdog_is_left_alone(person: Person) -> None:
    script = person.write("evaluates.py", EVALUATES.replace("EVALUATES_S", f"{2.25 * WATCHDOG_S}"))
    job = person.submit("--watchdog", f"{WATCHDOG_S}s", "--", sys.executable, str(script))
    person.until_state(job, "done")
    [only] = person.show(job)["attempts"]
    assert only["outcome"] == "finished"
    assert "most recent call first" not in log_of(person, job, 1, 0)


def log_of(person: Person, job: str, attempt: int, rank: int) -> str:
    [path] = Path(person.agent_state).glob(f"attempts/{job}-a{attempt}/logs/rank-{rank}.log")
    return path.read_text(errors="replace")
