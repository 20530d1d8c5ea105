"""results/lazer.md and its picture, from the runs on the disk.

Rule: no number and no conclusion on the page is typed here: what is said is counted from the runs, whichever
way it comes out. A sentence that depends on a number has the number in braces, or is not here. Cells of
tables stay below 60 characters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import machine
import numpy as np

from cotenant.controller.sim.results import plots
from cotenant.controller.sim.results.paired import Ratio
from experiments.lazer.cells import (
    BASE,
    CONTENDED,
    FUTILE_GPU_S,
    JCT_MEAN,
    JCT_P50,
    JCT_P95,
    LAZER,
    POLICIES,
    WAIT_MEAN,
    Book,
    Ground,
    Number,
)
from experiments.shared import paths
from experiments.shared.tables import header, row_of, said, saved

DOCS: Final = paths.RESULTS
PLOTS: Final = "lazer"
"""The folder of the picture, beside the page."""
RIVALS: Final = tuple(policy for policy in POLICIES if policy != BASE)

TABLED: Final = (LAZER, BASE, "sjf", "interval-360", "srtf-full", "patient")
"""The others are in the picture and among the claims."""

ANSWER: Final = """Deferring preemptions, Lazer's idea, {brings}: against the same policy that never
    defers (`{base}`, which is `srtf`) it changes the mean completion time (JCT) by {deferral[0]} and
    futile GPU time by {deferral[1]} at offered loads of {limit:g} and more, and by {deferral[2]} and
    {deferral[3]} below that. The policy whose mean JCT is most certainly low at high load is `{best}`,
    which changes it by {gains[0]}, P95 by {gains[1]} and the median by {gains[2]}, with {futile}. Below
    {limit:g} it is `{calm}` (mean JCT by {eases}); the worst there is `{dearest}` (median by {dear})."""

CLAIMED: Final = """Go et al., Making Sense of Job Preemption for Distributed Deep Learning Acceleration,
    DAC '26. A number says how many times lower Lazer's is or, in the last two rows, how many times
    larger the first policy's is, with its 95 % interval. A claim holds if the whole interval reaches
    it, and in part if the interval is above 1."""

TABLES: Final = """Ratios to `{base}` (below 1 is better than never deferring) are geometric means over
    {cells[0]} cells at high load and {cells[1]} below, each a VC on a cluster size, with 95 % intervals.
    Futile GPU time, of loads that ended in a preemption, is a sum."""

METHOD: Final = """`make results-lazer` makes this page with {runs} runs: the first {jobs:,} jobs of each of
    {vcs} Philly VCs on {hosts} hosts of 8 GPUs, with lengths known to the policies and modelled load
    times. Each VC and cluster size has {windows} warm windows of {window_jobs} counted jobs
    ([simulator.md](../../docs/simulator.md)). Intervals are paired block bootstraps that draw VCs, then
    cluster sizes, then windows. By hand: `{command}`."""


def write(book: Book, folder: Path = DOCS) -> Path:
    """The page; its picture goes into a folder beside it."""
    (folder / PLOTS).mkdir(parents=True, exist_ok=True)
    parts = [
        answer(book, folder / PLOTS),
        claims(book),
        tables(book),
        method(book),
    ]
    page = folder / "lazer.md"
    page.write_text("\n\n".join(part.strip() for part in parts) + "\n")
    return page


# --- The answer ----------------------------------------------------------------------------------------


def answer(book: Book, folder: Path) -> str:
    heavy, light = book.contended, book.light
    best, calm = best_of(book, heavy), best_of(book, light)
    brought = [
        book.ratio(grounds, LAZER, number)
        for grounds in (heavy, light)
        for number in (JCT_MEAN, FUTILE_GPU_S)
    ]
    dearest = max(RIVALS, key=lambda policy: numbers(book.ratio(light, policy, JCT_P50))[1])
    sets = {
        name: [plots.Range(policy, *numbers(book.ratio(grounds, policy, JCT_MEAN))) for policy in RIVALS]
        for name, grounds in (
            (f"offered load {CONTENDED:g} and more", heavy),
            (f"below {CONTENDED:g}", light),
        )
    }
    title = "Mean JCT against lazer that never defers (1: no difference, below 1: better)"
    figure = plots.ranges(sets, title, f"mean JCT / that of {BASE}, 95 % intervals", synthetic=False)
    text = said(
        ANSWER,
        limit=CONTENDED,
        base=BASE,
        brings=brings(brought),
        deferral=[change(found) for found in brought],
        best=best,
        gains=[change(book.ratio(heavy, best, number)) for number in (JCT_MEAN, JCT_P95, JCT_P50)],
        futile=futile_of(book, heavy, best),
        calm=calm,
        eases=change(book.ratio(light, calm, JCT_MEAN)),
        dearest=dearest,
        dear=change(book.ratio(light, dearest, JCT_P50)),
    )
    return "\n".join(["# Lazer beside other policies", "", text, "", saved(figure, folder, "answer", title)])


def brings(found: Sequence[Ratio | None]) -> str:
    """Of mean JCT and futile time, contended and not: what is surely another."""
    where = [
        f"{what} {load}" for load in ("at high load", "at low load") for what in ("mean JCT", "futile time")
    ]
    sure = [(name, one) for name, one in zip(where, found, strict=True) if one is not None and one.differs]
    if not sure:
        return "changes nothing that the 95 % intervals can tell from chance"
    return "certainly changes " + ", ".join(
        f"{name} ({'less' if one.mean < 1 else 'MORE'})" for name, one in sure
    )


def best_of(book: Book, grounds: Sequence[Ground]) -> str:
    """Whose mean JCT is surest to be low: the least upper end of an interval."""
    upper = {policy: numbers(book.ratio(grounds, policy, JCT_MEAN))[2] for policy in RIVALS}
    return min(upper, key=lambda policy: upper[policy])


def futile_of(book: Book, grounds: Sequence[Ground], policy: str) -> str:
    if not book.total(grounds, policy, FUTILE_GPU_S):
        return "no futile GPU time at all"
    return f"futile GPU time changed by {change(book.ratio(grounds, policy, FUTILE_GPU_S))}"


def numbers(found: Ratio | None) -> tuple[float, float, float]:
    """With its interval; where there is none (small trials), the number alone."""
    if found is None:
        return math.nan, math.nan, math.nan
    return found.mean, found.low or found.mean, found.high or found.mean


def change(found: Ratio | None) -> str:
    if found is None:
        return "-"
    mean, low, high = (round(100.0 * (value - 1.0)) for value in numbers(found))
    return f"{mean:+d} % ({low:+d} to {high:+d})"


def shown(found: Ratio | None) -> str:
    if found is None or found.low is None or found.high is None:
        return "-" if found is None else f"{found.mean:.2f}"
    return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"


# --- Claim by claim ------------------------------------------------------------------------------------

CLAIMS: Final[tuple[tuple[str, str, str, Number, float], ...]] = (
    ("median JCT at least 1.2x below SJF's", "sjf", LAZER, JCT_P50, 1.2),
    ("median JCT at least 1.2x below SRTF's", BASE, LAZER, JCT_P50, 1.2),
    ("... Pollux's (`interval-60`)", "interval-60", LAZER, JCT_P50, 1.2),
    ("... Muri's (`interval-360`)", "interval-360", LAZER, JCT_P50, 1.2),
    ("... Optimus's (`interval-600`)", "interval-600", LAZER, JCT_P50, 1.2),
    ("P95 JCT at least 1.2x below SJF's", "sjf", LAZER, JCT_P95, 1.2),
    ("P95 JCT at least 1.2x below SRTF's", BASE, LAZER, JCT_P95, 1.2),
    ("waiting at least 2x below SJF's", "sjf", LAZER, WAIT_MEAN, 2.0),
    ("waiting at least 2x below SRTF's", BASE, LAZER, WAIT_MEAN, 2.0),
    ("futile preemptions at least 23x below SRTF's", BASE, LAZER, FUTILE_GPU_S, 23.0),
    ("SRTF's median JCT is 1.6x SJF's", BASE, "sjf", JCT_P50, 1.6),
    ("at intervals of 600 s it is longer than SJF's", "interval-600", "sjf", JCT_P50, 1.0),
)
"""The paper's words; whose number over whose; how many times it should be at least."""


