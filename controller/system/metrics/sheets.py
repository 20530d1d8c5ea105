"""Hands the newest sheet from the loop that owns the state to the threads that show it.

Rule: the loop is never waited for and never waits. A scrape asks it for a fresh sheet and takes the last one
if it does not come in time, but never an old one: who reads it takes it for the present. How often the loop
is asked is bounded, whoever scrapes.
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

from cotenant.controller.system.metrics.sheet import Sheet

FRESH_S_MAX: Final = 1.0
FRESH_SPACING_S: Final = 0.2
AGE_S_MAX: Final = 30.0

log = logging.getLogger("cotenant.metrics")


class Sheets:
    """The newest sheet, made by the loop when a scrape asks for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Sheet]) -> None:
        """`make` is called by the loop."""
        self._loop, self._make = loop, make
        self._lock = threading.Lock()
        self._last: Sheet | None = None
        self._asked: Future[None] | None = None
        self._made_s = self._answered_s = time.monotonic() - FRESH_SPACING_S
        """When the last one was made, and when the loop last tried."""

    def newest(self) -> Sheet | None:
        """From any thread but the loop's. None: there is none that could be taken for the present."""
        with self._lock:
            if time.monotonic() - self._answered_s < FRESH_SPACING_S:
                return self._present()
            if self._asked is None:
                self._asked = Future()
                with suppress(RuntimeError):  # The loop is closed: the process is ending.
                    self._loop.call_soon_threadsafe(self._answer, self._asked)
            asked = self._asked
        with suppress(NotInTime, CancelledError):
            asked.result(FRESH_S_MAX)
        with self._lock:
            return self._present()

    def _present(self) -> Sheet | None:
        return self._last if time.monotonic() - self._made_s <= AGE_S_MAX else None

    def _answer(self, asked: Future[None]) -> None:
        """On the loop. A mistake in here costs a scrape, not the process."""
        sheet = None
        try:
            sheet = self._make()
        except Exception:
            log.exception("the metrics could not be put together")
        with self._lock:
            self._asked, self._answered_s = None, time.monotonic()
            if sheet is not None:
                self._last, self._made_s = sheet, self._answered_s
        asked.set_result(None)
