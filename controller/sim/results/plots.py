"""Plots of simulated runs: each one a function of data that returns a figure; files are written at the end.

Rule: whatever is synthetic says so in its own picture, since pictures travel without their page. Colours are
those of Okabe and Ito, which colour-blind readers can tell apart, and every line has its own dashes as well.
Only this module imports matplotlib (the `[sim]` extra).
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from cotenant.controller.sim.world.outcome import RunResult
from cotenant.controller.system.files import output

Floats = NDArray[np.float64]

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
DASHES: Final = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)))
PARTS: Final = (
    ("waiting (W)", "#E69F00", ""),
    ("loading (L)", "#0072B2", "//"),
    ("training (T)", "#009E73", ""),
    ("pausing (P)", "#CC79A7", "xx"),
)
CUT_RATIO: Final = 5.0
"""A bar so many times as long as the middle one is cut."""
LABEL_CHARS: Final = 20
WIDTH_IN, HEIGHT_IN = 6.4, 3.6
QUANTILES: Final = np.linspace(0.0, 1.0, 401)
UNITS: Final = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"))
MARKS_S: Final = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 86_400.0, 864_000.0, 8_640_000.0, 86_400_000.0)
"""Of a logarithmic axis of durations."""
SMALLEST: Final = 0.1
"""Left end of a logarithmic axis of seconds: shorter times, zero above all, are drawn there."""


class Curve(NamedTuple):
    """A distribution as values at `QUANTILES`."""

    label: str
    values: Floats


class JctParts(NamedTuple):
    """What a JCT is made of, in seconds."""

    label: str
    wait_s: float
    load_s: float
    run_s: float
    pause_s: float


class PercentShare(NamedTuple):
    """Percent of something, and what it may be off by to each side."""

    label: str
    percent: float
    half: float = 0.0


def curve(label: str, values: Floats) -> Curve:
    """Jobs that have not finished (NaN) are left out."""
    known = values[np.isfinite(values)]
    return Curve(label, np.quantile(known, QUANTILES) if len(known) else np.full(len(QUANTILES), np.nan))


def parts(outcome: RunResult, label: str) -> JctParts:
    """The parts of the JCT of the jobs around the median JCT (45 to 55 %): the parts of medians would not add
    up to a JCT."""
    rows = around_median(outcome.jct_s)
    mean = [float(np.mean(column[rows])) for column in _columns(outcome)]
    return JctParts(label, *mean)


def around_median(jct_s: Floats) -> NDArray[np.bool_]:
    finished = np.isfinite(jct_s)
    low = np.quantile(jct_s[finished], 0.45, method="lower")
    high = np.quantile(jct_s[finished], 0.55, method="higher")  # Of two jobs it is both, never none.
    rows: NDArray[np.bool_] = finished & (jct_s >= low) & (jct_s <= high)
    return rows


def _columns(outcome: RunResult) -> tuple[Floats, Floats, Floats, Floats]:
    return outcome.wait_s, outcome.load_s, outcome.run_s, outcome.pause_s


def futile_percent(outcome: RunResult) -> float:
    """GPU time of loads that ended in a preemption / GPU time that jobs held."""
    gpus = outcome.workload.gpus
    held = float(np.nansum((outcome.load_s + outcome.run_s + outcome.pause_s) * gpus))
    return 100.0 * float(np.nansum(outcome.futile_s * gpus)) / held if held > 0.0 else 0.0


# --- Figures -----------------------------------------------------------------------------------------


def distributions(
    curves: Sequence[Curve], title: str, axis: str, *, synthetic: bool, in_seconds: bool = True
) -> Figure:
    """Plots cumulative distributions: how many jobs have at most so much of the value. Seconds are marked in
    larger units."""
    figure, axes = _figure(title, synthetic)
    for number, each in enumerate(curves):
        axes.plot(
            np.maximum(each.values, SMALLEST),
            100.0 * QUANTILES,
            label=break_label(each.label),
            **_line(number),
        )
    axes.set_xscale("log")
    axes.set_ylim(0, 100)
    edge = any(np.any(each.values < SMALLEST) for each in curves)
    if in_seconds:
        _mark_durations(axes)
    smallest = f"{SMALLEST:g}{' s' if in_seconds else ''}"
    axes.set_xlabel(f"{axis} ({smallest} and less at the left edge)" if edge else axis)
    axes.set_ylabel("jobs (%)")
    _legend(axes, len(curves))
    return figure


def trade_off(
    series: Mapping[str, Sequence[tuple[float, float]]], title: str, x: str, y: str, *, line: str
) -> Figure:
    """Points of two numbers that are both better when smaller; those of `line` are joined."""
    figure, axes = _figure(title, False)
    for number, (label, points) in enumerate(series.items()):
        drawn = [point for point in points if np.isfinite(point).all()]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(
            [point[0] for point in drawn],
            [point[1] for point in drawn],
            linestyle="-" if label == line else "none",
            marker="o" if label == line else "X",
            color=colour,
            label=break_label(label),
        )
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    _legend(axes, len(series))
    return figure


def stacked_bars(bars: Sequence[JctParts], title: str, *, synthetic: bool) -> Figure:
    """A bar per policy: what a JCT is made of, as in Lazer's Fig. 3. One so long that nothing could be seen
    of the others is cut, and says so."""
    figure, axes = _figure(title, synthetic)
    totals = [sum(bar[1:]) for bar in bars]
    longest = max((t for t in totals if t <= CUT_RATIO * float(np.median(totals))), default=0.0)
    scale, unit = _unit(totals)
    left = np.zeros(len(bars))
    places = np.arange(len(bars))
    for at, (name, colour, hatch) in enumerate(PARTS):
        lengths = np.array([bar[at + 1] for bar in bars]) / scale
        axes.barh(places, lengths, left=left, color=colour, hatch=hatch, edgecolor="white", label=name)
        left = left + lengths
    end = max(longest / scale, 1e-9)
    for place, total in zip(places, left, strict=True):
        text = f"{total:.3g}" if total < 1000 else f"{total:,.0f}"
        is_cut = total > 1.001 * end
        _annotate_bar(axes, f"{text}, cut" if is_cut else text, min(total, 1.1 * end), place)
    _rows(axes, places, [bar.label for bar in bars])
    axes.set_xlim(0, 1.1 * end if max(left, default=0.0) > end else 1.12 * end)
    axes.set_xlabel(f"mean over the jobs around the median JCT ({unit})")
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.42, 1.0), frameon=False, fontsize=8)
    return figure


def shares(bars: Sequence[PercentShare], title: str, axis: str, *, synthetic: bool) -> Figure:
    """A bar per policy, as in Lazer's Fig. 4."""
    figure, axes = _figure(title, synthetic)
    places = np.arange(len(bars))
    percents = [bar.percent for bar in bars]
    halves = [bar.half for bar in bars]
    axes.barh(places, percents, xerr=halves if any(halves) else None, color=COLOURS[0], capsize=2)
    for place, bar in zip(places, bars, strict=True):
        text = f"{bar.percent:.2g}" if bar.percent else "0"
        _annotate_bar(axes, text, bar.percent + bar.half, place)
    _rows(axes, places, [bar.label for bar in bars])
    axes.set_xlim(0, 1.15 * max(max((p + h for p, h in zip(percents, halves, strict=True)), default=0), 1e-9))
    axes.set_xlabel(axis)
    return figure


