"""Python's own tracing, for as long as a line of the script is waited for.

Rule: a script that asks who traces it (to know whether it is being debugged, mostly) hears what it would hear
without us; and where somebody else traces, we do not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from cotenant.checkpoint.guard import door

_ask: Final = sys.gettrace
_ours: list[Any] = []
"""Not empty: our tracer was set last."""


def tracer() -> Any:
    """Who traces this thread, ourselves included."""
    return _ask()


def trace(called: Callable[..., Any]) -> None:
    """Trace by this function, and keep it to ourselves."""
    _ours[:] = [called]
    sys.settrace(called)
    sys.gettrace = _gettrace


def end_trace(called: Callable[..., Any]) -> None:
    """Trace no more, unless somebody else does."""
    if _ask() == called:
        sys.settrace(None)
    if _ours == [called]:
        _ours.clear()
    if sys.gettrace is _gettrace:
        sys.gettrace = _ask


@door
def _gettrace() -> Any:
    found = _ask()
    return None if found in _ours else found
