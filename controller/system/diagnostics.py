"""What programs that stay say for people: the lines of their logs, on standard error, and who is ready, on
standard output.

Rule: nothing that is written for people may end a program. A log lies on a disk that may be full, or behind a
pipe that nobody reads any more: such a line is lost, and that is all. It waits in no buffer either, for
Python ends with code 120 where it cannot write at its end what is left in one. Whatever such a program prints
goes through here.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Final

STANDARD_OUTPUT: Final = 1
STANDARD_ERROR: Final = 2


def say(text: str, descriptor: int = STANDARD_ERROR) -> None:
    """Writes a line, or loses it."""
    _write(f"{text}\n", descriptor)


def _write(text: str, descriptor: int) -> None:
    if (sys.__stderr__ if descriptor == STANDARD_ERROR else sys.__stdout__) is None:
        return  # Closed when we began: this number may be another file's by now.
    data = text.encode(errors="backslashreplace")
    with suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]


class UnfailingStream(io.TextIOBase):
    """Standard error for what writes there by itself: the logging package, other packages, Python."""

    def write(self, text: str) -> int:
        _write(text, STANDARD_ERROR)
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return STANDARD_ERROR


def take_standard_error() -> None:
    """From now on nothing that this process writes to `sys.stderr` fails. For programs of their own, before
    they begin."""
    sys.stderr = UnfailingStream()
