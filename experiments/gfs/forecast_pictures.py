"""The picture of results/gfs-forecast.md: a function of numbers that returns a figure."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from cotenant.controller.papers.gfs.forecast import DAY_H, WEEK_H
from cotenant.controller.sim.results.plots import COLOURS, DASHES, HEIGHT_IN, WIDTH_IN
from experiments.gfs.forecast_runs import HORIZON_H, Fan

SHOWN_H: Final = WEEK_H


def fan(drawn: Fan) -> Figure:
    """The last week of the test: what was asked for, and what had been said of it some hours before."""
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    axes = figure.add_subplot()
    truth, median, q90, q95 = (np.array(each)[-SHOWN_H:] for each in (drawn.truth, drawn.median, drawn.q90,
                                                                     drawn.q95))  # fmt: skip
    days = np.arange(len(truth)) / DAY_H
    axes.fill_between(days, median, q90, color=COLOURS[0], alpha=0.35, linewidth=0, label="median to .9")
    axes.fill_between(days, q90, q95, color=COLOURS[0], alpha=0.15, linewidth=0, label=".9 to .95")
    axes.plot(days, median, color=COLOURS[0], linewidth=1.2, label="median")
    axes.plot(days, truth, color=COLOURS[6], linewidth=1.0, linestyle=DASHES[1], label="asked for")
    axes.set_xlabel("day of the last week")
    axes.set_ylabel("GPUs")
    axes.set_title(f"Demand of all GPUs, as foreseen {HORIZON_H} hours before", fontsize=10)
    axes.set_xlim(0, days[-1])
    axes.legend(frameon=False, fontsize=8, ncols=2)
    _plain(axes)
    return figure


def _plain(axes: Any) -> None:
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
