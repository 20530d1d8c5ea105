"""The split forward pass, and whether the loss uses its outputs only.

Rows go through the module part by part, and only one part's activations are kept.

Rule: the script must not be able to tell. It gets one output with all rows and calls backward once; each part
but the last is computed again when its turn comes. The last part's activations are kept, since its backward
pass is the first, so s parts cost (s - 1) / s of one more forward pass. DistributedDataParallel
around the module sees one forward and one backward pass and exchanges gradients once.

Rule: with a batch in parts, whatever a forward pass hands on besides its outputs (a loss kept in an
attribute, features in a global list) is of one part. Such a value has its node inside the forward pass; a
way from the loss to such a node that does not lead through an output is an error, and found before the
gradient is computed. A penalty on the parameters themselves is fine: their nodes are nobody's.

Sources: Chen et al., "Training Deep Nets with Sublinear Memory Cost", section 3 (recomputation); the idea of
splitting by samples instead of by layers is Gao et al., "Scaling Deep Contrastive Learning Batch Size under
Memory Limited Setup", section 3.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch
from torch.utils.checkpoint import checkpoint

from cotenant.gradaccum.exactness import refuse
from cotenant.gradaccum.rows import Call, join_outputs, sizes_of, tensors_of
from cotenant.gradaccum.schedule import PROGRESS

Forward = Callable[..., Any]
"""`forward(module, *args, **kwargs)`."""


class Depth(threading.local):
    """Whether this thread is inside a module that we called: what that calls in turn is no root."""

    inside = 0


DEPTH: Final = Depth()


@contextmanager
def inside() -> Iterator[None]:
    DEPTH.inside += 1
    try:
        yield
    finally:
        DEPTH.inside -= 1


def split_forward(forward: Forward, module: torch.nn.Module, call: Call, steps: int) -> Any:
    """`forward` on all rows of `call` in `steps` parts, as one output.

    Raises:
        Uncut: the output does not consist of rows.
    """
    sizes = sizes_of(call.rows, steps)
    outputs, start = [], 0
    for position, size in enumerate(sizes):
        if position:
            PROGRESS.part_ended()
        leaves = call.part(start, start + size)
        part = _Part(forward, module, call)
        if position == len(sizes) - 1:
            outputs.append(part(*leaves))
        else:
            # The leaves go in one by one: that is how the devices are found whose random state is kept.
            outputs.append(checkpoint(part, *leaves, use_reentrant=False))
        start += size
    return join_outputs(outputs, sizes)


class _Part:
    """A part of the batch on its way through the module; called again in the backward pass."""

    def __init__(self, forward: Forward, module: torch.nn.Module, call: Call) -> None:
        self._forward = forward
        self._module = module
        self._call = call
        self._versions: list[int] | None = None

    def __call__(self, *leaves: Any) -> Any:
        versions = _versions(self._module, leaves)
        if self._versions is None:
            self._versions = versions
        elif versions != self._versions:
            raise refuse(
                f"parameters or inputs of {type(self._module).__name__} were changed in place between its "
                "forward and its backward pass: a part of the batch that is computed again would differ. "
                "Submit this job with --accumulate never"
            )
        args, kwargs = self._call.arguments(leaves)
        with inside():
            return self._forward(self._module, *args, **kwargs)


def _versions(module: torch.nn.Module, leaves: tuple[Any, ...]) -> list[int]:
    """Changes in place raise these; a view shares its tensor's."""
    tensors = [*module.parameters(), *(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))]
    return [tensor._version for tensor in tensors if not tensor.is_inference()]


PASSES_MAX: Final = 256
"""Forward passes remembered at most, and half as many at least; a loss that reaches further back is not
followed."""

SIDE_CHANNEL: Final = (
    "the loss uses something that the forward pass of {0} leaves beside its outputs (a loss kept in an "
    "attribute, features kept by a hook): in parts it would be that of one part"
)
TWICE: Final = "a gradient is differentiated again (create_graph=True), which is not checked for exactness"


class _Pass(NamedTuple):
    """The numbers of the nodes that one forward pass made, `began` to before `ended`."""

    began: int
    ended: int
    outputs: frozenset[int]
    name: str
    ours: bool


class Audit:
    """Remembers which graph nodes belong to which forward pass, by their numbers; keeps no tensor alive."""

    def __init__(self) -> None:
        # Kept up to date per pass: every step asks, and most have one.
        self._passes: list[_Pass] = []
        self._starts: list[int] = []
        self._outputs: set[int] = set()

    def begin(self) -> int:
        return _number_now()

    def end(self, began: int, name: str, output: Any, *, ours: bool) -> None:
        """A forward pass that began at `began` has returned `output`. ours: in parts, or a check."""
        outputs = frozenset(
            int(each.grad_fn._sequence_nr()) for each in tensors_of(output) if each.grad_fn is not None
        )
        if len(self._passes) == PASSES_MAX:  # The older half goes.
            del self._passes[: PASSES_MAX // 2], self._starts[: PASSES_MAX // 2]
            self._outputs = set().union(*(each.outputs for each in self._passes))
        self._passes.append(_Pass(began, _number_now(), outputs, name, ours))
        self._starts.append(began)
        self._outputs |= outputs

    def twice(self) -> tuple[str, bool] | None:
        """A gradient that is differentiated again reaches into the forward passes; the audit does not follow
        it."""
        return (TWICE, any(each.ours for each in self._passes)) if self._passes else None

    def side_channel(self, losses: Iterable[torch.Tensor]) -> tuple[str, bool] | None:
        """What the losses use besides outputs, and whether their gradient is wrong by it; None if nothing."""
        if not self._passes:
            return None
        passes, starts, outputs = self._passes, self._starts, self._outputs
        waiting = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
        seen = set(waiting)
        found: _Pass | None = None
        while waiting:
            node = waiting.pop()
            number = int(node._sequence_nr())
            if number in outputs:
                continue
            at = bisect_right(starts, number) - 1
            if at >= 0 and number < passes[at].ended:
                found = found or passes[at]
                if passes[at].ours:
                    return SIDE_CHANNEL.format(passes[at].name), True
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return None if found is None else (SIDE_CHANNEL.format(found.name), False)


def _number_now() -> int:
    """The number that the next node of this thread's graph gets."""
    return int(torch._C._autograd._get_sequence_nr())
