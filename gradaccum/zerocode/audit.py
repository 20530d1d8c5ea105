"""Does the loss use a module's outputs only? Its graph says so, at every backward pass.

Rule: with a batch in parts, whatever a forward pass hands on besides its outputs (a loss kept in an
attribute, features in a global list) is of one part. Such a value has its node inside the forward pass; a
way from the loss to such a node that does not lead through an output is an error, and found before the
gradient is computed. A penalty on the parameters themselves is fine: their nodes are nobody's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch

from cotenant.gradaccum.zerocode.arguments import tensors_of

PASSES_MAX: Final = 256
"""Forward passes remembered; a loss that reaches further back is not followed."""

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
        self._passes: deque[_Pass] = deque(maxlen=PASSES_MAX)

    def begin(self) -> int:
        return _number_now()

    def end(self, began: int, name: str, output: Any, *, ours: bool) -> None:
        """A forward pass that began at `began` has returned `output`. ours: in parts, or a check."""
        outputs = frozenset(
            int(each.grad_fn._sequence_nr()) for each in tensors_of(output) if each.grad_fn is not None
        )
        self._passes.append(_Pass(began, _number_now(), outputs, name, ours))

    def twice(self) -> tuple[str, bool] | None:
        """A gradient that is differentiated again reaches into the forward passes: that is not followed."""
        return (TWICE, any(each.ours for each in self._passes)) if self._passes else None

    def side_channel(self, losses: Iterable[torch.Tensor]) -> tuple[str, bool] | None:
        """What the losses use besides outputs, and whether their gradient is wrong by it; None if nothing."""
        if not self._passes:
            return None
        passes = list(self._passes)
        starts = [each.began for each in passes]
        outputs: frozenset[int] = frozenset().union(*(each.outputs for each in passes))
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
