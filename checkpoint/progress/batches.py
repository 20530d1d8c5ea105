"""How many rows a script's model gets at a time: as its loader says, else as its first batches were.

Rule: as everywhere in this folder, nothing of the script runs. A size that changes is not known, and a loader
whose batches are made by code of the script's own says nothing: what was seen of its batches does.
"""

from __future__ import annotations

import ast
import os
import types
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from cotenant.checkpoint.progress import expressions, lengths, loops

BATCHES_SEEN: Final = 4
"""So many equal ones in a row, where no loader tells."""
_TRUSTED: Final = ("torch", "accelerate")
"""Packages whose samplers give as many rows as they say, except for the last batch of an epoch."""


class BatchRows(NamedTuple):
    """The rows of a batch. `rows` None: they are not known, and `note` says why; else `note` says where they
    were read."""

    rows: int | None = None
    note: str = ""


def rows_seen(frames: Iterable[types.FrameType], first: Sequence[int]) -> BatchRows | None:
    """Just after an optimizer step; None as long as there is too little to go by. first: rows of its first
    batches, as far as the zero-code hook has seen any."""
    told = _told_by_loader(frames)
    if told is not None:
        return told
    if len(first) < BATCHES_SEEN:
        return None
    if len(set(first)) > 1:
        return BatchRows(None, f"its first batches have {', '.join(map(str, first))} rows")
    return BatchRows(first[0], f"as its first {BATCHES_SEEN} batches")


def _told_by_loader(frames: Iterable[types.FrameType]) -> BatchRows | None:
    """The innermost loop around a step is the one that takes batches, or no loader tells."""
    for frame in frames:
        around = loops.loops_at(frame)
        if not around:
            continue
        if not isinstance(around[0], ast.For):
            return None
        names = expressions.Names(frame)
        try:
            rows = rows_of(names.source(around[0].iter))
        except expressions.NotSeen:
            return None
        finally:
            names.release()
        where = f"{os.path.basename(frame.f_code.co_filename)} line {around[0].lineno}"
        return None if rows is None else BatchRows(rows, f"read from its loader, {where}")
    return None


def rows_of(loader: Any) -> int | None:
    """The rows of each batch that a worker gets of a DataLoader; None where the loader does not say, or is
    none."""
    loader = _attribute(
        loader, "base_dataloader", loader
    )  # Accelerate's, which may divide batches among workers.
    if not any(kind.__name__ == "DataLoader" for kind in type(loader).__mro__):
        return None
    sampler = _attribute(loader, "batch_sampler")
    size = _attribute(loader, "batch_size")
    if type(sampler).__module__.partition(".")[0] in _TRUSTED:
        size = _attribute(sampler, "batch_size", size)
        if _attribute(sampler, "split_batches"):
            size = None if size is None else size // (_attribute(sampler, "num_processes") or 1)
    return size if issubclass(type(size), int) and size > 0 else None


def _attribute(owner: Any, name: str, otherwise: Any = None) -> Any:
    found = lengths.attribute_there(owner, name)
    return otherwise if found is None or found is lengths.MISSING else found
