"""The loss of the whole batch in each step, from the outputs that the model gave for its parts.

Rule: a proof on a few rows says nothing of a loss that begins to choose among rows later: the hardest ones,
those above a threshold. So the loss is computed once more, of the whole batch, with the outputs of the parts
in place of the model's, and the gradients at these outputs must be the parts'. That costs no pass through the
model. It is left where it cannot be done: the model is called more than once, returns something else than
rows, or too much.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from cotenant.gradaccum.aside import without_output
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


class Watch:
    """The outputs of a model for the parts of one batch, and the gradients there."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._outputs: list[Any] = []
        self._versions: list[list[int]] = []
        self._gradients: list[dict[int, torch.Tensor]] = []
        self._sizes: list[int] = []
        self._joined: list[torch.Tensor] = []
        self.is_possible = isinstance(model, torch.nn.Module) and not (
            model._forward_hooks
            or model._forward_pre_hooks
            or "forward" in vars(model)  # It would run twice.
        )

    @contextlib.contextmanager
    def part(self, rows: int) -> Iterator[None]:
        """Around the computation of a part's gradient."""
        if not self.is_possible:
            yield
            return
        self._sizes.append(rows)
        hook = self._model.register_forward_hook(self._keep)
        try:
            yield
        finally:
            hook.remove()
            self.is_possible &= len(self._outputs) == len(self._sizes)

    def _keep(self, module: torch.nn.Module, given: Any, output: Any) -> None:
        found: dict[int, torch.Tensor] = {}
        for number, each in enumerate(tensors_of(output)):
            if each.requires_grad and each.grad_fn is not None:
                each.register_hook(
                    lambda gradient, number=number: found.__setitem__(number, gradient.detach())
                )  # type: ignore[misc, no-untyped-call]
        kept = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, output)
        self._outputs.append(kept)
        self._gradients.append(found)
        self._versions.append([each._version for each in tensors_of(kept)])
        self.is_possible &= sum(each.nbytes for one in self._outputs for each in tensors_of(one)) <= BYTES_MAX
        if not self.is_possible:
            self._outputs.clear()

    def is_ready(self, rows: int) -> bool:
        """Whether the outputs for all rows of a batch are here."""
        versions = [[each._version for each in tensors_of(output)] for output in self._outputs]
        # A loss may write into its inputs, and a part without tokens is left out.
        if not self.is_possible or versions != self._versions or sum(self._sizes) != rows:
            return False
        try:
            self._whole = join_outputs(self._outputs, self._sizes)
        except Uncut:
            return False
        self._joined = tensors_of(self._whole)
        return True

    @contextlib.contextmanager
    def in_place(self, parameters: Sequence[torch.Tensor]) -> Iterator[None]:
        """The outputs stand for the model's meanwhile, and gradients of its parameters are set aside."""
        wanted = {number for found in self._gradients for number in found}
        for number in wanted:
            self._joined[number].requires_grad_()
        gradients = [each.grad for each in parameters]
        for each in parameters:
            each.grad = None
        vars(self._model)["forward"] = lambda *_, **__: self._whole
        try:
            with without_output(), torch.enable_grad():
                yield
        finally:
            del vars(self._model)["forward"]
            for each, gradient in zip(parameters, gradients):
                each.grad = gradient

    def difference(self) -> str | None:
        """Why the gradients of the whole batch are not those of its parts; None: they are."""
        largest = apart = tolerance = 0.0
        for number, whole in enumerate(self._joined):
            if not whole.requires_grad:
                continue
            found = [each.get(number) for each in self._gradients]
            rows = whole.split(self._sizes)
            parts = torch.cat([torch.zeros_like(r) if g is None else g for r, g in zip(rows, found)])
            at_once = torch.zeros_like(parts) if whole.grad is None else whole.grad
            if not parts.numel():
                continue
            largest = max(largest, float(at_once.abs().max()), float(parts.abs().max()))
            apart += float((at_once - parts).abs().max())
            tolerance = max(tolerance, TOLERANCE.get(whole.dtype, TOLERANCE_LOW_PRECISION))
        if not math.isfinite(largest):  # A scaler leaves such a step out.
            return None
        return APART.format(apart, largest) if not apart <= tolerance * largest else None
