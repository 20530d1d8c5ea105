"""A stop after any step of any epoch: all later batches come in the order of the run that was not stopped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

from cotenant.checkpoint import Session

EPOCHS: Final = 3
ROWS: Final = 15
EVEN: Final = TensorDataset(torch.arange(ROWS))
"""Five batches of three."""
ODD: Final = TensorDataset(torch.arange(ROWS - 1))
"""The last batch is smaller, or dropped."""


class Setting(NamedTuple):
    """A loader, and the generator that its order is drawn from; None: the one of the process."""

    loader: DataLoader[Any]
    order: torch.Generator | None = None


def on_loader(data: TensorDataset = EVEN, **more: Any) -> Setting:
    order = torch.Generator().manual_seed(5)
    return Setting(DataLoader(data, 3, shuffle=True, generator=order, **more), order)


def on_sampler(**more: Any) -> Setting:
    order = torch.Generator().manual_seed(5)
    return Setting(DataLoader(EVEN, 3, sampler=RandomSampler(EVEN, generator=order), **more), order)


def on_batch_sampler() -> Setting:
    order = torch.Generator().manual_seed(5)
    sampler = BatchSampler(WeightedRandomSampler([1.0] * ROWS, ROWS, generator=order), 3, drop_last=True)
    return Setting(DataLoader(EVEN, batch_sampler=sampler), order)


SETTINGS: Final[dict[str, Callable[[], Setting]]] = {
    "a generator on the loader": on_loader,
    "a generator on the sampler": on_sampler,
    "a generator on a batch sampler's sampler": on_batch_sampler,
    "the generator of the process": lambda: Setting(DataLoader(EVEN, 3, shuffle=True)),
    "a smaller last batch": lambda: on_loader(ODD),
    "a last batch that is dropped": lambda: on_loader(ODD, drop_last=True),
}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("COTENANT_") and "TEST" not in name]:
        monkeypatch.delenv(name)


class Run:
    """A script with an accumulation of its own, which is counted within each epoch."""

    def __init__(self, make: Callable[[], Setting], root: Path | None, skip: str = "auto") -> None:
        torch.manual_seed(7)
        self.setting, self.skip = make(), skip
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.state = Session(self.model, self.optimizer, root=root)
        self.seen: list[tuple[int, list[int]]] = []
        """Each batch, with its epoch."""

    def train(self, accumulation: int, stop_after: int = 0) -> list[Any]:
        """Returns where all generators stand at each epoch's end."""
        ends: list[Any] = []
        for epoch in self.state.epochs(EPOCHS):
            batches = self.state.batches(self.setting.loader, self.skip)
            for number, (rows,) in enumerate(batches, self.state.batch + 1):
                self.seen.append((epoch, rows.tolist()))
                self.model(rows.float()[:, None]).mean().backward()
                if number % accumulation == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    if self.state.step + 1 == stop_after:
                        assert self.state.save()
                        return ends
            ends.append((epoch, self.random_state()))
        return ends

    def random_state(self) -> list[int]:
        order = self.setting.order
        states = [torch.get_rng_state(), *([] if order is None else [order.get_state()])]
        return [int(each.to(torch.int64).mul(torch.arange(1, each.numel() + 1)).sum()) for each in states]


def check(make: Callable[[], Setting], accumulation: int, step: int, root: Path, skip: str = "auto") -> None:
    whole = Run(make, None)
    ends = whole.train(accumulation)
    stopped = Run(make, root)
    before = stopped.train(accumulation, step)
    assert stopped.state.step == step
    resumed = Run(make, root, skip)
    assert resumed.state.step == step
    after = resumed.train(accumulation)
    assert [*stopped.seen, *resumed.seen] == whole.seen
    assert [*before, *after] == ends
    for each in (stopped, resumed):
        each.state.close()


def steps_of(make: Callable[[], Setting], accumulation: int) -> range:
    return range(1, EPOCHS * (len(make().loader) // accumulation) + 1)


def cases() -> Iterator[tuple[str, int, int]]:
    for name, make in SETTINGS.items():
        for accumulation in (1, 2, 3):
            yield from ((name, accumulation, step) for step in steps_of(make, accumulation))


@pytest.mark.parametrize(("name", "accumulation", "step"), list(cases()))
def test_a_stop_after_any_step_changes_no_later_order(
    name: str, accumulation: int, step: int, tmp_path: Path
) -> None:
    check(SETTINGS[name], accumulation, step, tmp_path)


@pytest.mark.parametrize(
    ("accumulation", "last"), [(1, [8, 16]), (2, [4, 8]), (4, [2, 4]), (3, [None, None]), (8, [1, 2])]
)
def test_the_last_step_of_an_epoch_is_foreseen_where_its_last_batch_ends_a_step(
    accumulation: int, last: list[int | None]
) -> None:
    """Of eight batches."""
    run, ends = Run(lambda: on_loader(TensorDataset(torch.arange(24))), None), []
    for _ in run.state.epochs(2):
        for number, (rows,) in enumerate(run.state.batches(run.setting.loader), 1):
            run.model(rows.float()[:, None]).mean().backward()
            if number % accumulation == 0:
                run.optimizer.step()
        epoch = run.state._agreement.epoch
        ends.append(None if epoch is None else epoch[0])
    assert ends == last


@pytest.mark.parametrize("skip", ["indices", "replay"])
@pytest.mark.parametrize("step", [5, 6, 10])
def test_it_holds_with_worker_processes(step: int, skip: str, tmp_path: Path) -> None:
    check(lambda: on_loader(num_workers=2, prefetch_factor=1), 1, step, tmp_path, skip)
