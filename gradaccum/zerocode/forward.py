"""The forward pass in parts: rows go through the module part by part, and one part's activations are kept.

Rule: the script must not be able to tell. It gets one output with all rows and calls backward once; each part
but the last is computed again when its turn comes. The last part's activations are kept, since its backward
pass is the first, so s parts cost (s - 1) / s of one more forward pass. DistributedDataParallel around the
module sees one forward and one backward pass and exchanges gradients once.

Rule: what is computed again is shown to be what it was. Generators of random numbers stand where they stood,
modules and their modes are the same, and the outputs agree with those that the script got. Where they do not,
the attempt ends before the gradient is used.

Sources: Chen et al., "Training Deep Nets with Sublinear Memory Cost", section 3 (recomputation); the idea of
splitting by samples instead of by layers is Gao et al., "Scaling Deep Contrastive Learning Batch Size under
Memory Limited Setup", section 3.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from cotenant.checkpoint.guard import AttemptEnds, door
from cotenant.checkpoint.picture import generator_roots
from cotenant.checkpoint.training import rng
from cotenant.gradaccum import exactness, modules, rows, schedule

Forward = Callable[..., Any]
"""`forward(module, *args, **kwargs)`."""
AGREES: Final = 1e-4
"""Of the mean size of a part's outputs: kernels of a GPU that add in no fixed order differ by less."""


class Depth(threading.local):
    """Whether this thread is inside a module that we called: what that calls in turn is no root."""

    inside = 0


DEPTH: Final = Depth()


@door
@contextmanager
def inside() -> Iterator[None]:
    DEPTH.inside += 1
    try:
        yield
    finally:
        DEPTH.inside -= 1


def run_or_end(split: SplitForward, function: Callable[..., Any], *args: Any) -> Any:
    """Run a part of the script's forward pass. An error of its own is the script's; one of ours, in the
    middle of it, ends the attempt."""
    try:
        return function(*args)
    except AttemptEnds:
        raise
    except BaseException as error:
        if error is split.raised or not isinstance(error, Exception):
            raise
        exactness.end_attempt(f"its batch could not be split: {type(error).__name__}: {error}")


def is_in_backward() -> bool:
    """Whether autograd is calling: a module that is called now is called again, for what it did before."""
    return int(torch._C._current_graph_task_id()) != -1


def node_number() -> int:
    """The number that the next node of this thread's graph gets."""
    return int(torch._C._autograd._get_sequence_nr())


