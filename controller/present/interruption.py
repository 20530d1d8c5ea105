"""What asks a process to end: Ctrl-C and SIGTERM unwind it in the same way.

Rule: both leave as KeyboardInterrupt, so that no child and no half of a file stays behind; only the exit code
says which of them it was.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from cotenant.controller.present.problem import INTERRUPTED

_SIGNALLED = INTERRUPTED - signal.SIGINT
_heard: list[int] = []


def heard(number: int) -> None:
    """The process was asked to end by this signal."""
    _heard.append(number)


def ended_by() -> int:
    """The exit code of what was cut short: 130 after Ctrl-C, 143 after SIGTERM."""
    return _SIGNALLED + (_heard[-1] if _heard else signal.SIGINT)


@contextmanager
def listening() -> Iterator[None]:
    """SIGTERM interrupts as Ctrl-C does. Elsewhere than in the main thread, or ignored: as it is."""
    del _heard[:]
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return
    signal.signal(signal.SIGTERM, _handle_termination)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _handle_termination(number: int, frame: FrameType | None) -> None:
    heard(number)
    raise KeyboardInterrupt
