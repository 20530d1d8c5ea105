"""Hands the newest sheet from the loop that owns the state to the threads that show it.

Rule: the loop is never waited for and never waits. A scrape asks it for a fresh sheet and takes the last one
if it does not come in time. How often the loop is asked is bounded, whoever scrapes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from typing import Final

from cotenant.controller.metrics.sheet import Sheet

FRESH_S_MAX: Final = 1.0
FRESH_SPACING_S: Final = 0.2

log = logging.getLogger("cotenant.metrics")


class Sheets:
    """The newest sheet, made by the loop when a scrape asks for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Sheet]) -> None:
        """`make` is called by the loop."""
        self._loop, self._make = loop, make
        self._lock = threading.Lock()
        self._last: Sheet | None = None
        self._asked: Future[None] | None = None
        self._made_s = -FRESH_SPACING_S

    def newest(self) -> Sheet | None:
        """From any thread but the loop's. None: there never was one."""
        with self._lock:
            if time.monotonic() - self._made_s < FRESH_SPACING_S:
                return self._last
            if self._asked is None:
                self._asked = Future()
                with suppress(RuntimeError):  # The loop is closed: the process is ending.
                    self._loop.call_soon_threadsafe(self._answer, self._asked)
            asked = self._asked
        with suppress(NotInTime, CancelledError):
            asked.result(FRESH_S_MAX)
        with self._lock:
            return self._last

    def _answer(self, asked: Future[None]) -> None:
        """On the loop. A mistake in here costs a scrape, not the process."""
        sheet = self._last
        try:
            sheet = self._make()
        except Exception:
            log.exception("the metrics could not be put together")
        with self._lock:
            self._last, self._asked, self._made_s = sheet, None, time.monotonic()
        asked.set_result(None)
