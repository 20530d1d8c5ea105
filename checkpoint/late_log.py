"""Loggers that are made when there is something to say.

Rule: a script that lists the loggers of its process finds its own and those of its packages.

Standard library only.
"""

from __future__ import annotations

import logging
from typing import Any

from cotenant.checkpoint.guard import write_line


class LateLog:
    """Stands for the logger of a name."""

    is_beside: bool = False
    """The script knows nothing of us: its handlers do not get our lines, the job's log does."""

    def __init__(self, name: str) -> None:
        self._name = name

    def warning(self, text: str, *values: Any) -> None:
        if not self.is_beside:
            logging.getLogger(self._name).warning(text, *values)
        else:
            write_line(text % values)

    def __getattr__(self, word: str) -> Any:
        return getattr(logging.getLogger(self._name), word)
