"""Frameworks that accumulate by themselves: their own knob, where turning it is exact.

Rule: a framework's knob averages over micro-batches. That equals the whole batch only if each micro-batch
counts as it should, so a knob is turned where the framework weighs by tokens itself, or where the user has
said that the loss is a mean over rows (`mean`) and all micro-batches are of one size; never with a module
that mixes rows (BatchNorm). Elsewhere the framework's modules are split like any other's, which is exact for
every loss, or left whole.

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
from collections.abc import Callable, Iterable, Sized
from typing import Any, Final

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from cotenant.gradaccum import exactness
from cotenant.gradaccum.schedule import PROGRESS, Schedule
from cotenant.gradaccum.zerocode.standing import AccumulationStanding

WhenImported = Callable[[str, Callable[[Any], None]], None]
_LIGHTNING: Final = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


class NotSet(Exception):
    """The knob would not be exact here; the text says why."""


def watch(when_imported: WhenImported, standing: AccumulationStanding, mean: bool = False) -> None:
    """Begin with each framework once it is there. mean: the user says that the loss is a mean over rows."""
    when_imported("transformers.trainer", lambda module: _transformers(module.Trainer, standing, mean))
    if mean:
        when_imported("accelerate.accelerator", lambda module: _accelerate(module.Accelerator, standing))
        for name in _LIGHTNING:
            when_imported(name, lambda module: _lightning(module.Trainer, standing))


def _set_steps(standing: AccumulationStanding, models: Iterable[Any], change: Callable[[int], None]) -> None:
    """Turn a knob by what s is now, and keep that s."""
    steps = PROGRESS.steps_now()
    if standing.refused is not None:
        return
    try:
        _check_modules(models)
        change(steps)
    except NotSet as error:
        standing.note(str(error))
        return
    PROGRESS.schedule = Schedule(((0, steps),))
    PROGRESS.last_steps = steps
    standing.by_framework = True


def _check_modules(models: Iterable[Any]) -> None:
    """Raises Unturned for a module whose rows depend on each other."""
    for reason in filter(None, map(exactness.refusal, models)):
        raise NotSet(reason)


def _transformers(trainer: Any, standing: AccumulationStanding, mean: bool) -> None:
    begin = trainer.__init__
    names = list(inspect.signature(begin).parameters)

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(names[1:], args)), **kwargs}
        model, options = given.get("model"), given.get("args")

        def change(steps: int) -> None:
            if options is None or model is None:
                raise NotSet("this Trainer was made without model or arguments: its batches stay whole")
            if not mean and not _takes_items(model):
                raise NotSet(
                    f"{type(model).__name__}.forward does not take the number of items in a step, so the "
                    "Trainer would average its losses over micro-batches: they may weigh differently"
                )
            size = options.per_device_train_batch_size
            if size % steps:
                raise NotSet(f"a batch of {size} does not divide into {steps} parts")
            options.per_device_train_batch_size = size // steps
            options.gradient_accumulation_steps *= steps

        _set_steps(standing, [model], change)
        begin(self, *args, **kwargs)

    trainer.__init__ = __init__


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

    @functools.wraps(begin)
    def prepare(self: Any, *objects: Any, **kwargs: Any) -> Any:
        loaders = [each for each in objects if isinstance(each, DataLoader)]
        if standing.by_framework or not loaders or self.gradient_accumulation_steps <= 1:
            return begin(self, *objects, **kwargs)
        smaller: dict[int, Any] = {}

        def change(steps: int) -> None:
            smaller.update({id(each): shrink_batches(each, steps) for each in loaders[:1]})
            self.gradient_accumulation_steps *= steps

        _set_steps(standing, objects, change)
        return begin(self, *(smaller.get(id(each), each) for each in objects), **kwargs)

    accelerator.prepare = prepare


def _lightning(trainer: Any, standing: AccumulationStanding) -> None:
    begin = trainer.fit

    @functools.wraps(begin)
    def fit(self: Any, model: Any, train_dataloaders: Any = None, *args: Any, **kwargs: Any) -> Any:
        loaders = [train_dataloaders]

        def change(steps: int) -> None:
            if not isinstance(train_dataloaders, DataLoader):
                raise NotSet("fit() was given no DataLoader, so its batches cannot be made smaller")
            loaders[0] = shrink_batches(train_dataloaders, steps)
            self.accumulate_grad_batches *= steps

        _set_steps(standing, [model], change)
        return begin(self, model, loaders[0], *args, **kwargs)

    trainer.fit = fit


def shrink_batches(loader: DataLoader[Any], steps: int) -> DataLoader[Any]:
    """Returns a loader of the same samples in the same order, in batches smaller by `steps`.

    Raises:
        NotSet: batches would not all be of one size.
    """
    if steps == 1:
        return loader
    size, sampler = loader.batch_size, loader.sampler
    rows = len(sampler) if isinstance(sampler, Sized) else None
    if size is None or isinstance(loader.dataset, IterableDataset) or rows is None:
        raise NotSet("the loader does not say the size of its batches")
    if size % steps:
        raise NotSet(f"a batch of {size} does not divide into {steps} parts")
    drop = loader.drop_last
    if not drop and rows % size:
        raise NotSet(f"the last batch of an epoch is smaller ({rows % size} of {size})")
    kept = rows // size * size
    return DataLoader(
        loader.dataset,
        batch_sampler=BatchSampler(_First(sampler, kept), size // steps, drop_last=False),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
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
