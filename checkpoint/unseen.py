"""What the hook does with a script's tensors, kept from everything in torch by which the script watches.

Rule: a mode, a subclass of tensors or a profiler of the script's must see what the script itself does, and
no more. Standard library only: this is loaded before the script's torch.
"""

from __future__ import annotations

import sys
from typing import Any


class Unseen:
    """Inside, operations on tensors reach no mode, no subclass and no profiler."""

    _contexts: tuple[Any, ...]

    def __enter__(self) -> None:
        c: Any = getattr(sys.modules.get("torch"), "_C", None)
        self._c, self._contexts = c, ()
        self._records = False
        if not hasattr(c, "_DisableTorchDispatch"):  # Torch is not there, or just being loaded.
            return
        self._contexts = c.DisableTorchFunction(), c._DisableTorchDispatch()
        for each in self._contexts:
            each.__enter__()
        self._records = c._autograd._profiler_enabled()
        if self._records:
            c._autograd._enable_record_function(False)

    def __exit__(self, *error: Any) -> None:
        if self._records:
            self._c._autograd._enable_record_function(True)
        for each in reversed(self._contexts):
            each.__exit__(*error)
