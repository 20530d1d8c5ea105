"""results/castor.md and its plot, from the runs on the disk; the claims are in `castor/claims.py`.

Rule: no number and no conclusion on the page is typed here: what is said is counted from the runs, whichever
way it comes out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import machine
import numpy as np

from cotenant.controller.performance import DEFAULT_XI
from cotenant.controller.sim.results import plots
from cotenant.controller.sim.results.paired import ConfidenceInterval
from experiments.castor import cells, claims, texts
from experiments.castor.cells import (
    CASTOR,
    JCT_MEAN,
    LARGE_JOBS,
    LEARNING,
    POLICIES,
    SMALL_JOBS,
    Number,
    Ratio,
    Runs,
)
from experiments.castor.grounds import (
    PAPER,
    grounds,
    learned_ratio,
    ratio,
    scaled_seeds,
    sets,
)
from experiments.shared import paths
from experiments.shared.tables import header, row_of, said, said_seeds, saved, scaled

DOCS: Final = paths.RESULTS
PLOTS: Final = "castor"
HOUR_S: Final = 3600.0
DRAWN: Final = ("fifo", "sjf", "tiresias", "lucid:part=false", "sjf-ffs:part=false", CASTOR, "castor-cost")
"""In the plots: more lines could not be told apart."""
UNTOLD: Final = (CASTOR, "fifo", "ssf", "lucid:part=false")
"""Not in the table: the base, what is far off, and what is `sjf` within a hundredth or so."""


def write(book: Runs, folder: Path = DOCS) -> Path:
    """The page; its plots go into a folder beside it."""
    (folder / PLOTS).mkdir(parents=True, exist_ok=True)
    picture = load(book, folder / PLOTS)
    parts = [
        "# Castor beside other policies",
        answer(book),
        picture,
        claimed(book),
        compared(book),
        learned(book),
        claims.why(book),
        how(book),
    ]
    page = folder / "castor.md"
    page.write_text("\n\n".join(part.strip() for part in parts if part) + "\n")
    return page


def answer(book: Runs) -> str:
    """Castor against sjf, ours against Castor, and how many claims hold."""
    found = grounds(book)
    beside = [f"{change(ratio(book, where, CASTOR, 'sjf', JCT_MEAN))} ({where.name})" for where in found]
    held = [claims.verdict([one.holds for one in each]) for _, each in claims.found(book)]
    return said(
        texts.ANSWER,
        sjf=", ".join(beside),
        castor=spread(book, "castor"),
        cost=spread(book, "castor-cost"),
        claims=len(held),
        held=held.count("yes"),
        some=held.count("in part"),
        none=held.count("no"),
    )


def change(found: Ratio) -> str:
    return f"{100.0 * (found.mean - 1.0):+.0f} %"


def spread(book: Runs, policy: str) -> str:
    """From the ground on which a policy gains most to that on which it gains least."""
    found = sorted(ratio(book, where, policy, CASTOR, JCT_MEAN) for where in grounds(book))
    return f"{change(found[0])} to {change(found[-1])}"


def claimed(book: Runs) -> str:
    return "\n".join(["## The paper's claims", "", said(texts.CLAIMS), "", *claims.table(book)])


# --- Policies ----------------------------------------------------------------------------------------


def compared(book: Runs) -> str:
    lines = ["## All policies", "", said(texts.COMPARED), ""]
    found = grounds(book)
    lines += header(("mean JCT", *(where.name for where in found)))
    for policy in POLICIES:
        if policy not in UNTOLD:
            means = [str(ratio(book, where, policy, CASTOR, JCT_MEAN)) for where in found]
            lines.append(row_of([f"`{policy}`", *means]))
    return "\n".join(lines)


def learned(book: Runs) -> str:
    found = grounds(book)
    lines = header(("policy", *(where.name for where in found)))
    for policy in LEARNING:
        ratios = [str(learned_ratio(book, where, policy, JCT_MEAN)) for where in found]
        lines.append(row_of((f"`{policy}`", *ratios)))
    return "\n".join(
        ["## Pairs that nobody has measured", "", said(texts.LEARNED, default=DEFAULT_XI), "", *lines]
    )


# --- Load --------------------------------------------------------------------------------------------


def load(book: Runs, folder: Path) -> str:
    """A picture of the mean JCT by load, on the first set of traces."""
    paper, title, traces = sets()[0]
    seeds = scaled_seeds(book, traces)
    if not (traces and seeds):
        return ""
    series = [curve_of(book, traces, seeds, policy, JCT_MEAN) for policy in DRAWN]
    heading = f"Mean JCT by load, {title} ({said_seeds(seeds)})"
    figure = plots.lines(
        series, heading, f"jobs / {SMALL_JOBS}", "mean JCT (h)", synthetic=False, log_x=False
    )
    return saved(figure, folder, f"load-{paper}-mean", heading)


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


# --- The end -----------------------------------------------------------------------------------------


def how(book: Runs) -> str:
    commits, seeds = book.commits(), sorted({cell.seed for cell in book.results})
    philly, venus = cells.ON_PHILLY, cells.ON_VENUS
    left_out = sum(bool(cells.why_not(trace)) for trace in cells.PHILLY)
    text = said(
        texts.HOW,
        philly_h=philly.span_h,
        venus_h=venus.span_h,
        small=SMALL_JOBS,
        large=LARGE_JOBS,
        philly_hosts=philly.hosts,
        philly_gpus=philly.gpus_per_host,
        venus_hosts=venus.hosts,
        venus_gpus=venus.gpus_per_host,
        least_load=cells.LOAD_MIN,
        left_out=left_out,
    )
    runs = said(texts.RUNS, runs=len(book.results), seeds=said_seeds(seeds), source=PAPER["source"])
    return "\n".join(
        [
            "## How this page was made",
            "",
            text,
            "",
            runs,
            "",
            machine.sentences(numpy=np.__version__),
            f"The runs were made at {'commit' if len(commits) == 1 else 'commits'} {', '.join(commits)}.",
        ]
    )
