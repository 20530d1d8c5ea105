"""How long a loop is, read from its source and its frames; and what is not known is not made up."""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import types
import weakref
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from cotenant.checkpoint.guard import Guard
from cotenant.checkpoint.progress import loops
from cotenant.checkpoint.progress.loading import Loading
from cotenant.checkpoint.progress.loops import Loaders, NotSeen
from cotenant.checkpoint.progress.steps import LoopLength, StepReporter
from tests.building.limits import within_s

BATCHES = 5


class Seeing:
    """Stands for the optimizer: each call is a step."""

    def __init__(self, loaders: Loaders, batches_per_step: int = 1) -> None:
        self.length, self.steps, self.calls = LoopLength(), 0, 0
        self.each, self.loaders = batches_per_step, loaders
        self.totals: list[int | None] = []

    def __call__(self) -> None:
        self.calls += 1
        if self.calls % self.each:
            return
        self.steps += 1
        try:
            self.length.learn(self.steps, loops.turns_in(loops.frames_from(sys._getframe(1)), self.loaders))
        except NotSeen as error:
            self.length.not_seen(str(error))
        self.totals.append(self.length.total)


class Box:
    """What a wrapper of somebody else's looks like: no length."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)


@pytest.fixture
def loaders() -> Iterator[Loaders]:
    found = Loaders()
    loading = Loading(torch.utils.data.dataloader, Guard("counting steps"), found.began)
    yield found
    loading.end()


@pytest.fixture
def script(tmp_path: Path, loaders: Loaders) -> Callable[..., Seeing]:
    def ran(source: str, batches_per_step: int = 1, **names: Any) -> Seeing:
        file = tmp_path / "train.py"
        file.write_text(source)
        seeing = Seeing(loaders, batches_per_step)
        loader = DataLoader(TensorDataset(torch.zeros(4 * BATCHES, 1)), batch_size=4)
        module = types.ModuleType("train")
        given = {"step": seeing, "loader": loader, "args": Namespace(epochs=3, dry_run=False), "Box": Box}
        vars(module).update(given, **names)
        exec(compile(source, str(file), "exec"), vars(module))
        return seeing

    return ran


RANGES = "range(3) x 5 batches"
SEEN = {
    "plain": ("for epoch in range(3):\n  for x in loader:\n    step()", 15, RANGES),
    "options": (
        "for epoch in range(1, args.epochs + 1):\n  for i, x in enumerate(loader):\n    step()",
        15,
        RANGES,
    ),
    "an entry": ("c = {'n': 3}\nfor epoch in range(c['n']):\n  for x in loader:\n    step()", 15, RANGES),
    "going on": ("for epoch in range(1, 3):\n  for x in loader:\n    step()", 10, "range(2) x 5 batches"),
    "functions": (
        (
            "def one(x):\n  step()\ndef train(n):\n"
            "  for e in range(n):\n    for x in loader:\n      one(x)\ntrain(3)"
        ),
        15,
        RANGES,
    ),
    "a closure": (
        (
            "def go(n):\n  for e in range(n):\n    for x in loader:\n"
            "      def closure():\n        step()\n      closure()\ngo(3)"
        ),
        15,
        RANGES,
    ),
    "steps alone": ("for i in range(7):\n  step()", 7, "range(7)"),
    "a dry run that is none": (
        "for e in range(3):\n  for x in loader:\n    step()\n    if args.dry_run:\n      break",
        15,
        RANGES,
    ),
    "early stopping": (
        "for e in range(3):\n  for x in loader:\n    step()\n  if e > 5:\n    break",
        15,
        f"{RANGES}; fewer where a loop is left early",
    ),
    "folds": (
        "for f in [1, 2]:\n  for e in range(3):\n    for x in loader:\n      step()",
        30,
        f"2 items x {RANGES}",
    ),
    "a part": (
        (
            "import itertools\nfor e in range(3):\n"
            "  for i, x in enumerate(itertools.islice(loader, 2)):\n    step()"
        ),
        6,
        "range(3) x 2 batches",
    ),
    "slices of a tensor": (
        "import torch\nx = torch.zeros(20, 3)\nfor at in range(0, x.size(0) - 1, 4):\n  step()",
        5,
        "range(5)",
    ),
    "a tensor's shape": (
        "import torch\nx = torch.zeros(3, 20)\nfor at in range(0, x.shape[-1], x.size()[0] + 1):\n  step()",
        5,
        "range(5)",
    ),
    "an array's shape": (
        "import numpy\nx = numpy.zeros((20, 3))\nfor at in range(x.shape[0] // 4):\n  step()",
        5,
        "range(5)",
    ),
    "validation between": (
        "for e in range(3):\n  for x in loader:\n    step()\n  for y in loader:\n    pass",
        15,
        RANGES,
    ),
}


@pytest.mark.parametrize(("source", "total", "text"), SEEN.values(), ids=SEEN.keys())
def test_the_total_is_seen(script: Callable[..., Seeing], source: str, total: int, text: str) -> None:
    seeing = script(source)
    assert seeing.steps == total
    assert seeing.totals[0] is None, "one step does not say how many batches go into one"
    assert set(seeing.totals[1:]) == {total}
    assert seeing.length.note == f"loops seen: {text}"


NOT_SEEN = {
    "while": (
        "i = 0\nwhile i < 4:\n  i += 1\n  for x in loader:\n    step()",
        "train.py line 2 is a while loop",
    ),
    "left early": (
        "for e in range(3):\n  for i, x in enumerate(loader):\n    step()\n    if i == 2:\n      break",
        "train.py line 2: the loop over batches can be left before its end",
    ),
    "no length": (
        "for e in range(3):\n  for x in Box(loader):\n    step()",
        "train.py line 2: `Box(loader)` does not say its length",
    ),
    "a generator": (
        "def all():\n  for e in range(3):\n    yield from loader\nfor x in all():\n  step()",
        "train.py line 4: `all()` does not say its length",
    ),
    "a name that is computed": (
        (
            "class A:\n  n = property(lambda self: 3)\na = A()\n"
            "for e in range(a.n):\n  for x in loader:\n    step()"
        ),
        "train.py line 4: `a.n` is not known",
    ),
    "a size of the script's own": (
        (
            "import torch\nclass T(torch.Tensor):\n  def size(self, *_):\n    return 3\n"
            "x = torch.zeros(2).as_subclass(T)\nfor i in range(x.size(0)):\n  step()"
        ),
        "train.py line 6: `x.size(0)` is not known",
    ),
    "a nested tensor": (
        (
            "import torch, warnings\nwarnings.simplefilter('ignore')\n"
            "x = torch.nested.nested_tensor([torch.zeros(3), torch.zeros(2)])\n"
            "for i in range(x.size(0)):\n  step()"
        ),
        "train.py line 4: `x.size(0)` is not known",
    ),
    "no loop": ("step()", "no loop stands around its steps"),
}


@pytest.mark.parametrize(("source", "why"), NOT_SEEN.values(), ids=NOT_SEEN.keys())
def test_what_is_not_known_is_not_made_up(script: Callable[..., Seeing], source: str, why: str) -> None:
    seeing = script(source)
    assert set(seeing.totals) == {None}
    assert (seeing.length.note, seeing.length.loops) == (f"length not seen: {why}", ())


def test_several_batches_a_step_are_counted(script: Callable[..., Seeing]) -> None:
    seeing = script("for e in range(12):\n  for x in loader:\n    step()", batches_per_step=4)
    assert (seeing.steps, set(seeing.totals[1:])) == (15, {15})
    assert seeing.length.note == "loops seen: range(12) x 5 batches, 4 a step"
    assert seeing.length.loops == (12, 5)


def test_steps_in_a_comprehension_are_told_when_enough_was_seen(script: Callable[..., Seeing]) -> None:
    seeing = script("for e in range(40):\n  [step() for x in loader]")
    assert seeing.totals[10] is None
    assert seeing.totals[-1] is not None and abs(seeing.totals[-1] - 200) <= 5


def test_another_loop_is_another_length(script: Callable[..., Seeing]) -> None:
    seeing = script("for i in range(4):\n  step()\nfor i in range(6):\n  step()")
    assert seeing.totals == [None, 4, 4, 4, None, 10, 10, 10, 10, 10]


def test_a_look_keeps_nothing_of_the_script_alive(script: Callable[..., Seeing]) -> None:
    gone: list[bool] = []

    class Big:
        pass

    def check(made: list[weakref.ref[Big]]) -> None:
        gc.collect()
        gone.append(made[0]() is None)

    script(
        (
            "def train():\n  for e in range(1):\n    big = Big()\n    made = [ref(big)]\n"
            "    step()\n    del big\n    check(made)\ntrain()"
        ),
        Big=Big,
        ref=weakref.ref,
        check=check,
    )
    assert gone == [True]


# --- Counting ------------------------------------------------------------------------------------------


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def test_the_first_optimizer_counts_until_it_is_gone() -> None:
    reporter = StepReporter(Loaders())
    first, second = optimizer(), optimizer()
    for each in (first, second, second, first):
        reporter.note_step(each)
    assert reporter.steps == 2
    del first, each
    gc.collect()
    reporter.note_step(second)
    assert reporter.steps == 3


def test_a_failure_of_ours_ends_the_counting_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> object:
        return 1 // 0

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor, monkeypatch.context() as job:
        supervisor.bind(os.path.relpath(tmp_path / "s"))
        supervisor.settimeout(within_s(10))
        job.setenv("COTENANT_SOCKET", os.path.relpath(tmp_path / "s"))
        hooks: list[Callable[..., None]] = []
        StepReporter(Loaders(), broken, Guard("counting steps")).begin(hooks.append)
        own = optimizer()
        for _ in range(5):
            hooks[0](own, (), {})
        failed, said = (json.loads(supervisor.recv(4096)) for _ in range(2))
        assert (failed["m"], failed["what"]) == ("failed", "hook")
        assert (said["m"], said["total"]) == ("length", None)
        assert said["note"].startswith("counting steps is off: cotenant's own code failed: ZeroDivisionError")
        supervisor.setblocking(False)
        with pytest.raises(BlockingIOError):
            supervisor.recv(1)
