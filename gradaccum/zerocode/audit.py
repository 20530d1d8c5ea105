"""Does the loss use a module's outputs only? Its graph says so, at every backward pass.

Rule: with a batch in parts, whatever a forward pass hands on besides its outputs (a loss kept in an
attribute, features in a global list) is of one part. Such a value has its node inside the forward pass; a
way from the loss to such a node that does not lead through an output is an error, and found before the
gradient is computed. A penalty on the parameters themselves is fine: their nodes are nobody's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import torch

from cotenant.gradaccum.zerocode.arguments import tensors_of

PASSES_MAX: Final = 256
"""Forward passes remembered between two optimizer steps; a script with more is looked at no further back."""

SIDE_CHANNEL: Final = (
    "the loss uses something that the forward pass of {0} leaves beside its outputs (a loss kept in an "
    "attribute, features kept by a hook): in parts it would be that of one part"
)


class Audit:
    """Remembers which graph nodes belong to which forward pass, by their numbers; keeps no tensor alive."""

    def __init__(self) -> None:
        self._passes: deque[tuple[int, int, frozenset[int], str]] = deque(maxlen=PASSES_MAX)

    def begin(self) -> int:
        return _number_now()

    def end(self, began: int, name: str, output: Any) -> None:
        """A forward pass that began at `began` has returned `output`."""
        outputs = frozenset(
            int(each.grad_fn._sequence_nr()) for each in tensors_of(output) if each.grad_fn is not None
        )
        self._passes.append((began, _number_now(), outputs, name))

    def forget(self) -> None:
        """An optimizer step is done: what comes next uses new forward passes."""
        self._passes.clear()

    def side_channel(self, losses: Iterable[torch.Tensor]) -> str | None:
        """What the losses use besides outputs; None if nothing."""
        if not self._passes:
            return None
        first, last = self._passes[0][0], self._passes[-1][1]
        outputs = frozenset().union(*(each[2] for each in self._passes))
        waiting = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            number = int(node._sequence_nr())
            if number in outputs:
                continue
            if first <= number < last:
                for began, ended, _, name in self._passes:
                    if began <= number < ended:
                        return SIDE_CHANNEL.format(name)
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return None


def _number_now() -> int:
    """The number that the next node of this thread's graph gets."""
    return int(torch._C._autograd._get_sequence_nr())
