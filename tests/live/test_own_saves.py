"""A script that saves by itself on SIGTERM, as its user says, and is preempted three times."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.ranks import Warm, launch
from tests.live.person import PATIENCE_S, Person, at_home

COMPARED = Path(__file__).with_name("compared.py")
STOPS, STEPS = (3, 5, 9), 12
SCRIPT = """
import os, signal, sys, time
import torch
from torch import nn

torch.manual_seed(0)
xs, ys = torch.randn(60, 6), torch.randn(60, 1)
model = nn.Linear(6, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
end, step, stop = sys.argv[1], 0, False
if os.path.exists("own.pt"):
    saved = torch.load("own.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
    print("resumed by itself at", step, flush=True)


def leave(*_):
    global stop
    stop = True


signal.signal(signal.SIGTERM, leave)
while step < STEPS:
    i = torch.arange(step * 6, step * 6 + 6) % 60
    optimizer.zero_grad()
    nn.functional.mse_loss(model(xs[i]), ys[i]).backward()
    optimizer.step()
    step += 1
    while step in STOPS and not stop:
        time.sleep(0.01)
    if stop:
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(saved, "own.pt")
        sys.exit(0)
torch.save(model.state_dict(), end)
"""


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    with at_home(tmp_path_factory.mktemp("o"), agent__devices="cpu:1", agent__heartbeat_s="0.3") as made:
        yield made


def test_it_is_preempted_three_times_and_ends_as_if_it_had_not_been(person: Person, warm: Warm) -> None:
    text = SCRIPT.replace("STEPS", str(STEPS))
    script = person.write("train.py", text.replace("STOPS", str(STOPS)))
    command = (sys.executable, str(script), "ours.pt")
    job = person.submit("--resumable", "yes", "--env", "OMP_NUM_THREADS=1", "--", *command)
    for attempt in range(1, len(STOPS) + 1):

        def runs(found: dict[str, Any], number: int = attempt) -> bool:
            return (found["attempt"], found["state"]) == (number, "running")

        assert person.until(job, runs)["resumable"]
        assert person("preempt", job).code == 0
    person.until_state(job, "done")
    shown = person.show(job)
    assert [each["outcome"] for each in shown["attempts"]] == ["preempted"] * len(STOPS) + ["finished"]
    assert shown["preemptions"] == len(STOPS)
    log = person.logs(job)
    assert [line for line in log.splitlines() if line.startswith("resumed")] == [
        f"resumed by itself at {step}" for step in STOPS
    ]

    plain = person.work / "plain.pt"
    undisturbed = person.write("plain.py", text.replace("STOPS", "()"))
    launch(warm, undisturbed, person.work / "plain", str(plain)).wait(deadline_s=PATIENCE_S)
    words = (str(person.work / "ours.pt"), str(plain))
    (compared,) = launch(warm, COMPARED, person.work / "compared", *words).wait()
    assert compared["equal"]
