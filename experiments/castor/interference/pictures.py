"""The pictures of results/castor-predictor.md: functions of numbers that return figures.

Rule: no picture shows single rows of the measured tables, only counts and means over many: some of the tables
are not ours to hand on.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from cotenant.controller.sim.results.plots import COLOURS, HEIGHT_IN, WIDTH_IN

Values = npt.NDArray[np.float64]
SHOWN: Final = 14
BINS: Final = 10


class Bin(NamedTuple):
    """Answers of like size, and what was measured for them."""

    predicted: float
    measured: float
    low: float
    """5th percentile of the measured."""
    high: float
    margin: float
    rows: int


def binned(predicted: Values, measured: Values, margins: Values) -> list[Bin]:
    """Equally many rows in each."""
    order = np.argsort(predicted, kind="stable")
    found = []
    for rows in np.array_split(order, BINS):
        low, high = np.quantile(measured[rows], (0.05, 0.95))
        found.append(
            Bin(
                float(predicted[rows].mean()),
                float(measured[rows].mean()),
                float(low),
                float(high),
                float(margins[rows].mean()),
                len(rows),
            )
        )
    return found


def calibration(parts: dict[str, list[Bin]], title: str) -> Figure:
    """Mean measured over mean predicted xi; bars hold 90 % of the measured, the band is the promised one."""
    figure = Figure(figsize=(WIDTH_IN, 0.55 * WIDTH_IN), layout="constrained")
    panels = figure.subplots(1, len(parts), sharex=True, sharey=True, squeeze=False)[0]
    for number, (axes, (name, bins)) in enumerate(zip(panels, parts.items(), strict=True)):
        x, y = np.array([b.predicted for b in bins]), np.array([b.measured for b in bins])
        ends = np.array([[b.low, b.high] for b in bins]).T
        margins = np.array([b.margin for b in bins])
        axes.fill_between(
            x, x - margins, x + margins, color="#bbbbbb", alpha=0.5, linewidth=0, label="90 % margin"
        )
        axes.plot(x, x, color="#555555", linewidth=1, label="predicted = measured")
        axes.errorbar(
            x, y, yerr=np.abs(ends - y), fmt="o", markersize=4, linewidth=1, capsize=2,
            color=COLOURS[number], label="measured: mean, 5-95 %",
        )  # fmt: skip
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("predicted xi")
        _plain(axes)
    panels[0].set_ylabel("measured xi")
    panels[0].legend(frameon=False, fontsize=7, loc="upper left")
    figure.suptitle(title, fontsize=10)
    return figure


def importances(shares: dict[str, float], title: str) -> Figure:
    """The features with the greatest share of the gain, the greatest on top."""
    kept = sorted(shares.items(), key=lambda each: (-each[1], each[0]))[:SHOWN]
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(kept))
    colour = {"self": COLOURS[0], "other": COLOURS[1], "sum": COLOURS[2]}
    for kind in colour:
        mine = [at for at, (name, _) in enumerate(kept) if name.startswith(f"{kind}.")]
        lengths = [100.0 * kept[at][1] for at in mine]
        axes.barh(mine, lengths, color=colour[kind], label=kind)
        for at, length in zip(mine, lengths, strict=True):
            axes.annotate(
                f"{length:.1f}",
                (length, at),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
    axes.set_yticks(places, [name for name, _ in kept], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("share of the gain of all splits (%)")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    _plain(axes)
    figure.suptitle(title, fontsize=10)
    return figure


def _plain(axes: Any) -> None:
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
