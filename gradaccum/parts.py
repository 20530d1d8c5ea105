"""One batch that goes through in parts: with which weights, and when it is proven that nothing changes by it.

Rule: a proof comes before the first step in parts, and again at every occasion (`occasions.py`); where the
model returns rows, each step is watched besides (`watching.py`). What is found wrong ends the step before an
optimizer makes it.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Generator
from typing import Any, Final

import torch
import torch.distributed as dist

from cotenant.checkpoint.guard import AttemptEnds
from cotenant.gradaccum import aside, exactness, labels, occasions, schedule, watching
from cotenant.gradaccum.proof import NOT_CHECKED, BatchPart, Few, LossFailed, SplitProof, Weight
from cotenant.gradaccum.rows import cut, pick, rows_of, sizes_of

ROWS_MAX: Final = 16
"""Of a proof."""
ORDERS_MAX: Final = 4
"""In so many orders the rows of a proof are cut in two."""

LEFT: Final = "the loop over its parts was left before it was checked that its batches can be split"
NOT_SPLIT: Final = (
    'the loss does not split over rows as declared. Is it a sum, or a mean over tokens? Say loss="sum" or '
    '"token_mean". Does it compare rows with each other? Then it cannot be accumulated'
)
NOT_COMPUTED: Final = (
    "no loss was computed in the loop over split(), so it could not be checked that its batches can be split"
)

Tokens = Callable[..., Any]
Roots = list[tuple[str, Any]]
"""Objects, by the beginnings of their paths."""


class StepInParts:
    """One batch that is to go through in parts."""

    def __init__(
        self,
        model: Any,
        batch: tuple[Any, ...],
        loss: str,
        tokens: Tokens | None,
        code: tuple[Any, ...],
        *,
        is_ordered: bool,
    ) -> None:
        """code: what tells one loss of the model from another. is_ordered: the scheduler has decided on s,
        not the caller."""
        self.model, self.batch, self.loss, self._tokens = model, batch, loss, tokens
        self._key, self._is_ordered = (*code, loss), is_ordered
        self._rows = rows_of(batch)
        self.occasions = exactness.GUARD.known_of(model).setdefault(self._key, occasions.Occasions())
        if is_ordered:
            self.end_if(exactness.GUARD.refused)
        self.end_if(exactness.refusal(model))

    def parts(
        self, steps: int, reached: Roots, frame: types.FrameType | None = None
    ) -> Generator[BatchPart, None, None]:
        """The parts of the batch, and those of a proof where one is due.

        reached: what the code reaches that computes the loss. frame: the function whose loop that code is, if
        it is the script's. Its proof comes after the real parts, so that whoever counts them finds those
        first; what they have done is undone if it fails.
        """
        take = functools.partial(
            aside.ScriptState, [("model", self.model), *reached, ("batch", self.batch)], frame
        )
        real = weighted_parts(self.model, self.batch, self.loss, self._tokens, steps)
        groups = self._groups_if_due(steps, reached) if len(real) > 1 else []
        if groups and frame is None:
            yield from self._prove(groups, take)
            groups = []
        began = self._took(take) if groups else None
        unproven, watch = LEFT if groups else "", watching.OutputWatch(self.model)
        try:
            ways = yield from self._run(real, watch)
            if len(real) == 1:
                return
            unproven = LEFT if any(ways) else NOT_COMPUTED if groups else ""
            if not any(ways):
                return
            if groups:
                yield from self._prove(groups, take)
                exactness.GUARD.unproven = None
            yield from self._prove_new(ways, take)
            yield from self._watch(watch, real[0][1] if self.loss == "token_sum" else 1.0, frame)
            unproven = ""
        except (exactness.Refused, AttemptEnds):
            unproven = ""
            if began is not None:
                began.put_back()
            raise
        finally:
            if unproven:
                exactness.GUARD.known_of(self.model).pop(self._key, None)  # The next step is proven.
                exactness.GUARD.forbid_step(functools.partial(self.end_if, unproven))

    def _run(
        self, real: list[tuple[Any, Weight]], watch: watching.OutputWatch
    ) -> Generator[BatchPart, None, dict[int, Any]]:
        """The real parts. Returns them by the number of graph nodes that they made."""
        ways: dict[int, Any] = {}
        for position, (batch, weight) in enumerate(real):
            if position:
                schedule.PROGRESS.part_ended()
            part = BatchPart(batch, weight, "step")
            # DDP decides in the forward pass whether this backward exchanges gradients.
            with _without_exchange(self.model, position < len(real) - 1), watch.part(rows_of(batch)):
                yield from part.run()
            ways.setdefault(part.nodes, batch)
        return ways

    def _prove(
        self, groups: list[Few], take: Callable[[], aside.ScriptState]
    ) -> Generator[BatchPart, None, None]:
        """The parts of a proof. Raises what ends the step, if it fails."""
        proof = SplitProof(groups, take, NOT_SPLIT)
        try:
            reason = yield from proof.steps()
        except GeneratorExit:
            self._announce_left()
            raise
        self.occasions.parameters = proof.parameters
        for nodes in proof.nodes:
            reason = reason or self.occasions.note_way(nodes)
        self.end_if(reason)

    def _prove_new(
        self, ways: dict[int, Any], take: Callable[[], aside.ScriptState]
    ) -> Generator[BatchPart, None, None]:
        """The parts of a proof for each part whose loss has taken a way that no proof has taken."""
        for nodes, batch in ways.items():
            if nodes and self.occasions.is_new_way(nodes):
                rows = batch if rows_of(batch) > 1 else pick(self.batch, torch.arange(2))
                yield from self._prove([self._few(rows)], take)
                self.end_if(self.occasions.note_way(nodes))

    def _watch(
        self, watch: watching.OutputWatch, factor: Weight, frame: types.FrameType | None
    ) -> Generator[BatchPart, None, None]:
        """The whole batch once more, with the outputs of its parts in place of the model's."""
        from cotenant.checkpoint.picture import Picture, generator_roots

        if not watch.is_ready(self._rows):
            return
        variables, drawn = aside.StackVariables(frame), Picture(generator_roots())
        try:
            with watch.replay(self.occasions.parameters):
                yield BatchPart(self.batch, factor, "watch")
        except LossFailed:
            return  # A loss that needs more of the model than its outputs.
        except GeneratorExit:
            self._announce_left()
            raise
        finally:
            variables.put_back()
            is_noisy = bool(drawn.changes())
            drawn.put_back()
        if not is_noisy:  # Noise beside the model's is another for the whole batch.
            self.end_if(watch.difference())

    def _announce_left(self) -> None:
        """The loop was left while its body ran for a check. What is raised now, if anything, is the script's
        own error."""
        if self._is_ordered:
            exactness.announce(LEFT)

    def _groups_if_due(self, steps: int, reached: Roots) -> list[Few]:
        """Rows for a proof, in groups that are no larger than a part, but for the smallest parts."""
        is_due = self.occasions.is_due(self.model, reached)
        new = self.occasions.labels.new_rows(self.batch, self._rows)
        if not is_due and new is None:
            return []
        few = pick(self.batch, labels.choose_rows(self.batch, self._rows, ROWS_MAX, new))
        size = max(sizes_of(self._rows, steps))
        groups = [pick(few, torch.tensor(rows)) for rows in labels.groups_of(few, rows_of(few), size)]
        if self.loss == "token_mean" and self._tokens is not None:
            groups = [each for each in groups if int(self._tokens(*each))]  # Others have no mean.
        return [self._few(each) for each in groups]

    def _few(self, few: tuple[Any, ...]) -> Few:
        kind = "sum" if self.loss == "token_sum" else self.loss  # both sides lack the same factor
        rows = rows_of(few)
        first, ways = -(-rows // 3), []
        for order in labels.orders_of(few, rows, ORDERS_MAX):
            cuts = [pick(few, torch.tensor(part)) for part in (order[:first], order[first:])]
            ways.append(_weighted(cuts, [first, rows - first], kind, self._tokens))
        return Few(few, ways)

    def _took(self, take: Callable[[], aside.ScriptState]) -> aside.ScriptState | None:
        from cotenant.checkpoint.picture import PictureTooLarge

        try:
            return take()
        except PictureTooLarge as error:
            self.end_if(NOT_CHECKED.format(error))
        return None

    def end_if(self, reason: str | None) -> None:
        """Raises AttemptEnds, or Refused where the caller has asked for parts himself."""
        if reason is None:
            return
        exactness.GUARD.known_of(self.model).pop(self._key, None)  # Whoever tries again is measured again.
        if not self._is_ordered:
            raise exactness.refuse(reason)
        exactness.GUARD.refused = reason
        exactness.end_attempt(reason)


def _without_exchange(model: Any, is_wanted: bool) -> Any:
    return getattr(model, "no_sync", contextlib.nullcontext)() if is_wanted else contextlib.nullcontext()


def weighted_parts(
    model: Any, batch: tuple[Any, ...], loss: str, tokens: Tokens | None, steps: int
) -> list[tuple[tuple[Any, ...], Weight]]:
    """The micro-batches and the weights of their losses."""
    sizes = sizes_of(rows_of(batch), steps)
    parts, start = [], 0
    for size in sizes:
        parts.append(cut(batch, start, start + size))
        start += size
    if loss == "token_sum":
        weight = weight_of_all(model, batch, loss, tokens)
        return [(part, weight) for part in parts]
    return _weighted(parts, sizes, loss, tokens)


def _weighted(
    parts: list[Any], sizes: list[int], loss: str, tokens: Tokens | None
) -> list[tuple[Any, Weight]]:
    if loss == "mean":
        rows = sum(sizes)
        return [(part, size / rows if rows else 1.0) for part, size in zip(parts, sizes)]
    if loss == "sum":
        return [(part, 1.0) for part in parts]
    assert tokens is not None
    counts = [int(tokens(*part)) for part in parts]
    if not sum(counts):
        return [(parts[0], 1.0)]  # a mean over nothing: not a number, as without accumulation
    # A part without tokens has no mean and adds nothing: leave it out.
    return [(part, count / sum(counts)) for part, count in zip(parts, counts) if count]


def weight_of_all(model: Any, batch: tuple[Any, ...], loss: str, tokens: Tokens | None) -> Weight:
    """The factor for the loss of a whole batch: 1, unless it is a sum over tokens still to be normalised."""
    if loss != "token_sum":
        return 1.0
    assert tokens is not None
    counted = torch.as_tensor(tokens(*batch)).detach().to(torch.float64)
    world_size = 1
    if dist.is_available() and dist.is_initialized() and hasattr(model, "no_sync"):
        world_size = dist.get_world_size(model.process_group)
        if dist.get_backend(model.process_group) == "nccl":
            counted = counted.to(next(model.parameters()).device)
        counted = counted.clone()
        dist.all_reduce(counted, group=model.process_group)
    factor = world_size / counted.clamp(min=1.0)
    return factor if factor.is_cuda else factor.item()  # reading it back from a GPU would stall the step
