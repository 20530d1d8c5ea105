"""Loggers that are made when there is something to say.

Rule: a script that lists the loggers of its process finds its own and those of its packages.

Standard library only.
"""

from __future__ import annotations

import logging
from typing import Any


class LateLog:
    """Stands for the logger of a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, word: str) -> Any:
        return getattr(logging.getLogger(self._name), word)
