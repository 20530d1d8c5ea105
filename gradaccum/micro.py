"""Cutting a batch into micro-batches of nearly equal size, along the first dimension of its tensors.

Rule: every tensor of the batch must have one row per sample. What has another number of rows is refused,
never passed whole to each part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence


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
