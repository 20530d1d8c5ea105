"""A policy splits the batches of a script that knows nothing of cotenant, so that it fits beside another job.

What the jobs need is said with them, as measured before: on a CPU slot half a batch saves next to nothing.
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
from tests.checkpoint.ranks import Warm, launch
from tests.live.person import PATIENCE_S, SAY, Person, at_home

SCRIPT = (Path(__file__).parents[1] / "gradaccum" / "scripts" / "late_zero.py").read_text()
COMPARED = Path(__file__).with_name("compared.py")
STEPS = 9
"""Of the script: three epochs of three batches, the last of them smaller."""
BATCH = 16
INCUMBENT = """
say("first_step", step=1)
while not os.path.exists("go"):
    time.sleep(0.01)
"""
TOLERANCE = 1e-12


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    home = tmp_path_factory.mktemp("zs")
    with at_home(home, agent__devices="cpu:1", agent__slot_memory_mib="1000", policy__name="castor") as made:
        yield made


def needs(
    person: Person, script: Path, *words: str, iterations: int, zero_code: tuple[str, ...] = ()
) -> JobSpec:
    """A job of which two whole batches do not fit on the slot, but one and a half do."""
    whole = ProfilePoint(sub_batch=BATCH, accumulation_steps=1, step_s=0.03, memory_mib=600)
    half = ProfilePoint(sub_batch=BATCH // 2, accumulation_steps=2, step_s=0.032, memory_mib=350)
    argv = (sys.executable, str(script), *words)
    names = ("PATH", "COTENANT_TEST_RUN", "PYTHONPATH")
    env = {name: person.env[name] for name in names if name in person.env}
    return JobSpec(
        job_id=JobId("new-0"),
        batch_size=BATCH,
        iterations=iterations,
        profile=Profile(points=(whole, half), duty_cycle=0.4),
        launch=Launch(
            argv=argv,
            workdir=str(person.work),
            env=env,
            zero_code=zero_code,
            uid=os.getuid(),
            gid=os.getgid(),
        ),
    )


def test_its_batches_are_split_and_the_result_is_that_of_whole_ones(person: Person, warm: Warm) -> None:
    incumbent = person.write("incumbent.py", SAY + INCUMBENT)
    script = person.write("train.py", SCRIPT)
    with Client(f"ipc://{person.socket}") as client:
        (first,) = client.ask(wire.Submit(specs=(needs(person, incumbent, iterations=100_000),))).job_ids
        person.until_state(first, "running")
        newcomer = needs(person, script, "ours.pt", iterations=STEPS, zero_code=("accumulate",))
        (second,) = client.ask(wire.Submit(specs=(newcomer,))).job_ids
        person.until_state(second, "done")
        shown = client.ask(wire.ShowJob(job_id=second))
        report = client.ask(wire.GetReport()).report
    person.write("go", "")
    assert isinstance(shown, wire.Shown)
    (attempt,) = shown.attempts
    assert (attempt.accumulation_steps, attempt.co_tenants) == (2, (first,))
    assert shown.job.step == STEPS
    (promise,) = shown.job.promises
    assert (promise.beside, promise.took_s) == (first, None), "the other has not finished"
    assert 0.0 < promise.promised_s < promise.sequential_s
    assert report.held_device_s > 0.0
    assert {row.beside for row in shown.job.shared} <= {(first,)}

    plain = person.work / "plain.pt"
    launch(warm, script, person.work / "plain", str(plain)).wait(deadline_s=PATIENCE_S)
    words = (str(person.work / "ours.pt"), str(plain))
    (compared,) = launch(warm, COMPARED, person.work / "compared", *words).wait()
    assert 0.0 < compared["apart"] <= TOLERANCE, "equal to the bit: nothing was split"
