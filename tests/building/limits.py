"""How long a test waits before it calls something broken.

Rule: whoever waits says how long that may take on a quiet machine, and `within_s` stretches it by what this
machine takes for work of known size. Each limit is many times what a quiet machine needs: it tells what hangs
from what is slow, and says nothing about speed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Final

ENV_PACE: Final = "COTENANT_TEST_PACE"
"""Measured once per run: what a run starts inherits it."""
LOOPS: Final = 200_000
QUIET_LOOPS_S: Final = 0.03
QUIET_START_S: Final = 0.03
"""Of an interpreter that imports nothing."""
PACE_MAX: Final = 50.0
"""A machine that stood still for a moment must not make a hang last for hours."""


def within_s(quiet_s: float) -> float:
    """The limit on this machine of what may take `quiet_s` on a quiet one."""
    return quiet_s * pace()


@cache
def pace() -> float:
    """How many times slower this machine is than a quiet one; at least 1."""
    known = os.environ.get(ENV_PACE)
    if known is None:
        slower = max(_taken_s(_loop) / QUIET_LOOPS_S, _taken_s(_start) / QUIET_START_S)
        known = os.environ[ENV_PACE] = f"{min(max(1.0, slower), PACE_MAX):.2f}"
    return float(known)


def _taken_s(work: Callable[[], object]) -> float:
    times_s = []
    for _ in range(3):
        began_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s)


def _loop() -> int:
    return sum(number * number % 7 for number in range(LOOPS))


def _start() -> object:
    return subprocess.run((sys.executable, "-S", "-E", "-c", "pass"), check=True)
