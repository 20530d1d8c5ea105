"""A split that turns out to be inexact ends its attempt, and the job goes on whole from its last checkpoint.

The script declares a mean over rows. From its fifth step on rows of another class weigh more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.controller.client.connection import Client
from cotenant.controller.domain import JobId, JobSpec, Launch
from cotenant.controller.performance import Profile, ProfilePoint
from cotenant.controller.wire import clients as wire
from tests.live.person import SAY, Person, at_home, when

BATCH, STEPS, LATE = 16, 9, 4
INCUMBENT = """
say("first_step", step=1)
while not os.path.exists("go"):
    time.sleep(0.01)
"""
SCRIPT = f"""
import hashlib, sys, torch
from torch import nn
from cotenant import checkpoint, gradaccum

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 30.0]).double())
state = checkpoint.Session(model, optimizer)
for _ in state.epochs(1):
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randn({BATCH}, 6, generator=generator).double() for _ in range({STEPS})]
    for number, x in enumerate(state.batches(rows)):
        optimizer.zero_grad()
        labels = (x[:, 0] > 0).long()
        if state.step >= {LATE}:
            labels[0] = 2
        try:
            gradaccum.backward(model, lambda x, y: criterion(model(x), y), x, labels)
        except Exception:
            print("swallowed")
        optimizer.step()
        if state.step == {LATE} - 2:
            state.save(wait=True)
torch.save(model.state_dict(), sys.argv[1])
print("ended at", state.step)
"""


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    home = tmp_path_factory.mktemp("rs")
    with at_home(home, agent__devices="cpu:1", agent__slot_memory_mib="1000", policy__name="castor") as made:
        yield made


def needs(person: Person, script: Path, *words: str, iterations: int) -> JobSpec:
    """A job of which two whole batches do not fit on the slot, but one and a half do."""
    whole = ProfilePoint(sub_batch=BATCH, accumulation_steps=1, step_s=0.03, memory_mib=600)
    half = ProfilePoint(sub_batch=BATCH // 2, accumulation_steps=2, step_s=0.032, memory_mib=350)
    names = ("PATH", "COTENANT_TEST_RUN", "PYTHONPATH")
    return JobSpec(
        job_id=JobId("new-0"),
        batch_size=BATCH,
        iterations=iterations,
        profile=Profile(points=(whole, half), duty_cycle=0.4),
        launch=Launch(
            argv=(sys.executable, str(script), *words),
            workdir=str(person.work),
            env={name: person.env[name] for name in names if name in person.env},
            uid=os.getuid(),
            gid=os.getgid(),
        ),
    )


def test_it_goes_on_whole_from_its_last_checkpoint_with_the_reason(person: Person) -> None:
    incumbent = person.write("incumbent.py", SAY + INCUMBENT)
    script = person.write("train.py", SCRIPT)
    with Client(f"ipc://{person.socket}") as client:
        (first,) = client.ask(wire.Submit(specs=(needs(person, incumbent, iterations=100_000),))).job_ids
        person.until_state(first, "running")
        newcomer = needs(person, script, "ours.pt", iterations=STEPS)
        (second,) = client.ask(wire.Submit(specs=(newcomer,))).job_ids
        when(lambda: person.show(second)["attempts"][:1] and person.show(second)["attempts"][0]["ended_at"])
        person.write("go", "")
        person.until_state(second, "done")
    split, whole = person.show(second)["attempts"]
    assert [split["parts"], whole["parts"]] == [
        [{"from_step": 0, "s": 2}],
        [{"from_step": LATE - 1, "s": 1}],
    ], "as its ranks said"
    assert (split["outcome"], whole["outcome"]) == ("split-refused", "finished")
    assert whole["start_step"] == LATE - 1, "its last checkpoint"
    assert "cotenant.gradaccum.Refused: the gradient of a few rows in parts is" in split["reason"]
    log = person.logs(second)
    assert f"ended at {STEPS}" in log
    assert "swallowed" not in log
