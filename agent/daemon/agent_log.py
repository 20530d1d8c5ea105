"""The agent's own log, on stderr.

Rule: what is in a line may come from a user (a path, an error's words), so every line has a limit, and so has
what is written of a traceback.
"""

from __future__ import annotations

import time
import traceback
from typing import Final

from cotenant.controller.domain import texts
from cotenant.controller.system.diagnostics import say

LINE_BYTES_MAX: Final = 2048
FRAMES_MAX: Final = 20
"""Of one error, the innermost."""
TRACEBACK_LINES_MAX: Final = 60


def log(text: str) -> None:
    """Writes one line."""
    _write(f"{time.strftime('%H:%M:%S')} agent: {text}")


def log_error(doing: str, error: BaseException) -> None:
    """Writes what failed by a mistake of ours, and where."""
    log(f"{doing} failed by an internal error: {shorten_error(error)}")
    for part in traceback.format_exception(error, limit=-FRAMES_MAX)[-TRACEBACK_LINES_MAX:]:
        for line in part[: 2 * LINE_BYTES_MAX].splitlines():
            _write(line)


def shorten_error(error: BaseException) -> str:
    """The error in one short line, for a reason."""
    return texts.cut_to(texts.one_line(repr(error)[:400]), 400)


def _write(line: str) -> None:
    say(texts.cut_to(texts.one_line(line[:LINE_BYTES_MAX]), LINE_BYTES_MAX))
