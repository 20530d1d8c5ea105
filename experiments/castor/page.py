"""results/castor.md and its plots, from the runs on the disk; the claims are in `castor/claims.py`.

Rule: no number and no conclusion on the page is typed here: what is said is counted from the runs, whichever
way it comes out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import machine
import msgspec
import numpy as np

from cotenant.controller.domain import DEFAULT_XI
from cotenant.controller.sim import pair_data
from cotenant.controller.sim.results import plots
from cotenant.controller.sim.results.paired import ConfidenceInterval, interval
from experiments.castor import cells, claims, texts
from experiments.castor.cells import (
    CASTOR,
    JCT_MEAN,
    JCT_P50,
    LARGE_JOBS,
    POLICIES,
    QUANTILES,
    SHARING,
    SMALL_JOBS,
    WAIT_MEAN,
    Number,
    Runs,
)
from experiments.castor.grounds import (
    BUSY,
    MAKESPAN,
    PAPER,
    SHARED,
    YIELD,
    Where,
    benefit,
    grounds,
    growth,
    learned_ratio,
    mean_over,
    paper_ratio,
    ratio,
    scaled_seeds,
    sets,
)
from experiments.shared import paths
from experiments.shared.tables import header, row_of, said, said_seeds, saved, scaled, shown

DOCS: Final = paths.RESULTS
PLOTS: Final = "castor"
PREDICTOR: Final = "castor-predictor"
"""The plots that `experiments/castor/results_predictor.py` made."""
HOUR_S: Final = 3600.0
DRAWN: Final = ("fifo", "sjf", "tiresias", "lucid:part=false", "sjf-ffs:part=false", CASTOR, "castor-cost")
"""In the plots: more lines could not be told apart."""


def write(book: Runs, folder: Path = DOCS) -> Path:
    """The page; its plots go into a folder beside it."""
    (folder / PLOTS).mkdir(parents=True, exist_ok=True)
    parts = [
        head(book),
        samples(book),
        *(compared(book, where) for where in grounds(book)),
        learned(book),
        predicted(),
        by_size(book),
        loads(book, folder / PLOTS),
        distributions(book, folder / PLOTS),
        claims.why(book),
        how(book),
    ]
    page = folder / "castor.md"
    page.write_text("\n\n".join(part.strip() for part in parts if part) + "\n")
    return page


def head(book: Runs) -> str:
    return "\n".join(
        [
            "# Castor, against the others",
            "",
            said(texts.HEAD, source=PAPER["source"]),
            "",
            said(texts.LIVE),
            "",
            said(texts.BESIDE),
            "",
            *claims.table(book),
        ]
    )


# --- Samples -----------------------------------------------------------------------------------------


def samples(book: Runs) -> str:
    philly, venus = cells.ON_PHILLY, cells.ON_VENUS
    lines = header(
        (
            "VC",
            "jobs in the period",
            "1 GPU",
            "more than 8",
            "mean, median length (h)",
            "load at 240",
            "at 480",
        )
    )
    left_out = []
    for trace in (*cells.PHILLY, cells.VENUS):
        if reason := cells.why_not(trace):
            left_out.append(f"{trace} ({reason})")
            continue
        found = cells.period(trace)
        gpus = np.ceil(found.gpus)
        row = [
            trace,
            f"{len(found):,}",
            f"{100 * float(np.mean(gpus == 1)):.0f} %",
            f"{100 * float(np.mean(gpus > 8)):.0f} %",
            f"{found.duration_s.mean() / HOUR_S:.1f}, {np.median(found.duration_s) / HOUR_S:.2f}",
            *(offered(book, trace, jobs) for jobs in (SMALL_JOBS, LARGE_JOBS)),
        ]
        lines.append(row_of(row))
    text = said(
        texts.SAMPLES,
        philly_h=philly.span_h,
        venus_h=venus.span_h,
        small=SMALL_JOBS,
        large=LARGE_JOBS,
        models=len(models()),
        philly_hosts=philly.hosts,
        philly_gpus=philly.gpus_per_host,
        venus_hosts=venus.hosts,
        venus_gpus=venus.gpus_per_host,
        least=cells.LOAD_MIN,
    )
    without = said("Left out: {names}.", names="; ".join(left_out)) if left_out else ""
    return "\n".join(["## Samples", "", text, "", *lines, "", without])


def offered(book: Runs, trace: str, jobs: int) -> str:
    """The load of the samples that were run, over seeds."""
    found = [
        result.summary["offered_load"]
        for cell, result in book.results.items()
        if (cell.trace, cell.jobs, cell.policy) == (trace, jobs, CASTOR)
    ]
    return shown(interval(found), "{:.2f}") if found else "not run"


def models() -> tuple[str, ...]:
    table = pair_data(cells.PAIRS)
    return table.models() if table is not None else ()


# --- Policies ----------------------------------------------------------------------------------------


def compared(book: Runs, where: Where) -> str:
    first = grounds(book)[0] == where
    lines = header(texts.COLUMNS)
    for policy in POLICIES:
        columns = {
            "jct_h": JCT_MEAN,
            "": JCT_P50,
            "testbed_makespan_s": MAKESPAN,
            "wait_h": WAIT_MEAN,
        }
        row = [policy]
        for metric, number in columns.items():
            row.append(str(ratio(book, where, policy, CASTOR, number)))
            if metric:
                theirs = paper_ratio(metric, where.paper, policy)
                row.append("-" if theirs is None else f"{theirs:.2f}")
        gained = benefit(book, where, policy)
        row += [
            f"{100 * mean_over(book, where, policy, BUSY):.0f} %",
            f"{mean_over(book, where, policy, YIELD):.2f}",
            f"{gained:.2f}" if gained else "-",
            f"{100 * mean_over(book, where, policy, SHARED) / where.jobs:.0f} %",
        ]
        lines.append(row_of(row))
    intro = [said(texts.COMPARED), ""] if first else []
    title = (
        f"## {where.name} ({len(where.traces)} VC{'s' * (len(where.traces) != 1)}, {said_seeds(where.seeds)})"
    )
    return "\n".join([title, "", *intro, *lines, "", *absolute(book, where)])


def absolute(book: Runs, where: Where) -> list[str]:
    """Mean and median JCT of each VC under each policy."""
    lines = header(("JCT in h: mean, median", *where.traces))
    for policy in POLICIES:
        row = [policy]
        for template in where.templates(policy=policy):
            values = [
                scaled(book.value(template, where.seeds, number), HOUR_S) for number in (JCT_MEAN, JCT_P50)
            ]
            row.append(f"{shown(values[0], '{:,.2f}')}, {shown(values[1], '{:,.2f}')}")
        lines.append(row_of(row))
    return lines


def learned(book: Runs) -> str:
    found = grounds(book)
    lines = header(("policy", *(f"{w.name}: {what}" for w in found for what in ("mean", "median"))))
    for policy in SHARING:
        ratios = [
            str(learned_ratio(book, where, policy, number))
            for where in found
            for number in (JCT_MEAN, JCT_P50)
        ]
        lines.append(row_of((policy, *ratios)))
    return "\n".join(
        ["## Pairs learned instead of known", "", said(texts.LEARNED, default=DEFAULT_XI), "", *lines]
    )


def predicted() -> str:
    pictures = [f"![{name}]({PREDICTOR}/{name}.svg)" for name in ("calibration", "importances")]
    title = "## Slowdowns predicted, against measured"
    return "\n\n".join((title, said(texts.PREDICTED), *pictures))


def by_size(book: Runs) -> str:
    lines = ["## Queueing by job size", "", said(texts.BY_SIZE, small=SMALL_JOBS)]
    for where in grounds(book):
        if where.jobs != SMALL_JOBS:
            continue
        names = [name for name, _ in cells.WIDTHS]
        table = header((where.name, *names))
        for policy in POLICIES:
            table.append(row_of((policy, *(waited(book, where, policy, name) for name in names))))
        paper = header(("the paper: part of the mean (h)", "large", "small"))
        for policy in PAPER["wait_large_h"][where.paper]:
            parts = [PAPER[f"wait_{size}_h"][where.paper][policy] for size in ("large", "small")]
            paper.append(row_of((policy, *(f"{part:.2f}" for part in parts))))
        lines += ["", *table, "", *paper]
    return "\n".join(lines)


def waited(book: Runs, where: Where, policy: str, name: str) -> str:
    found = [
        result.waits_s[name]
        for template in where.templates(policy=policy)
        for result in book.of(template, where.seeds)
        if name in result.waits_s
    ]
    if not found:
        return "-"
    mean_s, median_s = (float(np.mean([each[at] for each in found])) for at in (1, 2))
    return f"{mean_s / HOUR_S:,.2f}, {median_s / HOUR_S:,.2f}"


# --- Load --------------------------------------------------------------------------------------------


def loads(book: Runs, folder: Path) -> str:
    counts = [round(scale * SMALL_JOBS) for scale in cells.SCALES]
    text = said(
        texts.LOADS,
        counts=", ".join(map(str, counts)),
        first=cells.SCALES[0],
        last=cells.SCALES[-1],
    )
    lines = ["## Load", "", text]
    for paper, title, traces in sets():
        seeds = scaled_seeds(book, traces)
        if not traces or not seeds:
            continue
        for name, number in (("mean", JCT_MEAN), ("median", JCT_P50)):
            series = [curve_of(book, traces, seeds, policy, number) for policy in DRAWN]
            heading = f"{name.capitalize()} JCT by load, {title} ({said_seeds(seeds)})"
            figure = plots.lines(
                series, heading, f"jobs / {SMALL_JOBS}", f"{name} JCT (h)", synthetic=False, log_x=False
            )
            lines += ["", saved(figure, folder, f"load-{paper}-{name}", heading)]
        table = header((f"{title}: growth", "mean JCT", "median JCT"))
        for policy in POLICIES:
            grown = [str(growth(book, traces, policy, seeds, number)) for number in (JCT_MEAN, JCT_P50)]
            table.append(row_of((policy, *grown)))
        lines += ["", *table]
    return "\n".join(lines)


def curve_of(
    book: Runs, traces: tuple[str, ...], seeds: list[int], policy: str, number: Number
) -> plots.Series:
    """Hours by scale, mean over the traces."""
    found: list[ConfidenceInterval] = []
    for scale in cells.SCALES:
        templates = [cells.cell_of(trace, policy, round(scale * SMALL_JOBS)) for trace in traces]
        found.append(scaled(book.total(templates, policy, seeds, number), HOUR_S * len(traces)))
    means, halves = [each.mean for each in found], [each.half or 0.0 for each in found]
    return plots.Series(policy, cells.SCALES, means, halves)


def distributions(book: Runs, folder: Path) -> str:
    """As Fig. 12, of one seed: the first."""
    lines = ["## Distributions", "", "Of the first seed, pairs known."]
    for where in grounds(book):
        if where.jobs != SMALL_JOBS:
            continue
        for template in where.templates():
            found = [
                book.results[msgspec.structs.replace(template, policy=policy, seed=where.seeds[0])]
                for policy in DRAWN
            ]
            curves = [
                plots.Curve(r.cell.policy, np.interp(plots.QUANTILES, QUANTILES, r.jct_s)) for r in found
            ]
            title = f"Job completion time, {template.trace}, {template.jobs} jobs"
            figure = plots.distributions(curves, title, "JCT", synthetic=False)
            lines += ["", saved(figure, folder, f"jct-{template.trace.replace('/', '-')}", title)]
    return "\n".join(lines)


# --- The end -----------------------------------------------------------------------------------------


def how(book: Runs) -> str:
    commits, seeds = book.commits(), sorted({cell.seed for cell in book.results})
    return "\n".join(
        [
            "## How this was made",
            "",
            said(texts.HOW, runs=len(book.results), seeds=said_seeds(seeds), wanted=book.seeds_max),
            "",
            machine.sentences(numpy=np.__version__),
            f"The runs were made at {'commit' if len(commits) == 1 else 'commits'} {', '.join(commits)}.",
        ]
    )
