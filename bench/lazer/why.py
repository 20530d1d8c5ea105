"""docs/results/lazer.md: why things come out as they do. Futile time, options, sensitivity, regimes, search.

Rule: as in `lazer/page.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import places

from cotenant.controller.sim.results import plots
from lazer import cells, texts
from lazer.book import FUTILE, FUTILE_GPU_S, JCT_MEAN, JCT_P50, Book, Number, at, lost_mean_s
from lazer.cells import OPTIONS, VARIED, Cell, Sizes
from lazer.grounds import (
    available,
    grounds,
    header,
    offered,
    real_cells,
    row_of,
    said_seeds,
    saved,
    scaled,
    shown,
    templates_real,
)
from lazer.texts import said

Which = Callable[[Sizes, int], Iterable[Cell]]
BETTER: Final = 0.01
"""Means that differ by less than this share count as equal."""


def whole(book: Book, which: Which) -> list[int]:
    return book.seeds(lambda seed: offered(which(book.sizes, seed)))


# --- Futile time, options --------------------------------------------------------------------------------


def populations(book: Book) -> str:
    lines = [
        "## Futile time over three populations",
        "",
        said(texts.POPULATIONS),
        "",
        "| traces | policy | all jobs | jobs that waited | jobs hit |",
        "| --- | --- | --- | --- | --- |",
    ]
    rows = []
    for name, templates, seeds in grounds(book):
        for policy in available(("srtf", "srtf-full", "interval-60", "lazer", "patient")):
            values_said = []
            for population in ("futile_s", "futile_s_waited", "futile_s_hit"):
                values = [
                    book.total(templates, policy, seeds, at(population, key)).mean / len(templates)
                    for key in ("p50", "p95", "mean")
                ]
                values_said.append("{:,.0f}, {:,.0f}, {:,.1f}".format(*values))
            rows.append(f"| {name} | {policy} | {' | '.join(values_said)} |")
    return "\n".join([*lines, *rows]) if rows else ""


def options(book: Book) -> str:
    """What each reading of the paper changes, and so why futile time hardly falls."""
    wanted = available(OPTIONS)
    seeds = book.seeds(
        lambda seed: [*cells.philly(book.sizes, 1.0, seed, wanted), *real_cells(book, 1.0, seed)]
    )
    if not seeds or not wanted:
        return ""
    templates = templates_real(book, 1.0)
    srtf = book.total(templates, "srtf", seeds, FUTILE_GPU_S).mean
    lines = [
        "## What each reading of the paper changes",
        "",
        said(texts.OPTIONS, seeds=said_seeds(seeds), vcs=len(templates)),
        "",
        "| policy | mean JCT / srtf | median / srtf | futile preemptions | futile GPU time, % of srtf's |",
        "| --- | --- | --- | --- | --- |",
    ]
    for policy in ("srtf", "lazer", *wanted, "patient", "srtf-full"):
        ratios = [str(book.ratio(templates, policy, "srtf", seeds, n)) for n in (JCT_MEAN, JCT_P50)]
        futile = book.total(templates, policy, seeds, FUTILE).mean
        gpu_s = book.total(templates, policy, seeds, FUTILE_GPU_S).mean
        share = f"{100 * gpu_s / srtf:.0f}" if srtf else "-"
        lines.append(f"| {policy} | {' | '.join(ratios)} | {futile:,.0f} | {share} |")
    return "\n".join(lines)


# --- Sensitivity and regimes -------------------------------------------------------------------------------


def sensitivity(book: Book, folder: Path) -> str:
    seeds = book.seeds(lambda seed: offered(cells.varied(book.sizes, seed)))
    if not seeds:
        return ""
    lines = [
        "## Sensitivity",
        "",
        said(
            texts.SENSITIVITY,
            jobs=book.sizes.varied_jobs,
            trace=cells.SENSITIVE,
            seeds=said_seeds(seeds),
        ),
        "",
    ]
    kinds: tuple[tuple[str, str, Sequence[float], bool], ...] = (
        ("load_time_scale", "load times (x)", cells.LOAD_TIMES, True),
        ("load_scale", "arrivals (x)", cells.REGIME_RATES, True),
        ("noise", "sigma of the estimates' error", cells.NOISES, False),
    )
    for field, axis, values, is_log in kinds:
        base = Cell(trace=cells.SENSITIVE, policy="lazer", seed=0, jobs=book.sizes.varied_jobs)
        series, table = [], []
        for policy in available(VARIED):
            points = [
                book.value(msgspec.structs.replace(base, policy=policy, **{field: value}), seeds, JCT_MEAN)
                for value in values
            ]
            scaled_points = [scaled(point, 3600.0) for point in points]
            series.append(
                plots.Series(
                    policy,
                    values,
                    [point.mean for point in scaled_points],
                    [point.half or 0.0 for point in scaled_points],
                )
            )
            table.append([policy, *(shown(point, "{:,.1f}") for point in scaled_points)])
        title = f"Mean JCT against {axis}, {cells.SENSITIVE}"
        figure = plots.lines(series, title, axis, "mean JCT (h)", synthetic=False, log_x=is_log)
        lines += [f"| mean JCT (h), {axis} | {' | '.join(f'{value:g}' for value in values)} |"]
        lines += [f"| --- | {' | '.join('---' for _ in values)} |"]
        lines += [f"| {' | '.join(row)} |" for row in table]
        lines += ["", saved(figure, folder, f"sensitivity-{field}", title), ""]
    return "\n".join(lines)


COMPARED: Final = (
    (JCT_MEAN, "mean JCT", "jct"),
    (lost_mean_s, "mean time not training", "lost"),
    (FUTILE_GPU_S, "futile GPU time", "futile"),
)


def regime(book: Book, folder: Path) -> str:
    lines = [
        "## Where deferral pays",
        "",
        said(texts.REGIME, jobs=book.sizes.regime_jobs, hosts=book.sizes.regime_hosts),
    ]
    made = (("load", cells.regime_load, "same cluster"), ("gap", cells.regime_gap, "the load kept"))
    shown_any = False
    for name, which, words in made:
        seeds = whole(book, which)
        if not seeds:
            continue
        for number, what, file in COMPARED:
            values = grid(book, which, seeds, number)
            if values is None:
                continue
            shown_any = True
            title = f"Lazer's {what} against srtf's, {words}"
            figure = plots.heat_map(
                values,
                title,
                rows=[f"{scale:g}" for scale in book.sizes.load_times],
                columns=[f"{rate:g}" for rate in book.sizes.rates],
                row_axis="load times (x)",
                column_axis="arrivals (x)",
                bar=f"{what}, % above srtf",
                synthetic=True,
            )
            lines += ["", saved(figure, folder, f"regime-{name}-{file}", title)]
            lines += ["", verdict(book, values, what, words, seeds)]
    return "\n".join(lines) if shown_any else ""


def grid(
    book: Book, which: Callable[[Sizes, int], Iterable[Cell]], seeds: list[int], number: Number
) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """Shape (load times, rates): per cent of lazer above srtf, means over seeds."""
    found: dict[tuple[float, float], list[float]] = {}
    for seed in seeds:
        for cell in which(book.sizes, seed):
            if cell.policy != "lazer":
                continue
            one = number(book.results[cell])
            other = number(book.results[msgspec.structs.replace(cell, policy="srtf")])
            share = 100.0 * (one / other - 1.0) if other else math.nan
            found.setdefault((cell.load_time_scale, cell.load_scale), []).append(share)
    rows = [
        [float(np.mean(found[scale, rate])) for rate in book.sizes.rates] for scale in book.sizes.load_times
    ]
    return np.array(rows)


def verdict(book: Book, values: np.ndarray[Any, Any], what: str, words: str, seeds: list[int]) -> str:
    known = values[np.isfinite(values)]
    limit = 100.0 * BETTER
    better, worse = int(np.sum(known < -limit)), int(np.sum(known > limit))
    equal = len(known) - better - worse
    best = np.unravel_index(np.nanargmin(values), values.shape)
    return said(
        texts.VERDICT,
        what=what,
        words=words,
        seeds=said_seeds(seeds),
        limit=limit,
        better=better,
        worse=worse,
        equal=equal,
        cells=len(known),
        least=np.nanmin(values),
        most=np.nanmax(values),
        scale=book.sizes.load_times[int(best[0])],
        rate=book.sizes.rates[int(best[1])],
    )


# --- Fig. 8e ---------------------------------------------------------------------------------------------


def efficiency(folder: Path) -> str:
    """From bench/lazer_decision.json, where that was measured."""
    path = places.BENCH / "lazer_decision.json"
    if not path.exists():
        return ""
    found = json.loads(path.read_text())
    lines = [
        "## The search (Fig. 8e)",
        "",
        said(texts.EFFICIENCY, budget=found["budget"], seeds=found["seeds"]),
        "",
        *header(texts.SEARCHES),
    ]
    files = []
    for number, (name, one) in enumerate(found["efficiency"].items()):
        for method, values in one["methods"].items():
            keys = ("least_f_s", "mean_f_searching_s", "mean_f_after_s")
            share = f"{100 * one['share_f_above_0']:.0f} %"
            lines.append(row_of([name, share, method, *(ranged(values[key]) for key in keys)]))
        never = one["mean_f_if_never_deferred_s"]["mean"]
        lines.append(f"| {name} | | never deferring | | | {never:.1f} |")
        steps = list(range(1, found["budget"] + 1))
        series = [plots.Series(method, steps, best) for method, best in one["best_so_far_s"].items()]
        title = f"Least f(X|c) found, {name}"
        figure = plots.lines(
            series, title, "searches", "least f (s)", synthetic=name == "synthetic", log_x=False
        )
        files.append(saved(figure, folder, f"efficiency-{number}", title))
    return "\n".join([*lines, "", *files])


def ranged(value: dict[str, float]) -> str:
    return f"{value['mean']:.1f} ({value['low']:.1f} to {value['high']:.1f})"
