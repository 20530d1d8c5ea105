"""That `python -m tests.unchanged` finds what it is there to find, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cotenant.agent.supervisor.core.rank_messages import StepDone
from tests.agent.supervisor.attempts import default_words
from tests.unchanged.collection import TRAITS, Script, chosen_for_quick, scripts
from tests.unchanged.compare import Rules, differences, traces
from tests.unchanged.loops import generate
from tests.unchanged.runs import Command, Ended, Runner
from tests.unchanged.traits import Trait, plain_script, read_traits
from tests.unchanged.verdicts import Kind, judge

pytestmark = pytest.mark.usefixtures("runner")

TRAINING = """
import json
import torch
from torch import nn

torch.manual_seed(1)
calls = 0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def forward(self, x):
        global calls
        calls += 1
        return self.net(x)


def main():
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(6):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        print(step, loss.item())
    with open("history.json", "w") as file:
        json.dump({"calls": calls}, file)
    torch.save(model.state_dict(), "model.pt")


main()
"""
WITHOUT_CALLS = TRAINING.replace("        global calls\n        calls += 1\n", "")
FAULT = """
import atexit, os, sys
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

done = []

def once(optimizer, *_):
    if done:
        return
    done.append(optimizer)
    {fault}

register_optimizer_step_post_hook(once)
"""
"""What stands for the start of a job's interpreter, with one fault in it."""


@pytest.fixture
def faulty(tmp_path: Path) -> Callable[[str], Path]:
    """A job-side folder with that line in it."""

    def made(fault: str) -> Path:
        startup = tmp_path / "cotenant" / "gradaccum" / "startup"
        startup.mkdir(parents=True)
        (startup / "sitecustomize.py").write_text(FAULT.format(fault=fault))
        return tmp_path

    return made


@pytest.mark.parametrize(
    ("fault", "kind", "where"),
    [
        ("os.environ['X'] = '1'; torch.rand(1)", "out", "line 2"),
        ("torch.set_rng_state(torch.get_rng_state()); print('hello')", "out", "line 1"),
        ("sys.stderr.write('hello')", "err", "line 1"),
        ("open('left', 'w').close()", "files", "left"),
        ("os.chmod('.', 0o700); os.umask(0)", "files", "history.json"),
        ("atexit.register(os._exit, 3)", "exit", "code"),
        ("sys.modules['__main__'].calls += 1", "files", "history.json line 1"),
        (
            "optimizer.state[optimizer.param_groups[0]['params'][0]]['step'].mul_(1.0)",
            "memory",
            "optimizer 0",
        ),
        ("import random; random.random()", "memory", "process['random']"),
        ("torch.set_default_dtype(torch.float64); torch.set_default_dtype(torch.float32)", "", ""),
    ],
)
def test_whatever_a_hook_changes_is_found(
    runner: Runner, faulty: Callable[[str], Path], fault: str, kind: str, where: str
) -> None:
    command = Command(script=runner.write(TRAINING))
    found = differences(runner.bare(command), runner.job(command, jobside=faulty(fault)), Rules())
    if not kind:
        assert found == []
        return
    assert next(each.where for each in found if each.kind == kind).startswith(where), found


def test_a_script_that_nobody_asks_for_anything_ends_as_by_itself(runner: Runner) -> None:
    command = Command(script=runner.write(WITHOUT_CALLS))
    bare, job = runner.bare(command), runner.job(command, profile_s=0.0)
    assert differences(bare, job, Rules()) == []
    assert (bare.code, bare.out.count("\n"), bare.err) == (0, 6, "")
    names = {path.partition(".")[0] for path in bare.state}
    assert {"process", "main", "optimizer 0"} <= {name.partition("[")[0] for name in names}
    assert all("cotenant" in job.state[path] or path in job.state for path in traces(bare, job))
    assert [type(word).__name__ for word in job.heard][-1] == "StepDone"


