"""A check leaves no trace: objects, variables, generators and output are as if it had never been made."""

from __future__ import annotations

import collections
import copy
import io
import logging
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cotenant import gradaccum
from cotenant.gradaccum import Refused, Schedule

SEEN: dict[str, int] = {"calls": 0}


class Remembering(nn.Module):
    """A forward pass that leaves traces of many kinds."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("scratch", torch.zeros(6), persistent=False)
        self.recent: collections.deque[float] = collections.deque([1.0, 2.0], maxlen=2)
        self.own = torch.Generator().manual_seed(3)
        self.calls = 0
        self.table = numpy.zeros(3)
        self.kept: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        self.scratch = x.detach()[0]
        self.recent.append(float(x.sum()))
        self.calls += 1
        self.table[0] += 1
        SEEN["calls"] += 1
        self.kept = torch.rand(2, generator=self.own)
        random.random()
        numpy.random.rand()
        return self.layer(x)  # type: ignore[no-any-return]


def traces_of(model: Remembering) -> tuple[Any, ...]:
    return (
        model.mean.tolist(),
        model.scratch.tolist(),
        list(model.recent),
        model.own.get_state().tolist(),
        model.calls,
        model.table.tolist(),
        model.kept,
        dict(SEEN),
        torch.get_rng_state().tolist(),
        random.getstate(),
        numpy.random.get_state()[1].tolist(),  # type: ignore[index]
        [None if p.grad is None else p.grad.tolist() for p in model.parameters()],
        [p.tolist() for p in model.parameters()],
        model.training,
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
    )


def rows(count: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def refuse_backward(model: nn.Module) -> None:
    gradaccum.backward(model, lambda x, y: functional.cross_entropy(model(x), y), *rows(), steps=3)


def refuse_split(model: nn.Module) -> None:
    for x, y, weight in gradaccum.split(model, *rows(), steps=3):
        (functional.cross_entropy(model(x), y) * weight).backward()


@pytest.mark.parametrize("refused", [refuse_backward, refuse_split])
def test_what_the_forward_pass_has_done_is_undone(refused: Callable[[nn.Module], None]) -> None:
    model = Remembering()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    before = traces_of(model)
    with pytest.raises(Refused, match="random numbers"):
        refused(model)
    assert traces_of(model) == before


class Counting(nn.Module):
    """A forward pass that counts its rows, and draws nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.rows: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.rows.append(len(x))
        return self.layer(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("refused", [refuse_backward, refuse_split])
def test_a_forward_pass_with_a_memory_is_refused_and_its_memory_is_as_it_was(
    refused: Callable[[nn.Module], None],
) -> None:
    model = Counting()
    with pytest.raises(Refused, match=r"changes rows: in parts it would change more often"):
        refused(model)
    assert model.rows == []


def test_a_whole_batch_is_a_plain_forward_pass() -> None:
    model = Remembering()
    plain = copy.deepcopy(model)
    random.seed(5)
    gradaccum.backward(model, lambda x, y: functional.cross_entropy(model(x), y), *rows())
    for x, y, weight in gradaccum.split(model, *rows()):
        (functional.cross_entropy(model(x), y) * weight).backward()
    for _ in range(2):
        x, y = rows()
        functional.cross_entropy(plain(x), y).backward()  # type: ignore[no-untyped-call]
    assert (model.calls, model.mean.tolist(), list(model.recent)) == (
        2,
        plain.mean.tolist(),
        list(plain.recent),
    )
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


def test_it_is_measured_at_steps_1_2_4_8_and_where_something_is_new() -> None:
    model = nn.Linear(6, 3)
    told = io.BytesIO()  # What is written to files is out of a picture's reach.

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        told.write(b".")
        return functional.cross_entropy(model(x), y)

    x, y = rows()
    model.eval()
    measured = []
    for step in range(1, 20):
        before = told.tell()
        if step == 7:
            model.train()
        labels = y.clamp(max=1) if step < 11 else y
        gradaccum.backward(model, loss_of, x, labels, steps=3)
        # Three parts, and the loss once more on their outputs.
        measured += [step] if told.tell() - before > 4 else []
    assert measured == [1, 2, 4, 7, 8, 11, 16]


class Printing:
    """A loop as scripts have it, in a function: it prints, it sums up, it keeps the last loss."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def step(self, steps: int) -> tuple[list[int], float]:
        total, numbers, loss = 0.0, list[int](), None
        x, y = rows()
        for number, (part_x, part_y, weight) in enumerate(gradaccum.split(self.model, x, y, steps=steps)):
            loss = functional.cross_entropy(self.model(part_x), part_y) * weight
            loss.backward()
            total += loss.item()
            numbers = [*numbers, number]
            print(f"part {number}")
            logging.getLogger("train").warning("part %d", number)
        assert loss is not None
        return numbers, total


def test_variables_and_output_of_a_loop_are_those_of_its_real_parts(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(6, 3)
    numbers, total = Printing(model).step(3)
    assert numbers == [0, 1, 2]
    x, y = rows()
    assert total == pytest.approx(functional.cross_entropy(model(x), y).item())
    assert capsys.readouterr().out == "part 0\npart 1\npart 2\n"
    assert [each.message for each in caplog.records] == ["part 0", "part 1", "part 2"]


MODULE_LEVEL = """
import torch
from torch import nn
from cotenant import gradaccum

torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
total, n = 0.0, 0
for step in range(5):
    x, y = torch.randn(12, 6), torch.randint(0, 3, (12,))
    optimizer.zero_grad()
    for x_part, y_part, weight in gradaccum.split(model, x, y, steps=4):
        loss = nn.functional.cross_entropy(model(x_part), y_part) * weight
        loss.backward()
        total += loss.item()
        n += 1
        print("part", n)
    optimizer.step()
print(f"{total:.6f} {n}")
"""


def test_the_same_holds_outside_of_functions(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(MODULE_LEVEL)
    plain = tmp_path / "plain.py"
    plain.write_text(MODULE_LEVEL.replace("gradaccum.split(model, x, y, steps=4)", "[(x, y, 1.0)]"))
    split, whole = (
        subprocess.run([sys.executable, each], capture_output=True, text=True, check=True).stdout.splitlines()
        for each in (script, plain)
    )
    assert split[:-1] == [f"part {n}" for n in range(1, 21)]
    assert split[-1].split()[0] == whole[-1].split()[0], "the loss of whole batches"


def test_parts_that_are_not_computed_in_the_loop_make_no_step() -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.tolist()
    for x, y, weight in list(gradaccum.split(model, *rows(), steps=3)):
        (functional.cross_entropy(model(x), y) * weight).backward()
    with pytest.raises(Refused, match="no loss was computed in the loop"):
        optimizer.step()
    assert model.weight.tolist() == before


def test_a_loop_that_is_left_before_the_check_makes_no_step() -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y, weight in gradaccum.split(model, *rows(), steps=3):
        (functional.cross_entropy(model(x), y) * weight).backward()
        break
    with pytest.raises(Refused, match="was left before"):
        optimizer.step()


def test_an_error_of_the_loops_own_comes_out_and_nothing_is_left_of_a_check() -> None:
    model = nn.Linear(6, 3)
    state = torch.get_rng_state()

    def step() -> None:
        for x, y, weight in gradaccum.split(model, *rows(), steps=3):
            (functional.cross_entropy(model(x.view(4, 6)), y) * weight).backward()

    with pytest.raises(RuntimeError, match="shape"):
        step()
    assert torch.equal(torch.get_rng_state(), state)
    assert not model._forward_hooks
    print("output is back")
    assert "write" not in vars(sys.stdout)


def test_a_loss_that_fails_on_a_few_rows_is_refused_with_its_error() -> None:
    model = nn.Linear(6, 3)
    with pytest.raises(Refused, match=r"could not be checked on a few rows of a batch: RuntimeError: shape"):
        gradaccum.backward(
            model, lambda x, y: functional.cross_entropy(model(x.view(6, 6)), y), *rows(), steps=2
        )


def test_an_ordered_split_that_is_refused_is_refused_again() -> None:
    gradaccum.configure(Schedule(((0, 3),)))
    model = nn.Linear(6, 3)
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            gradaccum.backward(
                model, lambda x, y: functional.cross_entropy(model(x), y, reduction="sum"), *rows()
            )
        assert ended.value.code == 1
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_locals_has_returned_keeps_what_was_in_it() -> None:
    model = nn.Linear(6, 3)

    def step(rate: float = 0.1) -> dict[str, Any]:
        given = locals()
        x, y = rows()
        for part_x, part_y, weight in gradaccum.split(model, x, y, steps=3):
            (functional.cross_entropy(model(part_x), part_y) * weight).backward()
        assert rate == 0.1
        return given

    given = step()
    assert (given["rate"], given["model"]) == (0.1, model)
