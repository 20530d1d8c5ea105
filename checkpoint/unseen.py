"""What the hook does with a script's tensors, kept from everything in torch by which the script watches.

Rule: a mode, a subclass of tensors or a profiler of the script's must see what the script itself does, and
no more. Standard library only: this is loaded before the script's torch.
"""

from __future__ import annotations

import gc
import sys
from _thread import _local
from typing import Any


class _Thread(_local):
    is_unseen = False


_thread = _Thread()


class Unseen:
    """Inside, operations on tensors reach no mode, no subclass and no profiler, and nothing is collected: a
    collection calls code of the script's, and goes through all of torch, which takes a tenth of a second."""

    _contexts: tuple[Any, ...] = ()
    _collects = False
    _records: Any = None
    """Says whether profilers hear of operations."""

    def __enter__(self) -> None:
        if _thread.is_unseen:
            return
        c: Any = getattr(sys.modules.get("torch"), "_C", None)
        if not hasattr(c, "_DisableTorchDispatch"):  # Torch is being loaded, or not there.
            return
        _thread.is_unseen = True
        self._collects = gc.isenabled()
        gc.disable()
        self._contexts = c.DisableTorchFunction(), c._DisableTorchDispatch()
        for each in self._contexts:
            each.__enter__()
        if c._autograd._profiler_enabled():
            self._records = c._autograd._enable_record_function
            self._records(False)

    def __exit__(self, *error: Any) -> None:
        if not self._contexts:
            return
        if self._records is not None:
            self._records(True)
        for each in reversed(self._contexts):
            each.__exit__(*error)
        _thread.is_unseen = False
        if self._collects:
            gc.enable()
