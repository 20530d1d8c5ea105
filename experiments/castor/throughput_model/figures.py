"""The picture of the throughput model's error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cotenant.controller.sim.results.plots import COLOURS, WIDTH_IN


def errors(
    held_out: Mapping[str, tuple[float, float, float]], seen: Mapping[str, float], limits: tuple[float, float]
) -> Figure:
    """A bar for each application and way of holding out.

    Args:
        held_out: application -> mean over seeds, least and largest seed, as ratios.
        seen: application -> error from what a profiler sees, above four devices.
        limits: what the mean over applications should stay below, for both.
    """
    figure = Figure(figsize=(WIDTH_IN, 3.4), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(held_out))
    means = 100.0 * np.array([mean for mean, _, _ in held_out.values()])
    reach = 100.0 * np.abs(np.array([[low, high] for _, low, high in held_out.values()]).T - means / 100.0)
    axes.bar(places - 0.2, means, 0.38, yerr=reach, capsize=2, color=COLOURS[0], label="placements held out")
    axes.bar(
        places + 0.2,
        [100.0 * seen[app] for app in held_out],
        0.38,
        color=COLOURS[1],
        hatch="//",
        edgecolor="white",
        label="5 to 64 devices from a profile of at most 4",
    )
    for limit, colour in zip(limits, COLOURS, strict=False):
        axes.axhline(100.0 * limit, color=colour, linestyle=(0, (5, 2)), linewidth=1.0)
    axes.set_xticks(places, list(held_out), fontsize=8)
    axes.set_ylabel("mean error of step time (%)")
    _plain(axes)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, 0.96))
    figure.suptitle(
        "Step times of rows the fit has not seen; dashed: what their mean should stay below", fontsize=9
    )
    return figure


def _plain(axes: Any) -> None:
    axes.grid(visible=True, color="#eeeeee", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
