"""One key at a time, while a page is on the screen, and whether the screen has another size.

Rule: the terminal is put back as it was, whatever ends the page. Where standard input is no terminal there
are no keys, and waiting is only that.
"""

from __future__ import annotations

import os
import select
import signal
import termios
import time
import tty
from types import FrameType, TracebackType
from typing import Any, Final, Literal, Self

Woken = Literal["quit", "resized", "now", ""]
QUIT: Final = frozenset(b"qQ\x1b\x04")
"""q, Escape, Ctrl-D. Ctrl-C stays what it is."""
NOW: Final = frozenset(b" \n\r")


class Keyboard:
    """Used by one page at a time, in the main thread."""

    def __init__(self, descriptor: int = 0) -> None:
        """`descriptor`: standard input's, by default."""
        self._descriptor = descriptor
        self._before: list[Any] | None = None
        self._handler: Any = None
        self._woken, self._wake = -1, -1

    def __enter__(self) -> Self:
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        if os.isatty(self._descriptor):
            self._before = termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)
        self._handler = signal.signal(signal.SIGWINCH, self._resized)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGWINCH, self._handler)
        if self._before is not None:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
        os.close(self._woken)
        os.close(self._wake)

    def _resized(self, _number: int, _frame: FrameType | None) -> None:
        if self._wake >= 0:
            try:
                os.write(self._wake, b"x")
            except BlockingIOError:  # Full of the same news.
                return

    def wait(self, seconds: float) -> Woken:
        """What ended the wait; empty: the time did. Keys that mean nothing do not."""
        until_s = time.monotonic() + seconds
        listened = [self._woken, *([self._descriptor] if self._before is not None else [])]
        while True:
            left_s = until_s - time.monotonic()
            ready, _, _ = select.select(listened, (), (), max(0.0, left_s))
            if self._woken in ready:
                os.read(self._woken, 4096)
                return "resized"
            if not ready:
                return ""
            pressed = os.read(self._descriptor, 64)
            if not pressed:  # The terminal is gone.
                return "quit"
            if pressed[0] in QUIT and (pressed[0] != 0x1B or len(pressed) == 1):  # Not an arrow key.
                return "quit"
            if pressed[0] in NOW:
                return "now"
