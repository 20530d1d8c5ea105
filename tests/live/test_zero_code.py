"""A training script that knows nothing of cotenant, through the real command line, controller and agent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.checkpoint.zerocode.script_rank import PROOF_STEPS
from tests.checkpoint.ranks import Warm, launch
from tests.live.person import PATIENCE_S, Person, at_home

SCRIPTS = Path(__file__).parents[1]
COMPARED = Path(__file__).with_name("compared.py")
EPOCHS = 40
ONE_THREAD = ("--env", "OMP_NUM_THREADS=1")
"""Two that wait for each other at every operation crawl where others want the cores."""
WAITING = """step += 1
            while step == 20 and not os.path.exists("go"):
                open("waits", "w").close()
                time.sleep(0.01)
            if step > 20 and not os.path.exists("resumed"):
                time.sleep(0.05)"""
"""It stands still until it was asked to leave, and then walks until it has left: at its usual pace it could
be at its end before a step to leave at is agreed."""


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    with at_home(tmp_path_factory.mktemp("z"), agent__devices="cpu:1", agent__heartbeat_s="0.3") as made:
        yield made


def test_an_unchanged_script_is_preempted_and_ends_as_if_it_had_not_been(person: Person, warm: Warm) -> None:
    text = (SCRIPTS / "checkpoint" / "scripts" / "plain.py").read_text()
    text = text.replace("range(4)", f"range({EPOCHS})").replace("total_steps=28", f"total_steps={7 * EPOCHS}")
    undisturbed = person.write("plain.py", text)
    text = text.replace("step += 1", WAITING).replace(
        "import random\n", "import os\nimport random\nimport time\n"
    )
    script = person.write("train.py", text)
    flags = ("--checkpoint", "auto", "--batch-size", "8", "--iterations", str(7 * EPOCHS))
    job = person.submit(*flags, *ONE_THREAD, "--", sys.executable, str(script), "ours.pt")
    person.until(
        job,
        lambda found: found["resumable"] and found["state"] == "running" and (person.work / "waits").exists(),
    )
    assert person("preempt", job).code == 0
    person.until_state(job, "checkpointing")
    person.write("go", "")
    person.until(job, lambda found: found["attempt"] == 2)
    person.write("resumed", "")
    found = person.until_state(job, "done")
    assert found["step"] == 7 * EPOCHS
    attempts = person.show(job)["attempts"]
    assert len(attempts) == 2
    assert (attempts[1]["exact"], attempts[1]["proven"]) == (True, PROOF_STEPS)
    assert f"exact, proven over {PROOF_STEPS} steps" in person("show", job, "-o", "wide").out
    assert attempts[1]["start_step"] == attempts[0]["end_step"] > 0
    assert found["accumulates_note"].startswith("1: BatchNorm1d in training mode")

    plain = person.work / "plain.pt"
    launch(warm, undisturbed, person.work / "plain", str(plain)).wait(deadline_s=PATIENCE_S)
    words = (str(person.work / "ours.pt"), str(plain))
    (compared,) = launch(warm, COMPARED, person.work / "compared", *words).wait()
    assert compared["equal"]


OTHERWISE = """
import os, time
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
factor = 1.0
for step in range(40):
    factor = 1.0 if step < 20 else float(os.environ["COTENANT_ATTEMPT"])
    x = torch.randn(4, 6)
    optimizer.zero_grad()
    loss = (factor * model(x)).square().mean()
    loss.backward()
    optimizer.step()
    while step == 19 and not os.path.exists("gone"):
        open("waits too", "w").close()
        time.sleep(0.01)
    if step > 19 and not os.path.exists("again"):
        time.sleep(0.05)
"""


def test_a_script_that_does_not_go_on_as_it_was_left_begins_again_and_is_never_preempted(
    person: Person,
) -> None:
    script = person.write("otherwise.py", OTHERWISE)
    job = person.submit(*ONE_THREAD, "--", sys.executable, str(script))
    person.until(
        job,
        lambda found: (
            found["resumable"] and found["state"] == "running" and (person.work / "waits too").exists()
        ),
    )
    assert person("preempt", job).code == 0
    person.until_state(job, "checkpointing")
    person.write("gone", "")
    person.until(job, lambda found: found["attempt"] == 2)
    person.write("again", "")
    found = person.until_state(job, "done")
    first, second, third = person.show(job)["attempts"]
    assert [each["outcome"] for each in (first, second, third)] == ["preempted", "resume-refused", "finished"]
    assert (
        "was made otherwise than in the attempt that was left: `factor` was 1.0, now 2.0" in second["reason"]
    )
    assert (third["start_step"], found["step"], found["resumable"]) == (0, 40, False)
    assert found["resumable_note"] in second["reason"]


def test_a_script_that_cannot_be_resumed_or_split_says_why_in_show(person: Person) -> None:
    text = (
        (SCRIPTS / "checkpoint" / "scripts" / "plain.py")
        .read_text()
        .replace("range(4)", "(each for each in range(4))")
    )
    script = person.write("other.py", text)
    job = person.submit(
        "--checkpoint", "auto", "--batch-size", "8", "--", sys.executable, str(script), "x.pt"
    )
    person.until_state(job, "done")
    found = person.job(job)
    assert (found["resumable"], found["accumulates"]) == (False, False)
    assert found["resumable_note"].endswith("`(each for each in range(4))` is not known")
