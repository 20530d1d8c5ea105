"""The values of one scrape, and a histogram that is kept between scrapes. Pure.

Rule: a sheet is filled by the loop that owns the state, in one go, and only read afterwards: another thread
turns it into text. What is not in the table cannot be put down; what is missing is not put down.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

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
        """One series; None and NaN are missing."""
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