def test_a_job_can_be_split_from_its_start(runner: Runner) -> None:
    command = Command(script=runner.write(WITHOUT_CALLS))
    bare, split = runner.bare(command), runner.job(command, accumulation_steps=2)
    assert (bare.code, split.code) == (0, 0)
    steps = [word for word in split.heard if isinstance(word, StepDone)]
    assert [(word.step, word.s) for word in steps][-1] == (6, 2)
    assert default_words() == ("accumulate", "quiet", "leave", "progress")


def test_errors_signals_and_exit_codes_are_those_of_python(runner: Runner) -> None:
    def ended(script: Path, *, cold: bool) -> Ended:
        return runner.bare(Command(script=script, state=False, cold=cold))

    for text in (
        "import sys\nsys.exit('no more')\n",
        "def broken():\n    raise ValueError('x')\n\n\ntry:\n    broken()\nfinally:\n    print('so')\n",
        "import os\nprint('x', end='')\nos._exit(7)\n",
        "import threading\nthreading.Thread(target=lambda: print('late')).start()\nraise SystemExit(3)\n",
        "import atexit\natexit.register(print, 'last')\nraise KeyboardInterrupt\n",
    ):
        script = runner.write(text)
        forked, cold = ended(script, cold=False), ended(script, cold=True)
        assert (forked.code, forked.out, forked.err) == (cold.code, cold.out, cold.err)


def test_a_script_that_is_not_alike_twice_is_no_difference_of_the_job(runner: Runner) -> None:
    def kind(text: str, rules: Rules) -> Kind:
        command = Command(script=runner.write(text))
        return judge(runner, Script(name="x", command=command, rules=rules)).kind

    assert kind("import time\nprint(time.time())\n", Rules()) is Kind.UNLIKE
    assert kind("import time\nprint(time.time())\n", Rules(masks=(r"\d+\.\d+",))) is Kind.SAME
    assert kind("import time\nwhen = time.time()\n", Rules()) is Kind.SAME, (
        "memory is compared where it can be"
    )


# --- What is run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("trait", TRAITS, ids=lambda trait: trait.name)
def test_each_trait_is_a_script(trait: Trait) -> None:
    compile(plain_script(trait), trait.name, "exec")


@pytest.mark.parametrize("text", ["top | x = 1\nbelow | y\n", "[one]\nnot a line of it\n"])
def test_a_trait_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        read_traits(text)


def test_traits_that_want_the_same_place_or_name_do_not_meet() -> None:
    one, other, third, last = read_traits(
        "[one]\ntop | calls = 0\nstep | a\n[other]\nstep | b\n[third]\ntop | calls = []\n[last]\nalone |\n"
    )
    assert not one.goes_with([other])
    assert not one.goes_with([third])
    assert not one.goes_with([last]) and not last.goes_with([one])
    assert third.goes_with([other])


def test_a_number_is_a_loop(seed: int) -> None:
    texts = [generate(seed, number, TRAITS) for number in range(60)]
    assert texts == [generate(seed, number, TRAITS) for number in range(60)]
    assert len(set(texts)) == 60
    for number, text in enumerate(texts):
        compile(text, f"{seed}-{number}", "exec")


def test_generated_loops_run_by_themselves(runner: Runner, seed: int) -> None:
    for number in range(8):
        command = Command(script=runner.write(generate(seed, number, TRAITS)), args=("saved.pt",))
        ended = runner.bare(command)
        assert (ended.code, "saved.pt" in {each.name for each in ended.folder.iterdir()}) == (0, True), (
            ended.err
        )


def test_the_quick_version_has_some_of_the_traits_and_of_the_others() -> None:
    found = list(scripts())
    names = [each.name for each in chosen_for_quick(found, seed=1, traits=30, others=20)]
    assert sum(name.startswith("traits/") for name in names) == 30
    assert len(names) == 30 + 20
    assert names != [each.name for each in chosen_for_quick(found, seed=2, traits=30, others=20)]
    assert sum(
        each.name.startswith("traits/") for each in chosen_for_quick(found, 1, traits=10**4, others=0)
    ) == (len(TRAITS))
