"""Cutting along the rows: a batch for the script to go through, a module's call and what it returns.

Rule: the first dimension of every tensor counts the samples, and all must have the same number of rows. A
batch that has not is an error, never passed whole to each part. We leave a zero-code script's call whole
where something in it is neither a tensor nor a plain value: we guess nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree


def rows_of(batch: tuple[Any, ...]) -> int:
    """The number of samples: the first dimension that all tensors of the batch share."""
    sizes: dict[int, str] = {}
    _collect(batch, "batch", sizes)
    if not sizes:
        raise ValueError("the batch holds no tensor with rows: gradaccum does not know how to split it")
    if len(sizes) > 1:
        found = " and ".join(f"{rows} in {where}" for rows, where in sorted(sizes.items()))
        raise ValueError(f"the tensors of the batch differ in their number of rows ({found})")
    return next(iter(sizes))


def sizes_of(rows: int, steps: int) -> list[int]:
    """`steps` sizes that add up to `rows` and differ by at most one; fewer where there are fewer rows."""
    parts = max(1, min(steps, rows))
    base, larger = divmod(rows, parts)
    return [base + 1] * larger + [base] * (parts - larger)


def cut(value: Any, start: int, stop: int) -> Any:
    """Rows `start` to `stop` of every tensor (and of every list of plain values, one per row)."""
    if isinstance(value, torch.Tensor):
        return value[start:stop] if value.dim() else value
    if isinstance(value, dict):
        return {key: cut(part, start, stop) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(cut(part, start, stop) for part in value))
    if isinstance(value, (list, tuple)):
        if _is_column(value):
            return value[start:stop]
        return type(value)(cut(part, start, stop) for part in value)
    return value


def pick(value: Any, rows: torch.Tensor) -> Any:
    """The given rows of every tensor."""
    if isinstance(value, torch.Tensor):
        return value[rows.to(value.device)] if value.dim() else value
    if isinstance(value, dict):
        return {key: pick(part, rows) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(pick(part, rows) for part in value))
    if isinstance(value, (list, tuple)):
        if _is_column(value):
            return type(value)(value[i] for i in rows.tolist())
        return type(value)(pick(part, rows) for part in value)
    return value


def _is_column(value: Any) -> bool:
    """A list of strings or numbers, one per row, as a collate function makes it."""
    return len(value) > 0 and all(isinstance(part, (str, bytes, int, float)) for part in value)


def _collect(value: Any, where: str, sizes: dict[int, str]) -> None:
    packed = isinstance(value, PackedSequence)
    if packed or (isinstance(value, torch.Tensor) and (value.is_nested or value.layout != torch.strided)):
        kind = "PackedSequence" if packed else "nested or sparse tensor"
        raise ValueError(f"{where} is a {kind}, which cannot be split by rows")
    if isinstance(value, torch.Tensor):
        if value.dim():
            sizes.setdefault(int(value.shape[0]), where)
    elif isinstance(value, dict):
        for key, part in value.items():
            _collect(part, f"{where}[{key!r}]", sizes)
    elif isinstance(value, (list, tuple)):
        if _is_column(value):
            sizes.setdefault(len(value), where)
            return
        for position, part in enumerate(value):
            _collect(part, f"{where}[{position}]", sizes)


PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), type, enum.Enum, slice, range)
_TORCH_PLAIN: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)


class Uncut(Exception):
    """A call that cannot be cut into rows; the text says what is in the way."""


class Call:
    """The arguments of one call, flattened. `rows` is the number of samples."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Finds the rows in the arguments of the call. Raises Uncut."""
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

    def pick(self, rows: torch.Tensor) -> Call:
        """A small call with copies of the given rows."""
        few = self.replace_leaves(
            [
                leaf.detach()[rows.to(leaf.device)].requires_grad_(leaf.requires_grad)
                if _is_cut(leaf)
                else leaf
                for leaf in self.leaves
            ]
        )
        few.rows = len(rows)
        return few

    def replace_leaves(self, leaves: list[Any]) -> Call:
        """The same call with other leaves in place of these."""
        other = object.__new__(Call)
        other._spec, other.rows, other.leaves = self._spec, self.rows, leaves
        return other

    def arguments(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = pytree.tree_unflatten(list(leaves), self._spec)
        return args, kwargs


def join_outputs(outputs: Sequence[Any], sizes: Sequence[int]) -> Any:
    """What the call on all rows would have returned, from what it returned for each part.

    Raises:
        Uncut: it has no rows of its own, a loss for example.
    """
    flat = [pytree.tree_flatten(output, is_leaf=_is_whole) for output in outputs]
    spec = flat[0][1]
    if any(other != spec for _, other in flat):
        raise Uncut("what it returns has another shape for each part of the batch")
    columns = zip(*(leaves for leaves, _ in flat))
    return pytree.tree_unflatten([_join_column(column, sizes) for column in columns], spec)


def tensors_of(output: Any) -> list[torch.Tensor]:
    leaves, _ = pytree.tree_flatten(output, is_leaf=_is_whole)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _join_column(column: Sequence[Any], sizes: Sequence[int]) -> Any:
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


# --- What the rows of a batch hold -----------------------------------------------------------------


def columns_of(batch: Any, rows: int, where: str = "batch") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a batch (and every list of numbers) by its place, as a table of `rows` lines."""
    if isinstance(batch, torch.Tensor):
        if batch.dim() and batch.numel() and not batch.is_complex():
            yield where, batch.detach().reshape(rows, -1)
    elif isinstance(batch, dict):
        for key, part in batch.items():
            yield from columns_of(part, rows, f"{where}[{key!r}]")
    elif isinstance(batch, (list, tuple)):
        if _is_column(batch):
            numbers = [each if isinstance(each, (int, float)) else hash(each) for each in batch]
            yield where, torch.tensor(numbers, dtype=torch.float64).reshape(rows, -1)
        else:
            for position, part in enumerate(batch):
                yield from columns_of(part, rows, f"{where}[{position}]")
