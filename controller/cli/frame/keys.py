"""This terminal, read key by key: whatever happens, it is as it was when that ends."""

from __future__ import annotations

import os
import signal
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


class Woken:
    """Wakes a `select` when the window has another size, or when it is told to. Its pipe is never closed: a
    thread may tell it late."""

    def __init__(self) -> None:
        self.fd, self._end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def wake(self, what: bytes = b"w") -> None:
        with suppress(OSError):  # Full: it wakes in any case.
            os.write(self._end, what)

    def has_resized(self) -> bool:
        """Whether the window has another size, of what woke it."""
        return b"r" in os.read(self.fd, 4096)


@contextmanager
def reading_keys(fd: int, set_mode: Callable[[int, int], Any]) -> Iterator[Woken]:
    """`set_mode` (as of `tty`) holds for the terminal while this lasts; none is asked of what is none."""
    woken = Woken()
    before = termios.tcgetattr(fd) if os.isatty(fd) else None
    handler = signal.signal(signal.SIGWINCH, lambda *_: woken.wake(b"r"))
    try:
        if before is not None:
            set_mode(fd, termios.TCSADRAIN)  # What was typed before is not lost.
        yield woken
    finally:
        if before is not None:
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, handler)
