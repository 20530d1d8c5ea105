"""Frameworks' own knobs, against stand-ins with the same public surface.

What is shown is what the adapters do to that surface; that real frameworks obey it is `test_frameworks.py`.
"""

from __future__ import annotations

import atexit
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cotenant.gradaccum import PROGRESS, Schedule
from cotenant.gradaccum.zerocode import AccumulationStanding, adapters
from cotenant.gradaccum.zerocode.patches import Patches


class Frameworks:
    """A fresh set of stand-ins, "imported" when the adapters ask for them."""

    def __init__(self) -> None:
        class HuggingFaceTrainer:
            def __init__(self, model: Any = None, args: Any = None) -> None:
                self.size, self.steps = args.per_device_train_batch_size, args.gradient_accumulation_steps

        class Accelerator:
            def __init__(self, gradient_accumulation_steps: int = 1) -> None:
                self.gradient_accumulation_steps = gradient_accumulation_steps

            def prepare(self, *objects: Any) -> Any:
                return objects

        class LightningTrainer:
            def __init__(self, accumulate_grad_batches: int = 1) -> None:
                self.accumulate_grad_batches = accumulate_grad_batches

            def fit(self, model: Any, train_dataloaders: Any = None) -> Any:
                return train_dataloaders

        self.modules = {
            "transformers.trainer": SimpleNamespace(Trainer=HuggingFaceTrainer),
            "accelerate.accelerator": SimpleNamespace(Accelerator=Accelerator),
            "lightning.pytorch.trainer.trainer": SimpleNamespace(Trainer=LightningTrainer),
        }
        self.transformers, self.accelerate, self.lightning = (
            getattr(module, name)
            for module, name in zip(self.modules.values(), ("Trainer", "Accelerator", "Trainer"), strict=True)
        )

    def when_imported(self, name: str, callback: Any) -> None:
        if name in self.modules:
            callback(self.modules[name])


class Language(nn.Linear):
    def forward(self, input: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return super().forward(input)


def watched(mean: bool) -> tuple[Frameworks, AccumulationStanding]:
    PROGRESS.schedule = Schedule(((0, 4), (100, 8)))
    frameworks, standing = Frameworks(), AccumulationStanding(lambda: None)
    adapters.watch(frameworks.when_imported, standing, mean=mean)
    return frameworks, standing


def options(size: int = 32, steps: int = 2) -> SimpleNamespace:
    return SimpleNamespace(per_device_train_batch_size=size, gradient_accumulation_steps=steps)


def loader(rows: int = 64, **kwargs: Any) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(3)
    return DataLoader(
        TensorDataset(torch.arange(rows)), batch_size=16, shuffle=True, generator=generator, **kwargs
    )


def test_a_trainer_that_weighs_by_tokens_gets_its_own_knob() -> None:
    frameworks, standing = watched(mean=False)
    trainer = frameworks.transformers(Language(2, 2), args=options())
    assert (trainer.size, trainer.steps) == (8, 8)
    assert standing.by_framework
    assert standing.steps_now() == 1, "what the framework splits is not split again"
    assert [PROGRESS.steps_at(step) for step in (0, 500)] == [4, 4], "it reads its knob only once"


@pytest.mark.parametrize(
    ("model", "size", "mean"),
    [(nn.Linear(2, 2), 32, False), (Language(2, 2), 30, True)],
    ids=["mean of means", "30 rows in 4 parts"],
)
def test_a_trainer_whose_knob_would_not_be_exact_is_left_alone(model: Any, size: int, mean: bool) -> None:
    frameworks, standing = watched(mean)
    trainer = frameworks.transformers(model, args=options(size))
    assert (trainer.size, trainer.steps) == (size, 2)
    assert not standing.by_framework
    assert standing.refused is None, "its modules may still be split"


def test_no_knob_is_turned_for_a_model_that_mixes_the_rows_of_a_batch() -> None:
    frameworks, standing = watched(mean=True)
    mixing = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    trainer = frameworks.transformers(mixing, args=options())
    assert (trainer.size, trainer.steps) == (32, 2)
    given = loader()
    assert frameworks.accelerate(2).prepare(mixing, given) == (mixing, given)
    assert frameworks.lightning().fit(mixing, given) is given
    assert not standing.by_framework


def test_modules_are_left_alone_once_a_framework_splits_the_batches() -> None:
    PROGRESS.schedule = Schedule(((0, 4),))
    standing = AccumulationStanding(lambda: None)
    standing.by_framework = True
    patches = Patches(standing)
    patches.enter()
    try:

        class Loss(nn.Linear):
            def forward(self, input: torch.Tensor) -> torch.Tensor:
                return super().forward(input).sum()

        Loss(2, 2)(torch.ones(8, 2)).backward()
    finally:
        patches._replaced.restore()
        atexit.unregister(patches._prove_at_exit)
    assert standing.refused is None, "what one forward pass returns is the framework's business"


def test_accelerate_and_lightning_are_turned_only_where_the_user_vouches_for_a_mean() -> None:
    frameworks, standing = watched(mean=False)
    given = loader()
    assert frameworks.accelerate(2).prepare(given) == (given,)
    assert frameworks.lightning().fit(None, given) is given
    assert not standing.by_framework


def test_accelerate_gets_smaller_batches_and_more_steps() -> None:
    frameworks, standing = watched(mean=True)
    accelerator = frameworks.accelerate(gradient_accumulation_steps=2)
    model, smaller = accelerator.prepare("model", loader())
    assert (model, accelerator.gradient_accumulation_steps) == ("model", 8)
    whole = [rows.tolist() for (rows,) in loader()]
    parts = [rows.tolist() for (rows,) in smaller]
    assert [len(part) for part in parts] == [4] * 16
    assert [row for part in parts for row in part] == [row for batch in whole for row in batch], (
        "the same samples, in order"
    )
    assert standing.by_framework


def test_a_script_that_does_not_use_accelerates_knob_keeps_its_loader() -> None:
    frameworks, standing = watched(mean=True)
    given = loader()
    assert frameworks.accelerate(1).prepare(given) == (given,)
    assert not standing.by_framework


def test_lightning_gets_smaller_batches_and_more_steps() -> None:
    frameworks, standing = watched(mean=True)
    trainer = frameworks.lightning(accumulate_grad_batches=1)
    smaller = trainer.fit("model", train_dataloaders=loader())
    assert (trainer.accumulate_grad_batches, len(smaller)) == (4, 16)
    assert standing.by_framework


@pytest.mark.parametrize("rows", [70, 63])
def test_a_smaller_last_batch_would_weigh_too_much(rows: int) -> None:
    with pytest.raises(adapters.NotSet, match="the last batch of an epoch is smaller"):
        adapters.shrink_batches(loader(rows), 4)
    kept = adapters.shrink_batches(loader(rows, drop_last=True), 4)
    assert len(kept) == rows // 16 * 4
    assert [r.tolist() for (r,) in kept] == [
        part.tolist() for (rows_,) in loader(rows, drop_last=True) for part in rows_.split(4)
    ]