class Series(NamedTuple):
    """Values over an axis of numbers; `halves` are half widths of intervals."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    halves: Sequence[float] = ()


def lines(
    series: Sequence[Series], title: str, x_axis: str, y_axis: str, *, synthetic: bool, log_x: bool = True
) -> Figure:
    figure, axes = _figure(title, synthetic)
    for number, each in enumerate(series):
        style = _line(number)
        axes.plot(each.xs, each.ys, marker="o", markersize=3, label=break_label(each.label), **style)
        if any(each.halves):
            ys, halves = np.array(each.ys), np.array(each.halves)
            axes.fill_between(
                each.xs, ys - halves, ys + halves, color=style["color"], alpha=0.15, linewidth=0
            )
    if log_x:
        axes.set_xscale("log")
        ticks = sorted({x for each in series for x in each.xs})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_xlabel(x_axis)
    axes.set_ylabel(y_axis)
    _legend(axes, len(series))
    return figure


class Range(NamedTuple):
    """A number and its interval."""

    label: str
    mean: float
    low: float
    high: float


def ranges(sets: Mapping[str, Sequence[Range]], title: str, axis: str, *, synthetic: bool) -> Figure:
    """A row per label, a point with its interval for each set; 1 is marked. All sets have the same labels."""
    figure, axes = _figure(title, synthetic)
    labels = [each.label for each in next(iter(sets.values()))]
    places = np.arange(len(labels))
    axes.axvline(1.0, color="black", linewidth=0.8)
    for number, (name, found) in enumerate(sets.items()):
        means = np.array([each.mean for each in found])
        ends = np.array([[each.low for each in found], [each.high for each in found]])
        sides = np.maximum((ends - means) * np.array([[-1.0], [1.0]]), 0.0)
        at = places + 0.3 * (number - (len(sets) - 1) / 2)
        axes.errorbar(
            means, at, xerr=sides, fmt="o", markersize=4, capsize=2, color=COLOURS[number], label=name
        )
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [
        tick
        for tick in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50)
        if low <= tick <= high
    ]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    _rows(axes, places, labels)
    axes.set_xlabel(axis)
    axes.legend(ncols=len(sets), loc="lower center", bbox_to_anchor=(0.42, 1.0), frameon=False, fontsize=8)
    return figure


# --- Parts of figures ----------------------------------------------------------------------------------


def _figure(title: str, synthetic: bool) -> tuple[Figure, Any]:
    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
    axes = figure.add_subplot()
    figure.suptitle(f"{title} (SYNTHETIC jobs)" if synthetic else title, fontsize=10)
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _line(number: int) -> dict[str, Any]:
    """Eight colours, each again with other dashes."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[(number // len(COLOURS) + number) % len(DASHES)],
        "linewidth": 1.6,
    }


