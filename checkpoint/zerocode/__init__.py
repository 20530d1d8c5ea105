"""Reporting and checkpoints for scripts that know nothing of cotenant.

Rule: a script that makes its own Session has one already; then nothing here speaks or saves.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

from cotenant.checkpoint.zerocode.loop import Driver
from cotenant.checkpoint.zerocode.reporter import Reporter

__all__ = ["CHECKPOINT", "Reporter", "install"]

CHECKPOINT: Final = "checkpoint"


def install(standing: Any, wanted: Sequence[str]) -> Reporter:
    """Begin. standing: what `cotenant.gradaccum.zerocode.install` returned; its verdict is told."""
    reporter = Reporter()
    standing.observers.append(reporter)
    if CHECKPOINT in wanted:
        reporter.not_resumable = Driver(sys.modules["__main__"], reporter.driven).begin()
    return reporter
