"""Whether a loss uses the outputs of the forward passes only.

Rule: with a batch in parts, whatever a forward pass hands on besides its outputs (a loss kept in an
attribute, features in a global list) is of one part. Such a value has its node inside the forward pass; a
way from the loss to such a node that does not lead through an output is an error, and found before the
gradient is computed. A penalty on the parameters themselves is fine: their nodes are nobody's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch

from cotenant.gradaccum.rows import tensors_of
from cotenant.gradaccum.zerocode.forward import node_number

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


class Audit:
    """Remembers which graph nodes belong to which split forward pass, by their numbers; keeps no tensor
    alive."""

    def __init__(self) -> None:
        # Kept up to date per pass: every step asks, and most have one.
        self._passes: list[_Pass] = []
        self._starts: list[int] = []
        self._outputs: set[int] = set()

    def note_pass(self, began: int, name: str, output: Any) -> None:
        """A forward pass in parts that began at node number `began` has returned `output`."""
        outputs = frozenset(
            int(each.grad_fn._sequence_nr()) for each in tensors_of(output) if each.grad_fn is not None
        )
        if len(self._passes) == PASSES_MAX:  # The older half goes.
            del self._passes[: PASSES_MAX // 2], self._starts[: PASSES_MAX // 2]
            self._outputs = set().union(*(each.outputs for each in self._passes))
        self._passes.append(_Pass(began, node_number(), outputs, name))
        self._starts.append(began)
        self._outputs |= outputs

    def objection(self, losses: Iterable[torch.Tensor], *, again: bool) -> str | None:
        """Why the gradient of these losses would be wrong; None if nothing speaks against it.

        again: it is to be differentiated once more. Such a gradient reaches into the forward passes, where
        nobody follows it.
        """
        if not self._passes:
            return None
        if again:
            return TWICE
        passes, starts, outputs = self._passes, self._starts, self._outputs
        waiting = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            number = int(node._sequence_nr())
            if number in outputs:
                continue
            at = bisect_right(starts, number) - 1
            if at >= 0 and number < passes[at].ended:
                return SIDE_CHANNEL.format(passes[at].name)
            for following, _ in node.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return None