def break_label(label: str) -> str:
    """A policy with its parameters in lines that leave room for the plot beside them."""
    if len(label) <= LABEL_CHARS:
        return label
    lines = [""]
    for word in re.split(r"(?<=[:,])", label):
        if lines[-1] and len(lines[-1]) + len(word) > LABEL_CHARS:
            lines.append("")
        lines[-1] += word
    return "\n".join(lines)


def _annotate_bar(axes: Any, text: str, x: float, place: Any) -> None:
    """Writes beside a bar what its length is."""
    at = {"xytext": (3, 0), "textcoords": "offset points"}
    axes.annotate(text, (x, place), va="center", fontsize=8, **at)


def _legend(axes: Any, entries: int) -> None:
    axes.legend(
        loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8 if entries <= 10 else 7
    )


def _rows(axes: Any, places: Floats | NDArray[np.int64], labels: Sequence[str]) -> None:
    axes.set_yticks(places, [break_label(label) for label in labels], fontsize=8)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def _unit(values: Sequence[float]) -> tuple[float, str]:
    """The largest of which a middle value has two."""
    middle = float(np.median(values)) if len(values) else 0.0
    return next((each for each in UNITS if middle >= 2 * each[0]), (1.0, "s"))


def _mark_durations(axes: Any) -> None:
    low, high = axes.get_xlim()
    marks = [mark for mark in MARKS_S if low <= mark <= high]
    scales = [next((each for each in UNITS if mark >= each[0]), (1.0, "s")) for mark in marks]
    axes.set_xticks(marks, [f"{mark / s:g} {unit}" for mark, (s, unit) in zip(marks, scales, strict=True)])
    axes.minorticks_off()


# --- Files ---------------------------------------------------------------------------------------------


def save(figure: Figure, path: Path) -> None:
    """SVG (the same bytes for the same data) or PNG, by the path's suffix."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "cotenant"
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with output(path) as beside:
        figure.savefig(beside, dpi=150, metadata=metadata)


def svg_of(figure: Figure) -> str:
    """The figure as SVG text: the same bytes as `save` writes."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "cotenant"
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def write_all(outcomes: Mapping[str, RunResult], folder: Path) -> list[str]:
    """What `--out` shows of a comparison: label -> one run of it (the first seed's). Names of the files."""
    if not outcomes:
        return []
    one = next(iter(outcomes.values()))
    synthetic, name = one.workload.synthetic, one.workload.name
    figures = {
        "jct.svg": distributions(
            [curve(label, each.jct_s) for label, each in outcomes.items()],
            f"Job completion time, {name}",
            "JCT",
            synthetic=synthetic,
        ),
        "wait.svg": distributions(
            [curve(label, each.wait_s) for label, each in outcomes.items()],
            f"Waiting time, {name}",
            "waiting time",
            synthetic=synthetic,
        ),
        "parts.svg": stacked_bars(
            [parts(each, label) for label, each in outcomes.items() if np.any(each.finished)],
            f"What a JCT is made of, {name}",
            synthetic=synthetic,
        ),
        "futile.svg": shares(
            [PercentShare(label, futile_percent(each)) for label, each in outcomes.items()],
            f"Loads that were for nothing, {name}",
            "futile preemptions (% of the GPU time held)",
            synthetic=synthetic,
        ),
    }
    for file, figure in figures.items():
        save(figure, folder / file)
    return list(figures)