class SplitForward:
    """One forward pass of a module in parts, and its second look at each of them."""

    def __init__(
        self,
        forward: Forward,
        module: torch.nn.Module,
        call: rows.Call,
        steps: int,
        generators: Sequence[Any] = (),
    ) -> None:
        """`generators`: that the forward pass may draw from; they are set back for the second pass."""
        self._forward, self._module, self.whole_call, self.steps = forward, module, call, steps
        self._generators = generators
        self._others = [each for each in generator_roots() if not any(each[1] is g for g in generators)]
        self.draws_more = ""
        """The name of a generator that the forward pass has drawn from, and was not seen to before."""
        self.raised: BaseException | None = None
        """By the script's own forward pass."""
        self.nodes: set[int] = set()
        """How many nodes of a graph each part has made: another way through the code makes other nodes."""
        self.differs = ""
        self._unread: list[torch.Tensor] = []
        """Comparisons on a device, which nobody has waited for yet."""

    def run(self) -> Any:
        """All rows in parts, as one output.

        Raises:
            Uncut: the output does not consist of rows.
        """
        sizes = rows.sizes_of(self.whole_call.rows, self.steps)
        outputs, start = [], 0
        before = [rng.generator_state(each) for _, each in self._others]
        for position, size in enumerate(sizes):
            if position:
                schedule.PROGRESS.part_ended()
            leaves = self.whole_call.part(start, start + size)
            part = _Part(self)
            if position == len(sizes) - 1:
                outputs.append(part(*leaves))
            else:
                # The leaves go in one by one: that is how torch finds the devices that they are on.
                with set_checkpoint_early_stop(False):  # Else nobody would see all that is computed again.
                    outputs.append(checkpoint(part, *leaves, use_reentrant=False, preserve_rng_state=False))
            start += size
        after = [rng.generator_state(each) for _, each in self._others]
        changed = (name for (name, _), a, b in zip(self._others, before, after) if not _equal_states(a, b))
        self.draws_more = next(changed, "")
        return rows.join_outputs(outputs, sizes)

    def call(self, leaves: tuple[Any, ...]) -> Any:
        args, kwargs = self.whole_call.arguments(leaves)
        began = node_number()
        try:
            with inside():
                output = self._forward(self._module, *args, **kwargs)
        except BaseException as error:
            self.raised = error
            raise
        self.nodes.add(node_number() - began)
        return output

    def form(self) -> list[tuple[int, bool]]:
        return form_of(self._module)

    def versions(self, leaves: tuple[Any, ...]) -> list[int]:
        """Changes in place raise these; a view shares its tensor's."""
        tensors = [
            *modules.parameters_of(self._module),
            *(each for each in leaves if isinstance(each, torch.Tensor)),
        ]
        return [tensor._version for tensor in tensors if not tensor.is_inference()]

    def generator_states(self) -> list[Any]:
        return [rng.generator_state(each) for each in self._generators]

    @contextmanager
    def drawing_again(self, states: list[Any]) -> Iterator[None]:
        """Inside, the generators give the numbers that they gave after these states."""
        now = self.generator_states()
        self._set(states)
        try:
            yield
        finally:
            self._set(now)

    def _set(self, states: list[Any]) -> None:
        for each, (kind, state) in zip(self._generators, states):
            rng.set_generator(each, kind, state)

    def compare(self, first: list[torch.Tensor], again: list[torch.Tensor]) -> None:
        """Notes whether outputs that were computed again are what they were."""
        if len(first) != len(again):
            self.differs = "other outputs"
            return
        for before, now in zip(first, again):
            far = (before - now).abs() > AGREES * before[1].clamp(min=torch.finfo(before.dtype).tiny)
            self._unread.append(far.any() | (before.isfinite() != now.isfinite()).any())

    def difference(self) -> str:
        """What is not as it was in the first pass, once the backward pass is over; empty: all is."""
        for each in self._unread:
            if bool(each):
                self.differs = self.differs or "other values"
        self._unread.clear()
        return self.differs


def _equal_states(left: Any, right: Any) -> bool:
    if isinstance(left[1], torch.Tensor):
        return bool(torch.equal(left[1], right[1]))
    return bool(left == right)


def form_of(module: torch.nn.Module) -> list[tuple[int, bool]]:
    """The modules, by identity, and their modes."""
    return [(id(part.module), part.is_training) for part in modules.parts_of(module)]


SAMPLED: Final = 65_536
"""Entries of an output whose order is looked at."""


def _summary(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers that tell two outputs apart: the mean, the mean size, and a mean that depends on order."""
    flat = tensor.detach().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    if not flat.numel():
        return torch.zeros(3, dtype=torch.float64, device=flat.device)
    sample = flat[:: max(1, flat.numel() // SAMPLED)].double()
    turned = sample * torch.arange(sample.numel(), device=flat.device, dtype=torch.float64).cos()
    return torch.stack([flat.mean(dtype=torch.float64), flat.double().abs().mean(), turned.mean()])


class _Part:
    """A part of the batch on its way through the module; called again in the backward pass."""

    def __init__(self, split: SplitForward) -> None:
        self._split = split
        self._first: tuple[list[int], list[Any], list[tuple[int, bool]], list[torch.Tensor]] | None = None

    def __call__(self, *leaves: Any) -> Any:
        split = self._split
        if self._first is None:
            versions, states, form = split.versions(leaves), split.generator_states(), split.form()
            output = split.call(leaves)
            self._first = versions, states, form, [_summary(each) for each in rows.tensors_of(output)]
            return output
        return run_or_end(split, self._compute_again, leaves)

    def _compute_again(self, leaves: tuple[Any, ...]) -> Any:
        assert self._first is not None
        split = self._split
        versions, states, form, outputs = self._first
        if split.versions(leaves) != versions:
            exactness.end_attempt(
                "parameters or inputs of the model were changed in place between its forward and its "
                "backward pass: a part of the batch that is computed again would differ"
            )
        if split.form() != form:
            exactness.end_attempt(
                "the model's modules or modes changed between its forward and its backward pass"
            )
        with split.drawing_again(states):
            output = split.call(leaves)
        split.compare(outputs, [_summary(each) for each in rows.tensors_of(output)])
        return output
