"""The loss of the whole batch in each step, from the outputs that the model gave for its parts.

Rule: a proof on a few rows says nothing of a loss that begins to choose among rows later: the hardest ones,
those above a threshold. So the loss is computed once more, of the whole batch, with the outputs of the parts
in place of the model's, and the gradients at these outputs must be the parts'. That costs no pass through the
model. It is left where it cannot be done: the model is called more than once, returns something else than
rows, or too much.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from cotenant.gradaccum.aside import silence
from cotenant.gradaccum.rows import Uncut, join_outputs, tensors_of

BYTES_MAX: Final = 64 * 1024 * 1024
"""Of the outputs that are kept."""
TOLERANCE: Final = {torch.float64: 1e-9, torch.float32: 1e-4}
TOLERANCE_LOW_PRECISION: Final = 2e-2
"""Of the largest entry: the outputs are the same to the bit, only sums are rounded otherwise."""

APART: Final = (
    "the gradient at the model's outputs is {0:.1e} away in parts from that of the whole batch (its largest "
    "entry is {1:.1e}): the loss does not split over rows as declared. Does it weigh or choose rows by what "
    "else is in the batch? Then it cannot be accumulated"
)


class _Call:
    """What the model returned, and the gradients that came back to it."""

    def __init__(self, output: Any) -> None:
        self.output = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, output)
        self.versions = self._versions_now()
        self.gradients: dict[int, torch.Tensor] = {}
        for number, each in enumerate(tensors_of(output)):
            if each.requires_grad and each.grad_fn is not None:
                each.register_hook(functools.partial(self._keep, number))  # type: ignore[no-untyped-call]

    def _keep(self, number: int, gradient: torch.Tensor) -> None:
        known = self.gradients.get(number)
        self.gradients[number] = gradient.detach() if known is None else known + gradient.detach()

    def _versions_now(self) -> list[int]:
        return [each._version for each in tensors_of(self.output)]

    @property
    def is_as_it_was(self) -> bool:
        """A loss may write into its inputs."""
        return self.versions == self._versions_now()

    @property
    def size(self) -> int:
        return sum(each.nbytes for each in tensors_of(self.output))


class OutputWatch:
    """The outputs of a model for the parts of one batch, and the gradients there."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._parts: list[list[_Call]] = []
        self._sizes: list[int] = []
        self._depth = self._bytes = 0
        self._joined: list[Any] = []
        self.is_possible = isinstance(model, torch.nn.Module) and not (
            model._forward_hooks
            or model._forward_pre_hooks
            or "forward" in vars(model)
            or model._compiled_call_impl
        )
        """What else is around the forward pass would run twice."""

    @contextlib.contextmanager
    def part(self, rows: int) -> Iterator[None]:
        """Around the computation of a part's gradient."""
        if not self.is_possible:
            yield
            return
        self._parts.append([])
        self._sizes.append(rows)
        hooks = [
            self._model.register_forward_pre_hook(self._enter),
            self._model.register_forward_hook(self._leave),
        ]
        grad = torch.autograd.grad
        torch.autograd.grad = functools.partial(self._give_up, grad)
        try:
            yield
        finally:
            torch.autograd.grad = grad
            for hook in hooks:
                hook.remove()

    def _give_up(self, grad: Any, *args: Any, **kwargs: Any) -> Any:
        """A gradient inside a loss (a penalty on it, an attack) reaches behind the outputs."""
        self.is_possible = False
        return grad(*args, **kwargs)

    def _enter(self, *_: Any) -> None:
        self._depth += 1

    def _leave(self, module: torch.nn.Module, given: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth or not self.is_possible:
            return  # It was called by itself.
        self._parts[-1].append(_Call(output))
        self._bytes += self._parts[-1][-1].size
        if self._bytes > BYTES_MAX:
            self.is_possible = False
            self._parts.clear()

    def is_ready(self, rows: int) -> bool:
        """Whether the outputs for all rows of a batch are here."""
        calls = list(zip(*self._parts))
        if (
            not self.is_possible
            or not calls
            or any(len(part) != len(calls) for part in self._parts)
            or not all(each.is_as_it_was for call in calls for each in call)
            or sum(self._sizes) != rows  # A part without tokens was left out.
        ):
            return False
        try:
            self._joined = [join_outputs([each.output for each in call], self._sizes) for call in calls]
        except Uncut:
            return False
        return True

    @contextlib.contextmanager
    def replay(self, parameters: Sequence[torch.Tensor]) -> Iterator[None]:
        """The outputs stand for the model's meanwhile, and gradients of its parameters are set aside."""
        for number, output in enumerate(self._joined):
            for place, each in enumerate(tensors_of(output)):
                each.requires_grad_(any(place in part[number].gradients for part in self._parts))
        gradients = [each.grad for each in parameters]
        for each in parameters:
            each.grad = None
        outputs, forward = iter(self._joined), self._model.forward

        def next_output(*args: Any, **kwargs: Any) -> Any:
            output = next(outputs, outputs)
            return forward(*args, **kwargs) if output is outputs else output

        vars(self._model)["forward"] = next_output
        try:
            with silence(), torch.enable_grad():
                yield
        finally:
            del vars(self._model)["forward"]
            for each, gradient in zip(parameters, gradients):
                each.grad = gradient

    def difference(self) -> str | None:
        """Why the gradients of the whole batch are not those of its parts; None: they are."""
        largest = apart = tolerance = 0.0
        for number, output in enumerate(self._joined):
            for place, whole in enumerate(tensors_of(output)):
                if not whole.requires_grad or not whole.numel():
                    continue
                parts = torch.zeros_like(whole)
                for rows, part in zip(torch.split(parts, self._sizes), self._parts):
                    if place in part[number].gradients:
                        rows.copy_(part[number].gradients[place])
                at_once = torch.zeros_like(parts) if whole.grad is None else whole.grad
                size, distance = float(at_once.abs().max()), float((at_once - parts).abs().max())
                if not math.isfinite(size):  # A scaler leaves such a step out.
                    return None
                if not math.isfinite(distance):
                    return APART.format(distance, size)
                largest, apart = max(largest, size), max(apart, distance)
                tolerance = max(tolerance, TOLERANCE.get(whole.dtype, TOLERANCE_LOW_PRECISION))
        return APART.format(apart, largest) if apart > tolerance * largest else None
