"""The Python API with a real controller, agent and jobs: what no stand-in can show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.person import Person, at_home, when

TRAIN = """
import cotenant

def train(gate, seed):
    # A plain loop with a Session: it is the same one that a script would make.
    import os, pathlib, time, torch
    from cotenant import checkpoint
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = checkpoint.Session(model, optimizer, extra={"seed": seed})
    began = state.step
    while state.step < 12:
        x = torch.full((2, 4), float(state.step) / 7.0)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        state.step_done()
        if state.step == 5 and not began:
            pathlib.Path(gate).touch()
            while True:  # Until it is preempted here.
                optimizer.zero_grad()
                optimizer.step()
                state.step_done()
                if state.step >= 4000:
                    raise RuntimeError("nobody preempted it")
                time.sleep(0.01)
    return {"began": began, "attempt": os.environ["COTENANT_ATTEMPT"]}

def parameters(seed):
    import hashlib, torch
    from cotenant import checkpoint
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
    return checkpoint.parameters_sha256(model)
"""


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    home = tmp_path_factory.mktemp("h")
    settings = {"agent__devices": "cpu:2", "launch__warm": "true", "launch__first_word_s": "60"}
    with at_home(home, **settings, profiler__seconds="0") as someone:
        yield someone


def says(person: Person, script: str) -> Any:
    """What a script of this person's prints last, as JSON."""
    path = person.write("script.py", TRAIN + script)
    done = person.python(str(path))
    assert done.code == 0, done.err
    return json.loads(done.out.splitlines()[-1])


def test_a_function_started_warm_is_a_cold_one_bit_for_bit(person: Person) -> None:
    submitted = """
import json
print(json.dumps([[job.result(), job.id] for job in [cotenant.submit(parameters, 5, cold={cold})]][0]))
"""
    cold, first = says(person, submitted.format(cold=True))
    learned, _ = says(person, submitted.format(cold=False))  # A server learns from it what to import.
    when(lambda: "is ready" in (person.home / "up.log").read_text())
    warm, last = says(person, submitted.format(cold=False))
    assert cold == learned == warm
    launches = [person.show(job)["attempts"][-1] for job in (first, last)]
    assert [(each["launch"], each["launch_why"]) for each in launches[1:]] == [("warm", "")]
    assert launches[0]["launch"] == "cold"


def test_a_resumable_function_goes_on_where_it_was_and_another_shell_has_the_result(person: Person) -> None:
    gate = person.work / "gate"
    job = says(person, f"print(cotenant.submit(train, {str(gate)!r}, 3, gpus=1).id)")
    when(gate.exists, lambda: person.logs(str(job)))
    assert person("preempt", str(job)).code == 0
    found = says(person, f"import json; print(json.dumps(cotenant.job({job}).result()))")
    assert found["began"] >= 5
    assert found["attempt"] == "2"
    assert person.show(str(job))["preemptions"] == 1


def test_a_gangs_results_and_a_failure_across_processes(person: Person) -> None:
    found = says(
        person,
        """
import json, os

class Odd(Exception):
    pass

def rank():
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    mine = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(mine)
    dist.destroy_process_group()
    return mine.item(), os.environ["RANK"]

def fails():
    raise Odd("as the class of this shell")

both = cotenant.submit(rank, gpus=2, results="all")
bad = cotenant.submit(fails)
try:
    bad.result()
    kind = ""
except Odd as error:
    kind = str(error)
limit = cotenant.submit(command=["sleep", "100"], time="1s")
try:
    limit.result()
except cotenant.JobTimedOut as error:
    limited = type(error).__name__
print(json.dumps([both.result(), kind, limited]))
""",
    )
    assert found == [[[3.0, "0"], [3.0, "1"]], "as the class of this shell", "JobTimedOut"]
    folders = list(Path(person.env["XDG_STATE_HOME"]).glob("cotenant/functions/*/0/result-*.pickle"))
    assert folders
    assert {each.stat().st_mode & 0o777 for each in folders} == {0o600}
