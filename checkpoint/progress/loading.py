"""When a script's loaders begin a pass.

Rule: torch's own code is looked at and not replaced (`lookups.py`), so that no frame of ours is above what
loads data. The pass is told of before anything is drawn for it.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from cotenant.checkpoint.guard import Guard
from cotenant.checkpoint.lookups import LookedUp
from cotenant.checkpoint.progress.expressions import Names


class Loading:
    """Looks at the loaders of one process. `module`: `torch.utils.data.dataloader`."""

    def __init__(self, module: Any, guard: Guard, begun: Callable[[Any, Any], None]) -> None:
        """`begun(loader, batches)`: the loader begins a pass, and `batches` will give what it has. The object
        is just being made, unless workers live longer than a pass."""
        self._begun = begun
        base = module._BaseDataLoaderIter
        self._codes = base.__init__.__code__, module.DataLoader.__iter__.__code__
        self._looked = [
            LookedUp(module.DataLoader, "_index_sampler", guard, self._look),
            LookedUp(module._MultiProcessingDataLoaderIter, "_reset", guard, self._look_again),
        ]

    def _look(self, loader: Any, frame: types.FrameType) -> None:
        if frame.f_code is self._codes[0]:
            self._begun(loader, _owner(frame))

    def _look_again(self, batches: Any, frame: types.FrameType) -> None:
        if frame.f_code is self._codes[1]:
            self._begun(_owner(frame), batches)

    def end(self) -> None:
        for each in self._looked:
            each.end()


def _owner(frame: types.FrameType) -> Any:
    names = Names(frame)
    try:
        return names.local["self"]
    finally:
        names.release()
