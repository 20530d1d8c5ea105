"""Frameworks that accumulate by themselves: their own knob, where turning it is exact.

Rule: a framework's knob averages over micro-batches. That equals the whole batch only if each micro-batch
counts as it should, so a knob is turned where the framework weighs by tokens itself, or where the user has
said that the loss is a mean over rows (`mean`) and all micro-batches are of one size; never with a module
that mixes rows (BatchNorm). Elsewhere the framework's modules are split like any other's, which is exact for
every loss, or left whole.

Rule: a signature is no proof. The steps of a turned knob are measured before they are made (`measuring.py`),
but for Accelerate's, whose loop is the script's: there the kind of loss rests on the user's word. With s = 1
nothing is read or changed.

* transformers: TrainingArguments.per_device_train_batch_size is divided by s, .gradient_accumulation_steps
  multiplied; if the model takes the number of items in a step (`**kwargs` in its forward), or with `mean`.
* accelerate: Accelerator.gradient_accumulation_steps, and smaller batches from the loader given to `prepare`;
  with `mean`, in scripts that use it already (more than 1).
* lightning: Trainer.accumulate_grad_batches, and smaller batches from the loader given to `fit`; with `mean`.

s is fixed for the whole attempt then: these frameworks read the knob when training begins. None of them is
imported here: each adapter begins when the script has imported the framework's module.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sized
from typing import Any, Final

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from cotenant.checkpoint.guard import SPLITTING, door
from cotenant.gradaccum import exactness, schedule
from cotenant.gradaccum.zerocode.measuring import MeasuredModule, MeasuredTrainer, refuse_random_numbers
from cotenant.gradaccum.zerocode.standing import AccumulationStanding

WhenImported = Callable[[str, Callable[[Any], None]], None]
_LIGHTNING: Final = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


LOADERS: Final = (
    "its loader has worker processes, and it would change which of them prepares a row, with which random "
    "numbers"
)


class NotSet(Exception):
    """The knob would not be exact here; the text says why."""


def watch(when_imported: WhenImported, standing: AccumulationStanding, mean: bool = False) -> None:
    """Begin with each framework once it is there. mean: the user says that the loss is a mean over rows."""
    when_imported("transformers.trainer", lambda module: _transformers(module.Trainer, standing, mean))
    if mean:
        when_imported("accelerate.accelerator", lambda module: _accelerate(module.Accelerator, standing))
        for name in _LIGHTNING:
            when_imported(name, lambda module: _lightning(module.Trainer, standing))


@door
def _turn(*what: Any) -> bool:
    """Turns a knob, if it is to be turned; and returns whether it was."""
    return bool(SPLITTING.run(_turn_now, *what))


def _turn_now(standing: AccumulationStanding, models: Iterable[Any], change: Callable[[int], None]) -> bool:
    """Turns a knob by what s is now, and keeps that s."""
    ordered = schedule.PROGRESS.steps_now()
    steps = standing.steps_saved or ordered
    if steps != ordered:
        standing.note(f"it goes on from a checkpoint that was saved with s = {steps}, and keeps that")
    if steps == 1 or standing.refused is not None:
        return False
    try:
        for reason in filter(None, map(exactness.refusal, models)):
            raise NotSet(reason)
        change(steps)
    except NotSet as error:
        standing.note(str(error))
        return False
    schedule.PROGRESS.schedule = schedule.Schedule(((0, steps),))
    schedule.PROGRESS.last_steps = steps
    standing.by_framework = True
    return True


def _transformers(trainer: Any, standing: AccumulationStanding, mean: bool) -> None:
    begin = trainer.__init__
    names = list(inspect.signature(begin).parameters)

    @door
    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(names[1:], args)), **kwargs}
        knob = 1

        def change(steps: int) -> None:
            nonlocal knob
            reason = _objection(trainer, given, steps, mean)
            if reason is not None:
                raise NotSet(reason)
            options = given["args"]
            knob = options.gradient_accumulation_steps
            options.per_device_train_batch_size //= steps
            options.gradient_accumulation_steps *= steps

        is_turned = _turn(standing, [given.get("model")], change)
        begin(self, *args, **kwargs)
        if is_turned and hasattr(self, "get_batch_samples"):
            exactness.prove_or_end(MeasuredTrainer, self, knob)

    trainer.__init__ = __init__


def _objection(trainer: Any, given: dict[str, Any], steps: int, mean: bool) -> str | None:
    """Why the knob of a Trainer that is made with these arguments would not be exact."""
    model, options, data = (given.get(name) for name in ("model", "args", "train_dataset"))
    if options is None or model is None:
        return "this Trainer was made without model or arguments: its batches stay whole"
    if hasattr(trainer, "training_step") and not hasattr(trainer, "get_batch_samples"):
        return "the steps of this version of transformers cannot be measured"
    if not mean and not _takes_items(model):
        return (
            f"{type(model).__name__}.forward does not take the number of items in a step, so the Trainer "
            "would average its losses over micro-batches: they may weigh differently"
        )
    size = options.per_device_train_batch_size
    if size % steps:
        return f"a batch of {size} does not divide into {steps} parts"
    if getattr(options, "dataloader_num_workers", 0):
        return LOADERS
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    if workers == 1 and not getattr(options, "dataloader_drop_last", False):
        return None
    if not isinstance(data, Sized) or len(data) % (size * workers):
        return "an epoch does not consist of whole batches, so it would have others in parts"
    return None


def _takes_items(model: Any) -> bool:
    """Finds out, as the Trainer itself does, whether a model's loss is normalised by the items of the whole
    step."""
    said = getattr(model, "accepts_loss_kwargs", None)
    if said is not None:
        return bool(said)
    parameters = inspect.signature(model.forward).parameters.values()
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)


def _accelerate(accelerator: Any, standing: AccumulationStanding) -> None:
    begin = accelerator.prepare

    @door
    @functools.wraps(begin)
    def prepare(self: Any, *objects: Any, **kwargs: Any) -> Any:
        loaders = [each for each in objects if isinstance(each, DataLoader)]
        if standing.by_framework or not loaders or self.gradient_accumulation_steps <= 1:
            return begin(self, *objects, **kwargs)
        smaller: dict[int, Any] = {}

        def change(steps: int) -> None:
            smaller.update({id(each): shrink_batches(each, steps) for each in loaders[:1]})
            self.gradient_accumulation_steps *= steps

        if _turn(standing, objects, change):
            for module in (each for each in objects if isinstance(each, torch.nn.Module)):
                exactness.prove_or_end(refuse_random_numbers, module)
        return begin(self, *(smaller.get(id(each), each) for each in objects), **kwargs)

    accelerator.prepare = prepare


def _lightning(trainer: Any, standing: AccumulationStanding) -> None:
    begin = trainer.fit

    @door
    @functools.wraps(begin)
    def fit(self: Any, model: Any, train_dataloaders: Any = None, *args: Any, **kwargs: Any) -> Any:
        loaders = [train_dataloaders]

        def change(steps: int) -> None:
            if not getattr(model, "automatic_optimization", True):
                raise NotSet("this module makes its optimizer steps itself")
            if not isinstance(train_dataloaders, DataLoader):
                raise NotSet("fit() was given no DataLoader, so its batches cannot be made smaller")
            loaders[0] = shrink_batches(train_dataloaders, steps)
            self.accumulate_grad_batches *= steps

        if _turn(standing, [model], change) and hasattr(model, "training_step"):
            exactness.prove_or_end(MeasuredModule, model, schedule.PROGRESS.last_steps)
        return begin(self, model, loaders[0], *args, **kwargs)

    trainer.fit = fit


def shrink_batches(loader: DataLoader[Any], steps: int) -> DataLoader[Any]:
    """Returns a loader of the same samples in the same order, in batches smaller by `steps`.

    Raises:
        NotSet: batches would not all be of one size.
    """
    size, sampler = loader.batch_size, loader.sampler
    rows = len(sampler) if isinstance(sampler, Sized) else None
    if size is None or isinstance(loader.dataset, IterableDataset) or rows is None:
        raise NotSet("the loader does not say the size of its batches")
    if size % steps:
        raise NotSet(f"a batch of {size} does not divide into {steps} parts")
    if loader.num_workers:
        raise NotSet(LOADERS)
    drop = loader.drop_last
    if not drop and rows % size:
        raise NotSet(f"the last batch of an epoch is smaller ({rows % size} of {size})")
    kept = rows // size * size
    return DataLoader(
        loader.dataset,
        batch_sampler=BatchSampler(_First(sampler, kept), size // steps, drop_last=False),
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        generator=loader.generator,
    )


class _First:
    """The first `count` draws of a sampler: what drop_last leaves of whole batches."""

    def __init__(self, sampler: Any, count: int) -> None:
        self._sampler = sampler
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Any:
        for position, index in enumerate(self._sampler):
            if position >= self._count:
                return
            yield index
