"""How many rows a script's model gets at a time: where that is read from, and what says nothing."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from cotenant.checkpoint.progress.batches import BATCHES_SEEN, BatchRows, rows_of, rows_seen
from cotenant.checkpoint.progress.loops import frames_from
from cotenant.gradaccum.zerocode.first_batches import ROWS_SEEN

DATA = TensorDataset(torch.zeros(18, 1))
"""The last of its batches of 4 is smaller."""


class Buckets:
    """A sampler of the script's own: `batch_size` may mean anything."""

    batch_size = 4096

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0, 1], [2, 3, 4], [5])


class Bar:
    def __init__(self, iterable: Any) -> None:
        self.iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterable)


Bar.__name__ = "tqdm"
Shard = type("BatchSamplerShard", (BatchSampler,), {"__module__": "accelerate.data_loader"})


class Prepared:
    """As Accelerate wraps a loader."""

    def __init__(self, sampler: Any) -> None:
        self.base_dataloader = DataLoader(DATA, batch_sampler=sampler)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.base_dataloader)


def shard(size: int, **fields: object) -> Any:
    made = Shard(SequentialSampler(DATA), size, False)
    vars(made).update(fields)
    return made


class Step:
    """Stands for the optimizer: each call is a step."""

    def __init__(self, first: list[int]) -> None:
        self.seen: list[BatchRows | None] = []
        self.first = first

    def __call__(self) -> None:
        self.seen.append(rows_seen(frames_from(sys._getframe(1)), self.first))


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., list[BatchRows | None]]:
    def ran(source: str, *first: int) -> list[BatchRows | None]:
        file, step, module = tmp_path / "train.py", Step(list(first)), types.ModuleType("train")
        file.write_text(source)
        given = {"step": step, "loader": DataLoader(DATA, batch_size=4), "islice": islice, "tqdm": Bar}
        vars(module).update(given)
        exec(compile(source, str(file), "exec"), vars(module))
        return step.seen

    return ran


TOLD = {
    "a loader": "for x in loader:\n  step()",
    "enumerate": "for i, x in enumerate(loader):\n  step()",
    "tqdm": "for x in tqdm(loader):\n  step()",
    "a bar that was made before": "bar = tqdm(loader)\nfor x in bar:\n  step()",
    "islice": "for x in islice(loader, 0, 2):\n  step()",
    "all of them": "for i, x in enumerate(tqdm(islice(loader, 2))):\n  step()",
    "a loop that can be left": "for x in loader:\n  step()\n  break",
    "a function": "def one(x):\n  step()\nfor x in loader:\n  one(x)",
}


@pytest.mark.parametrize("source", TOLD.values(), ids=TOLD)
def test_the_loader_of_the_innermost_loop_tells(source: str, script: Callable[..., Any]) -> None:
    line = source[: source.index("for ")].count("\n") + 1
    seen = script(f"for epoch in range(2):\n  {source.replace(chr(10), chr(10) + '  ')}")
    assert set(seen) == {BatchRows(4, f"read from its loader, train.py line {line + 1}")}


SILENT = {
    "no loader": "for i in range(6):\n  step()",
    "an iterator": "batches = iter(loader)\nwhile next(batches, None) is not None:\n  step()",
    "a loop inside the loader's": "for x in loader:\n  for part in (1, 2):\n    step()",
    "a generator": "def take():\n  yield from loader\nfor x in take():\n  step()",
    "two loaders": "for x in zip(loader, loader):\n  step()",
}


@pytest.mark.parametrize("source", SILENT.values(), ids=SILENT)
def test_where_no_loader_tells_its_first_batches_do(source: str, script: Callable[..., Any]) -> None:
    assert set(script(source)) == {None}
    assert set(script(source, *[8] * BATCHES_SEEN)) == {BatchRows(8, "as its first 4 batches")}
    assert set(script(source, 8, 8, 5, 8)) == {BatchRows(None, "its first batches have 8, 8, 5, 8 rows")}


LOADERS = {
    "drop_last": (lambda: DataLoader(DATA, batch_size=4, drop_last=True), 4),
    "torch's batch sampler": (
        lambda: DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 3, False)),
        3,
    ),
    "a batch sampler of the script's own": (lambda: DataLoader(DATA, batch_sampler=Buckets()), None),
    "batches made by the dataset": (lambda: DataLoader(DATA, batch_size=None), None),
    "prepared by Accelerate": (lambda: Prepared(shard(6)), 6),
    "prepared, batches divided": (lambda: Prepared(shard(6, split_batches=True, num_processes=2)), 3),
    "a list": (lambda: [torch.zeros(4, 1)], None),
    "a class with a batch size": (lambda: types.SimpleNamespace(batch_size=4), None),
}


@pytest.mark.parametrize(("made", "rows"), LOADERS.values(), ids=LOADERS)
def test_a_loader_says_what_a_worker_gets(made: Callable[[], Any], rows: int | None) -> None:
    assert rows_of(made()) == rows


def test_the_hook_keeps_as_many_as_are_looked_at() -> None:
    assert ROWS_SEEN == BATCHES_SEEN
