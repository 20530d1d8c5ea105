"""Samples of indicators, summed up as a profile's windows are."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.profiler.indicators.sources import Indicator, Sample, Summary, Timed, Windows


def summarise(samples: Sequence[Sample], period_s: float) -> dict[Indicator, Summary]:
    """Of samples that came one period apart."""
    windows = Windows()
    for at, values in enumerate(samples):
        windows.add(Timed(since_s=at * period_s, at_s=(at + 1) * period_s, period_s=period_s, values=values))
    return windows.summaries()
