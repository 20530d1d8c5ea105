"""The split forward pass: rows go through the module part by part, and only one part's activations are kept.

Rule: the script must not be able to tell. It gets one output with all rows and calls backward once; each part
but the last is computed again when its turn comes. The last part's activations are kept, since its backward
pass is the first, so s parts cost (s - 1) / s of one more forward pass. DistributedDataParallel
around the module sees one forward and one backward pass and exchanges gradients once.

Sources: Chen et al., "Training Deep Nets with Sublinear Memory Cost", section 3 (recomputation); the idea of
splitting by samples instead of by layers is Gao et al., "Scaling Deep Contrastive Learning Batch Size under
Memory Limited Setup", section 3.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.utils.checkpoint import checkpoint

from cotenant.gradaccum.exactness import refuse
from cotenant.gradaccum.micro import sizes_of
from cotenant.gradaccum.zerocode.arguments import Call, joined

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
        leaves = call.part(start, start + size)
        part = _Part(forward, module, call)
        if position == len(sizes) - 1:
            outputs.append(part(*leaves))
        else:
            # The leaves go in one by one: that is how the devices are found whose random state is kept.
            outputs.append(checkpoint(part, *leaves, use_reentrant=False))
        start += size
    return joined(outputs, sizes)


class _Part:
    """One part of the batch on its way through the module; called again in the backward pass."""

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
