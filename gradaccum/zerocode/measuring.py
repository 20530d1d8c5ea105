"""The steps of a framework whose knob was turned: measured on rows of their own, before they are made.

Rule: the framework's own code weighs the losses. Rows that one micro-batch may hold go through it at once and
in parts, as if the knob stood at one and at so many; the gradients must agree (`proof.py`). At a difference
the attempt ends before its step, and the job goes on whole. It is measured again after 1, 2, 4, 8, ... steps.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from cotenant.checkpoint.guard import door
from cotenant.gradaccum import aside, exactness, labels, occasions, schedule
from cotenant.gradaccum.proof import NOT_CHECKED, RANDOM, BatchPart, Few, LossFailed, SplitProof, is_generator
from cotenant.gradaccum.rows import pick, rows_of

ORDERS_MAX: Final = 3

WEIGHTS: Final = "as the framework weighs them, the losses of micro-batches are not that of the whole batch"
UNEVEN: Final = (
    "micro-batches of this step have {0} rows, and its loss is right only for micro-batches of one size: it "
    "averages over them"
)

INCOMPLETE: Final = (
    "the last whole batch of this step is smaller than the others and counts as much as they do, and its "
    "micro-batches would not"
)


def run_proof(proof: SplitProof, run: Callable[[BatchPart], None]) -> str | None:
    """Returns why a proof has failed. `run` computes the gradient of a part."""
    steps = proof.steps()
    try:
        part = next(steps)
        while True:
            try:
                run(part)
            except Exception as error:  # noqa: BLE001  # Whatever it meets is a reason to refuse.
                failed = LossFailed()
                failed.__cause__ = error
                part = steps.throw(failed)
            else:
                part = next(steps)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class MeasuredModule:
    """A LightningModule, whose Trainer's knob has been turned to so many micro-batches of one size."""

    def __init__(self, module: Any, steps: int) -> None:
        self._module, self._steps = module, steps
        self._own = module.training_step
        self._calls = 0

        @door
        @functools.wraps(self._own)
        def training_step(batch: Any, *args: Any, **kwargs: Any) -> Any:
            exactness.prove_or_end(self._begin, batch, args, kwargs)
            return self._own(batch, *args, **kwargs)

        module.training_step = training_step

    def _begin(self, batch: Any, args: Any, kwargs: Any) -> None:
        """The first micro-batch of some steps is measured before it is used."""
        step, part = divmod(self._calls, self._steps)
        self._calls += 1
        if not part and occasions.is_power_of_two(step + 1):
            reason = self._measure(batch, args, kwargs)
            if reason is not None:
                exactness.end_attempt(reason)

    def _measure(self, batch: Any, args: Any, kwargs: Any) -> str | None:
        rows = rows_of((batch,)) // 2 * 2
        if not rows:
            return NOT_CHECKED.format("a micro-batch has only one")
        few = pick(batch, labels.choose_rows(batch, rows_of((batch,)), rows))
        ways = [
            [(pick(few, torch.tensor(part)), 0.5) for part in (order[: rows // 2], order[rows // 2 :])]
            for order in labels.orders_of(few, rows, ORDERS_MAX)
        ]

        def run(part: BatchPart) -> None:
            loss = self._own(part.batch, *args, **kwargs)
            (loss if isinstance(loss, torch.Tensor) else loss["loss"]).mul(part.weight).backward()

        take = functools.partial(aside.ScriptState, [("model", self._module), ("batch", batch)], None)
        # What the module logs, the Trainer keeps.
        return run_proof(SplitProof([Few(few, ways)], take, WEIGHTS, spared="model._trainer"), run)


def refuse_random_numbers(module: torch.nn.Module) -> None:
    """Ends the attempt when a forward pass in training mode draws random numbers."""
    from cotenant.checkpoint.picture import Picture, generator_roots

    begun: list[Any] = []

    def look() -> None:
        begun.append(Picture(generator_roots()))

    def compare() -> None:
        changes = begun.pop().changes()
        if changes and module.training:
            if not exactness.allows_equivalent():
                exactness.end_attempt(RANDOM.format(changes[0].path))
            schedule.PROGRESS.is_equivalent = True

    @door
    def enter(*_: Any) -> None:
        exactness.prove_or_end(look)

    @door
    def leave(*_: Any) -> None:
        exactness.prove_or_end(compare)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave)


class MeasuredTrainer:
    """Hugging Face's Trainer, whose knob has been turned."""

    def __init__(self, trainer: Any, knob: int) -> None:
        """knob: where it stood before."""
        self._trainer, self._knob = trainer, knob
        self._fetch, self._collate = trainer.get_batch_samples, trainer.data_collator
        self._samples: collections.deque[list[Any]] = collections.deque()
        self._steps = 0
        self._is_average = False
        """Micro-batches count alike, whatever is in them."""
        trainer.get_batch_samples, trainer.data_collator = self.get_batch_samples, self.collate

    @door
    def collate(self, samples: list[Any]) -> Any:
        exactness.prove_or_end(self._keep, samples)
        return self._collate(samples)

    def _keep(self, samples: list[Any]) -> None:
        self._samples.append(samples)
        while len(self._samples) > self._trainer.args.gradient_accumulation_steps + 1:
            self._samples.popleft()

    @door
    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """The micro-batches of the next step, in the Trainer's place."""
        batches, items = self._fetch(*args, **kwargs)
        exactness.prove_or_end(self._check, batches, args[2:])
        return batches, items

    def _check(self, batches: Any, more: tuple[Any, ...]) -> None:
        self._steps += 1
        if occasions.is_power_of_two(self._steps) and batches:
            reason = self._measure(more)
            if reason is not None:
                exactness.end_attempt(reason)
        if self._is_average:
            sizes = sorted({rows_of((each,)) for each in batches})
            if len(sizes) > 1:
                exactness.end_attempt(UNEVEN.format(" and ".join(map(str, sizes))))
            if self._knob > 1 and len(batches) % (
                self._trainer.args.gradient_accumulation_steps // self._knob
            ):
                exactness.end_attempt(INCOMPLETE)

    def _measure(self, more: tuple[Any, ...]) -> str | None:
        """more: what the framework gives to `get_batch_samples` besides batches and their number."""
        take = functools.partial(aside.ScriptState, [("trainer", self._trainer)], None)
        samples = [sample for each in self._samples for sample in each]
        count = min(len(samples), max(labels.GROUP_MIN, len(self._samples[-1])))
        if count < 2:
            return NOT_CHECKED.format("there is only one")
        before = take()
        try:
            batch = self._collate(samples)
            rows = labels.choose_rows(batch, len(samples), count).tolist()
            orders = labels.orders_of(pick(batch, torch.tensor(rows)), count, ORDERS_MAX)
            drawn = next((each.path for each in before.changes() if is_generator(each)), None)
        finally:
            before.put_back()
        if drawn is not None and not exactness.allows_equivalent():
            return RANDOM.format(drawn)
        schedule.PROGRESS.is_equivalent |= drawn is not None
        chosen = [samples[row] for row in rows]
        reason = self._prove(chosen, orders, -(-count // 3), take, more)
        self._is_average = reason is not None
        if self._is_average:
            reason = self._prove(chosen[: count // 2 * 2], orders, count // 2, take, more)
        return reason

    def _prove(
        self, samples: list[Any], orders: list[list[int]], first: int, take: Any, more: tuple[Any, ...]
    ) -> str | None:
        """Whether the samples at once are the same in two parts, the first of which has so many."""
        ways = []
        for order in orders:
            kept = [samples[row] for row in order if row < len(samples)]
            parts = [kept[:first], kept[first:]]
            ways.append([((number, parts), 1.0) for number in range(len(parts))])
        proof = SplitProof([Few((0, [samples]), ways)], take, WEIGHTS)
        return run_proof(proof, functools.partial(self._run, more))

    def _run(self, more: tuple[Any, ...], part: BatchPart) -> None:
        """What the Trainer does with one of the micro-batches that make up a step."""
        trainer, (number, parts) = self._trainer, part.batch
        batches = [self._collate(each) for each in parts]
        _, items = self._fetch(iter(batches), len(batches), *more)
        knob = self._knob * len(parts)
        trainer.args.gradient_accumulation_steps = trainer.current_gradient_accumulation_steps = knob
        trainer.training_step(trainer.model_wrapped, batches[number], items)
