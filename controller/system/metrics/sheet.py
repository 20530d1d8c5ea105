"""The values of one scrape, a histogram that is kept between scrapes, and how the newest values get from the
loop that owns the state to the threads that show them.

Rule: the loop fills a sheet, in one go, and afterwards another thread only reads it and turns it into text. A
sheet refuses what is not in the table; a missing value has no row. Rule: the loop never waits, and nobody
waits for it. A scrape asks it for a fresh sheet and takes the last one if it does not come in time, but never
an old one, since readers take it for the present. How often scrapes may ask the loop is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from typing import Final

from cotenant.controller.system.metrics.table import Metric

SERIES_MAX = 20_000
"""In one sheet; what comes then is left out and counted."""


class Histogram:
    """Counts by upper bound, as Prometheus wants them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        assert list(bounds) == sorted(set(bounds)), f"bounds must rise, got {bounds}"
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        other = Histogram(self.bounds)
        other.counts, other.total = list(self.counts), self.total
        return other

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Upper bound, inclusive, and how many are not above it."""
        count = 0
        for bound, more in zip((*self.bounds, math.inf), self.counts, strict=True):
            count += more
            yield bound, count


class Sheet:
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self.metrics = {metric.name: metric for metric in metrics}
        self.values: dict[str, dict[tuple[str, ...], float]] = {}
        self.histograms: dict[str, Histogram] = {}
        self.left_out = 0
        self._room = SERIES_MAX

    def put(self, name: str, value: float | None, *labels: str) -> None:
        """Puts in the value of one series; None and NaN are missing."""
        metric = self.metrics[name]
        assert metric.kind != "histogram" and len(labels) == len(metric.labels), f"{name}{labels}"
        if value is None or math.isnan(value):
            return
        if self._room <= 0:
            self.left_out += 1
            return
        self._room -= 1
        self.values.setdefault(name, {})[labels] = float(value)

    def end_with(self, name: str, *labels: str) -> Sheet:
        """How many series found no room; this one always does."""
        self.values[name] = {labels: float(self.left_out)}
        return self

    def put_histogram(self, name: str, histogram: Histogram) -> None:
        assert self.metrics[name].kind == "histogram", name
        self.histograms[name] = histogram.copy()


FRESH_S_MAX: Final = 1.0
FRESH_SPACING_S: Final = 0.2
AGE_S_MAX: Final = 30.0

log = logging.getLogger("cotenant.metrics")


class Sheets:
    """The newest sheet, made by the loop when a scrape asks for it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        make: Callable[[], Sheet],
        *,
        fresh_s_max: float = FRESH_S_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make` is called by the loop; nobody waits for it for longer than `fresh_s_max`."""
        self._loop, self._make = loop, make
        self._fresh_s_max, self._clock = fresh_s_max, clock
        self._lock = threading.Lock()
        self._last: Sheet | None = None
        self._asked: Future[None] | None = None
        self._made_s = self._answered_s = clock() - FRESH_SPACING_S
        """When the last one was made, and when the loop last tried."""

    def newest(self) -> Sheet | None:
        """Returns a recent sheet, from any thread but the loop's. None: there is no recent one."""
        with self._lock:
            if self._clock() - self._answered_s < FRESH_SPACING_S:
                return self._present()
            if self._asked is None:
                self._asked = Future()
                with suppress(RuntimeError):  # The loop is closed: the process is ending.
                    self._loop.call_soon_threadsafe(self._answer, self._asked)
            asked = self._asked
        with suppress(NotInTime, CancelledError):
            asked.result(self._fresh_s_max)
        with self._lock:
            return self._present()

    def _present(self) -> Sheet | None:
        return self._last if self._clock() - self._made_s <= AGE_S_MAX else None

    def _answer(self, asked: Future[None]) -> None:
        """Makes a sheet on the loop's thread. A mistake in here costs a scrape, not the process."""
        sheet = None
        try:
            sheet = self._make()
        except Exception:
            log.exception("the metrics could not be put together")
        with self._lock:
            self._asked, self._answered_s = None, self._clock()
            if sheet is not None:
                self._last, self._made_s = sheet, self._answered_s
        asked.set_result(None)
