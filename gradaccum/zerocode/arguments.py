"""What a module is called with and what it returns, cut into rows and put together again.

Rule: a tensor of the call is cut along its first dimension, and every tensor must have the same number of
rows there. What is neither a tensor nor a plain value is not guessed at: the call is left whole.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), type, enum.Enum, slice, range)
_TORCH_PLAIN: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)


class Uncut(Exception):
    """This call cannot be cut into rows; the text says what is in the way."""


class Call:
    """The arguments of one call, flattened. `rows` is the number of samples."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raises Uncut."""
        self.leaves, self._spec = pytree.tree_flatten((args, kwargs), is_leaf=_is_whole)
        sizes = sorted({int(leaf.shape[0]) for leaf in self.leaves if _has_rows(leaf, "is called with")})
        if not sizes:
            raise Uncut("it is called without a tensor that has rows")
        if len(sizes) > 1:
            found = " and ".join(str(size) for size in sizes)
            raise Uncut(f"the tensors it is called with differ in their number of rows ({found})")
        self.rows = sizes[0]
        for leaf in self.leaves:
            if isinstance(leaf, (list, tuple)) and len(leaf) == self.rows:
                raise Uncut("it is called with a list as long as the batch: is that one value per row?")

    def part(self, start: int, stop: int) -> list[Any]:
        """The leaves of rows `start` to `stop`: views, so that changes in place are seen."""
        return [leaf[start:stop] if _is_cut(leaf) else leaf for leaf in self.leaves]

    def picked(self, rows: torch.Tensor) -> Call:
        """A small call with copies of the given rows."""
        few = object.__new__(Call)
        few._spec, few.rows = self._spec, len(rows)
        few.leaves = [
            leaf.detach()[rows.to(leaf.device)].requires_grad_(leaf.requires_grad) if _is_cut(leaf) else leaf
            for leaf in self.leaves
        ]
        return few

    def arguments(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = pytree.tree_unflatten(list(leaves), self._spec)
        return args, kwargs


def joined(outputs: Sequence[Any], sizes: Sequence[int]) -> Any:
    """What the call on all rows would have returned, from what it returned for each part.

    Raises:
        Uncut: it has no rows of its own, a loss for example.
    """
    flat = [pytree.tree_flatten(output, is_leaf=_is_whole) for output in outputs]
    spec = flat[0][1]
    if any(other != spec for _, other in flat):
        raise Uncut("what it returns has another shape for each part of the batch")
    columns = zip(*(leaves for leaves, _ in flat))
    return pytree.tree_unflatten([_joined(column, sizes) for column in columns], spec)


def tensors_of(output: Any) -> list[torch.Tensor]:
    leaves, _ = pytree.tree_flatten(output, is_leaf=_is_whole)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _joined(column: Sequence[Any], sizes: Sequence[int]) -> Any:
    first = column[0]
    if not isinstance(first, torch.Tensor):
        if not isinstance(first, (*PLAIN, *_TORCH_PLAIN)):
            raise Uncut(f"it returns a {type(first).__name__}, which cannot be put together from parts")
        if any(type(other) is not type(first) or other != first for other in column):
            raise Uncut(f"it returns a {type(first).__name__} that differs between parts of the batch")
        return first
    for leaf, size in zip(column, sizes):
        _has_rows(leaf, "returns")
        if not leaf.dim():
            raise Uncut("it returns one number for the whole batch (a loss?), not one row per sample")
        if leaf.shape[0] != size:
            raise Uncut(f"it returns {leaf.shape[0]} rows for {size} samples")
    if len({tuple(leaf.shape[1:]) for leaf in column}) > 1:
        raise Uncut("what it returns depends in its shape on the other samples of the batch")
    return torch.cat(list(column))


def _is_whole(value: Any) -> bool:
    """A column of plain values stays together, so that its length can be seen."""
    return (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and not hasattr(value, "_fields")
        and all(isinstance(each, (bool, int, float, str, bytes)) for each in value)
    )


def _is_cut(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0


def _has_rows(leaf: Any, verb: str) -> bool:
    if isinstance(leaf, torch.Tensor):
        if leaf.is_nested or leaf.layout != torch.strided:
            raise Uncut(f"it {verb} a nested or sparse tensor")
        return leaf.dim() > 0
    if isinstance(leaf, (*PLAIN, *_TORCH_PLAIN, list, tuple, torch.Generator)) or callable(leaf):
        return False
    raise Uncut(f"it {verb} a {type(leaf).__name__}, whose rows are not known")
