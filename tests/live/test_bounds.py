"""A job that bounds what sharing may cost it, beside one that does not: real processes, and the parameters of
both to the bit."""

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
from tests.checkpoint.ranks import Warm, launch
from tests.live.person import PATIENCE_S, Person, at_home, when

SCRIPT = """
import os, sys
import torch

seed, steps, out, go = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.manual_seed(seed)
torch.set_num_threads(2)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(steps):
    rows = torch.randn(32, 256)
    loss = (model(rows) - rows).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), out)
while not os.path.exists(go):  # The same steps again, for as long as the test looks.
    loss = (model(rows) - rows).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
COMPARED = Path(__file__).with_name("compared.py")
STEPS = 300
SHARE_MAX = 1.15


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    home = tmp_path_factory.mktemp("bound")
    with at_home(home, agent__devices="cpu:1", agent__slot_memory_mib="2000", policy__name="sjf-ffs") as made:
        yield made


def training(person: Person, script: Path, seed: int, out: str, share: str) -> JobSpec:
    argv = (sys.executable, str(script), str(seed), str(STEPS), out, str(person.work / "go"))
    point = ProfilePoint(sub_batch=32, accumulation_steps=1, step_s=0.01, memory_mib=300)
    names = ("PATH", "COTENANT_TEST_RUN", "PYTHONPATH")
    launch = Launch(
        argv=argv,
        workdir=str(person.work),
        env={name: person.env[name] for name in names if name in person.env},
        zero_code=("progress",),
        uid=os.getuid(),
        gid=os.getgid(),
    )
    return JobSpec(
        job_id=JobId("new-0"),
        batch_size=32,
        iterations=1_000_000,
        share=share,
        profile=Profile(points=(point,), duty_cycle=0.5),
        launch=launch,
    )


def test_the_guest_waits_and_both_end_with_the_parameters_that_they_have_alone(
    person: Person, warm: Warm
) -> None:
    script = person.write("train.py", SCRIPT)
    with Client(f"ipc://{person.socket}") as client:
        protected = training(person, script, 1, "one.pt", f"max={SHARE_MAX}")
        (first,) = client.ask(wire.Submit(specs=(protected,))).job_ids
        person.until_state(first, "running")
        (second,) = client.ask(wire.Submit(specs=(training(person, script, 2, "two.pt", "auto"),))).job_ids
        person.until_state(second, "running")
        person.until(second, lambda job: (job["pace"] or 1.0) < 1.0)
        judged = person.until(first, lambda job: job["bound"]["ratio_p50"] is not None)["bound"]
        assert (judged["max"], judged["is_own"]) == (SHARE_MAX, True) and judged["alone_step_s"] > 0.0
        assert not person.job(second)["bound"]["is_own"], "the cluster's, which gives way"
        when(lambda: all((person.work / name).exists() for name in ("one.pt", "two.pt")))
        person.write("go", "")
        person.until_state(first, "done")
        person.until_state(second, "done")

    for seed, ours in ((1, "one.pt"), (2, "two.pt")):
        words = (str(seed), str(STEPS), str(person.work / f"plain-{ours}"), str(person.work / "go"))
        launch(warm, script, person.work / f"plain{seed}", *words).wait(deadline_s=PATIENCE_S)
        paths = (str(person.work / ours), words[2])
        (found,) = launch(warm, COMPARED, person.work / f"compared{seed}", *paths).wait()
        assert found["equal"], (ours, found)