def claims(book: Book) -> str:
    lines = [
        "## The paper's claims",
        "",
        said(CLAIMED),
        "",
        *header(("the paper", f"load {CONTENDED:g} and more", "", f"load below {CONTENDED:g}", "")),
    ]
    for text, one, other, number, times in CLAIMS:
        cells_said = []
        for grounds in (book.contended, book.light):
            found = book.ratio(grounds, one, number, other)
            cells_said += [f"{shown(found)}x", verdict(found, times)]
        lines.append(row_of([text, *cells_said]))
    return "\n".join(lines)


def verdict(found: Ratio | None, times: float) -> str:
    _, low, _ = numbers(found)
    return "holds" if low >= times and low > 1.0 else "in part" if low > 1.0 else "no"


# --- Tables --------------------------------------------------------------------------------------------


def tables(book: Book) -> str:
    sides = (book.contended, book.light)
    titles = (f"load {CONTENDED:g} and more: mean JCT", "futile GPU-h", "below: mean JCT", "futile GPU-h")
    lines = ["## All policies", "", said(TABLES, base=BASE, cells=[len(side) for side in sides])]
    lines += ["", *header(("policy", *titles))]
    for policy in TABLED:
        cells = []
        for side in sides:
            ratio = "1" if policy == BASE else shown(book.ratio(side, policy, JCT_MEAN))
            cells += [ratio, f"{book.total(side, policy, FUTILE_GPU_S) / 3600:,.1f}"]
        lines.append(row_of([policy, *cells]))
    return "\n".join(lines)


# --- Method --------------------------------------------------------------------------------------------


def method(book: Book) -> str:
    sizes, commits = book.sizes, book.commits()
    ground = [*book.contended, *book.light][0]
    text = said(
        METHOD,
        jobs=sizes.jobs,
        vcs=len(sizes.vcs),
        hosts=", ".join(map(str, sizes.hosts)),
        windows=sizes.windows,
        window_jobs=sizes.window_jobs,
        runs=len(book.results),
        command=f"{ground.command()} --policies {BASE},{best_of(book, book.contended or book.light)}",
    )
    return "\n".join(
        [
            "## How this page was made",
            "",
            text,
            "",
            machine.sentences(numpy=np.__version__),
            f"The runs were made at {'commit' if len(commits) == 1 else 'commits'} {', '.join(commits)}.",
        ]
    )
