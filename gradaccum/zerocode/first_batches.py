"""What a script's outermost modules are called with at first, while its batches are whole.

Rule: this only looks at shapes, and only until four batches are known. The script's forward pass runs as
it would, once; then torch is as it was.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

from cotenant.checkpoint.guard import SPLITTING, door
from cotenant.gradaccum.modules import trains
from cotenant.gradaccum.schedule import PROGRESS
from cotenant.gradaccum.zerocode.forward import DEPTH, inside
from cotenant.gradaccum.zerocode.replacing import Replacements

ROWS_SEEN: Final = 4
"""Batches of which the number of rows is kept."""
STEPS_MAX: Final = 8
"""After so many steps nobody looks any more: every call of every module would go on paying for it."""


class FirstBatches:
    """Notes the rows of the first batches, and which modules are the outermost ones."""

    def __init__(self) -> None:
        self._replaced = Replacements()
        self.modules: list[weakref.ref[torch.nn.Module]] = []
        self.has_rows = False
        """A batch of two rows or more was seen."""

    def enter(self) -> None:
        self._replaced.replace(torch.nn.Module, "__call__", self._calls)

    def leave(self) -> None:
        self._replaced.restore()

    def note_step(self, steps: int) -> None:
        if len(PROGRESS.first_rows) >= ROWS_SEEN or steps >= STEPS_MAX:
            self.leave()

    def _calls(self, original: Any) -> Any:
        depth = DEPTH

        @door
        @functools.wraps(original)
        def __call__(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if depth.inside or not torch.is_grad_enabled():
                return original(module, *args, **kwargs)
            if not SPLITTING.run(self._note, module, args, kwargs, otherwise=False):
                return original(module, *args, **kwargs)
            with inside():
                return original(module, *args, **kwargs)

        return __call__

    def _note(self, module: torch.nn.Module, args: Any, kwargs: Any) -> bool:
        """Notes a call, and whether it is one of an outermost module."""
        if issubclass(type(module), DistributedDataParallel) or not trains(module):
            return False  # Inside DDP is the module that counts.
        if not any(known() is module for known in self.modules):
            self.modules.append(weakref.ref(module))
        self.has_rows |= note_rows(args, kwargs) > 1
        return True


def note_rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Notes the rows of one of the first batches; 0 for a later one, or one without any."""
    if len(PROGRESS.first_rows) >= ROWS_SEEN:
        return 0
    rows = next(_rows_in((*args, *kwargs.values())), None)
    if rows is None:
        return 0
    PROGRESS.first_rows.append(rows)
    return rows


def _rows_in(values: Iterable[Any]) -> Iterator[int]:
    """The first dimension of each tensor, also in plain lists, tuples and dictionaries."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.dim():
                yield int(value.shape[0])
        elif type(value) in (list, tuple):
            yield from _rows_in(value)
        elif type(value) is dict:
            yield from _rows_in(value.values())
