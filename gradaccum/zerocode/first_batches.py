"""What a script's outermost modules are called with at first, while its batches are whole.

Rule: this only looks at shapes, and only until four batches are known; then torch is as it was. The script's
forward pass runs as it would, and nothing of it is looked at while torch makes a program of it.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

from cotenant.checkpoint import guard, lookups, unseen
from cotenant.checkpoint.progress.expressions import Names
from cotenant.gradaccum.modules import trains
from cotenant.gradaccum.schedule import PROGRESS
from cotenant.gradaccum.zerocode.forward import DEPTH, is_in_backward

ROWS_SEEN: Final = 4
"""Batches of which the number of rows is kept."""
STEPS_MAX: Final = 8
"""After so many steps nobody looks any more: every call of every module would go on paying for it."""
_CALL: Final[types.CodeType] = vars(torch.nn.Module)["_wrapped_call_impl"].__code__
"""Of `Module.__call__`, which looks up `_call_impl`."""


class FirstBatches:
    """Notes the rows of the first batches, and which modules are the outermost ones."""

    def __init__(self) -> None:
        self._looked: lookups.LookedUp | None = None
        self.modules: list[weakref.ref[torch.nn.Module]] = []
        self.has_rows = False
        """A batch of two rows or more was seen."""

    def enter(self) -> None:
        self._looked = lookups.LookedUp(torch.nn.Module, "_call_impl", guard.SPLITTING, self._look)

    @property
    def is_looking(self) -> bool:
        return self._looked is not None

    def leave(self) -> None:
        if self._looked is not None and self._looked.end():
            self._looked = None

    def note_step(self, steps: int) -> None:
        if len(PROGRESS.first_rows) >= ROWS_SEEN or steps >= STEPS_MAX:
            self.leave()

    def _look(self, module: torch.nn.Module, frame: types.FrameType) -> None:
        is_traced = torch._C._get_tracing_state() is not None
        if frame.f_code is _CALL and not DEPTH.inside and torch.is_grad_enabled() and not is_traced:
            self._note(module, frame)

    def _note(self, module: torch.nn.Module, frame: types.FrameType) -> None:
        """Notes a call, if it is one of an outermost module."""
        with unseen.Unseen():
            if not _counts(module) or _is_inner(frame) or is_in_backward():
                return
            if not any(known() is module for known in self.modules):
                self.modules.append(weakref.ref(module))
            self.has_rows |= note_rows(_variable(frame, "args"), _variable(frame, "kwargs")) > 1


def _counts(module: torch.nn.Module) -> bool:
    """Whether its batches could be split: inside DDP is the module that counts."""
    return not issubclass(type(module), DistributedDataParallel) and trains(module)


def _is_inner(call: types.FrameType) -> bool:
    """Whether this call is made by the forward pass of a module that counts."""
    frame = call.f_back
    while frame is not None and (frame.f_code is not _CALL or not _counts(_variable(frame, "self"))):
        frame = frame.f_back
    return frame is not None


def _variable(frame: types.FrameType, name: str) -> Any:
    names = Names(frame)
    try:
        return names.local[name]
    finally:
        names.release()


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
        if issubclass(type(value), torch.Tensor):
            if value.dim():
                yield int(value.shape[0])
        elif type(value) in (list, tuple):
            yield from _rows_in(value)
        elif type(value) is dict:
            yield from _rows_in(value.values())
