"""The page: every number, and every verdict that depends on one, is computed from the runs.

Rule: ± is a 95 % interval over seeds (Student's). What was not run is not on the page, and the page says how
much was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.controller.sim.results import plots
from cotenant.controller.sim.results.paired import interval
from experiments.gfs.scheduling_runs import (
    HOSTS,
    KNOWING,
    KNOWN_DAYS,
    POLICIES,
    POOL,
    STRICT,
    Cell,
    Reserved,
    Row,
    World,
)
from experiments.shared.tables import header, row_of, said, saved, shown

Rows = Mapping[Cell, Row]
Of = Callable[[Row], float]
LOAD_NAMES: Final = {"gfs": "1x", "gfs-2x": "2x", "gfs-4x": "4x"}


class Measure(NamedTuple):
    title: str
    of: Of
    form: str


COLUMNS: Final = (
    Measure("evicted %", lambda row: 100 * row.evicted, "{:.2f}"),
    Measure("broken %", lambda row: 100 * row.broken, "{:.2f}"),
    Measure("spot wait, s", lambda row: row.spot_wait_s, "{:,.0f}"),
)


class Runs:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.days = next(iter(rows)).days if rows else 0

    def of(self, world: World, load: str, policy: str, known_days: int = 0) -> dict[int, Row]:
        """By seed."""
        return {
            cell.seed: row
            for cell, row in self._rows.items()
            if (cell.world, cell.load, cell.policy, cell.known_days) == (world, load, policy, known_days)
        }

    def ratio(self, world: World, load: str, policy: str, to: str, of: Of) -> list[float] | None:
        """Seed by seed, of those that both have and where there is something to divide by."""
        mine, theirs = self.of(world, load, policy), self.of(world, load, to)
        found = [of(mine[s]) / of(theirs[s]) for s in sorted({*mine} & {*theirs}) if of(theirs[s]) > 0]
        return found or None

    def rows(self, world: World, load: str, policies: Sequence[str]) -> list[str]:
        """Of a table, of those that were run."""
        lines = []
        for policy in policies:
            if rows := [*self.of(world, load, policy).values()]:
                cells = [shown(interval([each.of(row) for row in rows]), each.form) for each in COLUMNS]
                lines.append(row_of([LOAD_NAMES[load], f"`{policy}`", *cells]))
        return lines


def page(rows: Rows, asked: int, command: str, facts: str, reserved: Reserved, folder: Path) -> str:
    runs = Runs(rows)
    seeds = sorted({cell.seed for cell in rows})
    made = said(
        HOW, days=runs.days, hosts=HOSTS, done=len(rows), asked=asked, command=command, seeds=len(seeds)
    )
    parts = [
        ["# Spot jobs beside high-priority jobs: GFS, its baselines and gfs-rise"],
        [answer(runs)],
        [picture(runs, folder)],
        ["## All policies", "", said(TABLE), "", *tables(runs)],
        ["## The paper's claims", "", said(CLAIMS), "", *claims(runs)],
        readings(runs, reserved),
        ["## How this page was made", "", made, "", facts],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


# --- The answer -----------------------------------------------------------------------------------


def answer(runs: Runs) -> str:
    loads = [load for load in LOAD_NAMES if all(runs.of("lose", load, policy) for policy in POLICIES)]

    def each(policy: str, of: Of, form: str) -> str:
        return listed([form.format(mean(runs, "lose", load, policy, of)) for load in loads])

    best = [
        f"{LOAD_NAMES[load]}: `{min(POLICIES, key=lambda p: mean(runs, 'lose', load, p, broken))}`, "
        f"`{min(POLICIES, key=lambda p: mean(runs, 'lose', load, p, wait_min))}`"
        for load in loads
    ]
    evicted, waited = (
        {policy: each(policy, of, form) for policy in ("yarn-cs", "gfs", "gfs-rise")}
        for of, form in ((evicted_percent, "{:.1f}"), (wait_min, "{:.0f}"))
    )
    names = listed([LOAD_NAMES[load] for load in loads])
    return said(ANSWER, loads=names, evicted=evicted, waited=waited, best="; ".join(best))


def evicted_percent(row: Row) -> float:
    return 100.0 * row.evicted


def broken(row: Row) -> float:
    return row.broken


def wait_min(row: Row) -> float:
    return row.spot_wait_s / 60.0


def listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def picture(runs: Runs, folder: Path) -> str:
    """What spot jobs wait against how many are evicted, where most ask for the least."""
    load = "gfs-4x"

    def number(policy: str, of: Of) -> float:
        return mean(runs, "lose", load, policy, of)

    series = {
        policy: [(number(policy, wait_min), number(policy, evicted_percent))]
        for policy in (*POLICIES, POOL)
        if runs.of("lose", load, policy)
    }
    title = "Spot jobs at 4x load (SYNTHETIC jobs): waiting against evictions"
    figure = plots.trade_off(series, title, "mean wait of a spot job (min)", "evicted runs (%)", line="")
    folder.mkdir(parents=True, exist_ok=True)
    return saved(figure, folder, "answer", title)


def mean(runs: Runs, world: World, load: str, policy: str, of: Of, known_days: int = 0) -> float:
    rows = list(runs.of(world, load, policy, known_days).values())
    return sum(map(of, rows)) / len(rows)


def readings(runs: Runs, reserved: Reserved) -> list[str]:
    """What two readings of the same policy differ by, and what a known demand changes."""
    load, yarn = "gfs-4x", "yarn-cs"
    here = (runs.of("lose", load, policy) for policy in (yarn, STRICT, "gfs", POOL))
    knowing = (runs.of("lose", load, policy, KNOWN_DAYS) for policy in KNOWING)
    if not all((*here, *knowing)):
        return []

    def said_of(policy: str, known_days: int = 0) -> str:
        evicted, waited = (
            mean(runs, "lose", load, policy, of, known_days) for of in (evicted_percent, wait_min)
        )
        return f"{evicted:.1f} % at {waited / 60:.1f} h"

    by, total = reserved.by_organisation, reserved.of_the_total
    return [
        "## What the paper leaves open",
        "",
        said(
            READINGS,
            n=reserved.organisations, a=100 * by.day_2, b=100 * by.after_two_weeks, c=100 * total.day_2,
            d=100 * total.after_two_weeks, gfs=said_of("gfs"), pool=POOL, pooled=said_of(POOL), yarn=yarn,
            passing=said_of(yarn), strict=STRICT, waiting=said_of(STRICT), days=KNOWN_DAYS,
            known=said_of("gfs", KNOWN_DAYS), rise_known=said_of("gfs-rise", KNOWN_DAYS),
        ),
    ]  # fmt: skip


def claims(runs: Runs) -> list[str]:
    lines = header(["paper's table", "ratio", "paper", "here", "holds"])
    for table, load, figure, policy, to, paper in CLAIMED:
        found = runs.ratio("lose", load, policy, to, FIGURES[figure])
        title = f"{figure}, `{policy}` / `{to}`, {LOAD_NAMES[load]}"
        if found is None:
            lines.append(row_of([table, title, paper, "not computed", "-"]))
            continue
        is_larger = sum(found) / len(found) > 1.0
        holds = is_larger == (not paper.startswith(("below", "0.")))
        here = shown(interval(found), "{:.2f}")
        lines.append(row_of([table, title, paper, here, "yes" if holds else "no"]))
    return lines


FIGURES: Final[Mapping[str, Of]] = {
    "evictions": lambda row: row.evicted,
    "spot wait": lambda row: row.spot_wait_s,
    "spot JCT": lambda row: row.spot_jct_s,
}
CLAIMED: Final = (
    *(
        ("5", load, figure, "gfs", "yarn-cs", "below 1")
        for load in LOAD_NAMES
        for figure in ("evictions", "spot wait")
    ),
    ("6", "gfs-2x", "spot wait", "gfs:hours=4", "gfs", "5.47"),
    ("8", "gfs-2x", "spot JCT", "gfs", "gfs-e", "0.52"),
    ("8", "gfs-2x", "evictions", "gfs", "gfs-e", "0.15"),
    ("9", "gfs-2x", "spot wait", "gfs", "gfs-d", "0.26"),
    ("9", "gfs-2x", "evictions", "gfs", "gfs-d", "0.70"),
    ("10", "gfs-2x", "evictions", "gfs", "gfs-s", "0.68"),
    ("10", "gfs-2x", "evictions", "gfs", "gfs-p", "0.41"),
    ("10", "gfs-2x", "evictions", "gfs", "gfs-sp", "0.46"),
)
"""The paper's table, load, figure, policy, the one it is divided by, and the paper's ratio."""


# --- Tables ---------------------------------------------------------------------------------------


def tables(runs: Runs) -> list[str]:
    lines = header(["spot load", "policy", *(measure.title for measure in COLUMNS)])
    for load in ("gfs", "gfs-4x"):
        lines += runs.rows("lose", load, POLICIES)
    return lines


# --- Words ----------------------------------------------------------------------------------------

ANSWER: Final = """
    At {loads} the spot load, `gfs-rise` evicts {evicted[gfs-rise]} % of the runs of spot jobs,
    `gfs` {evicted[gfs]} % and `yarn-cs` {evicted[yarn-cs]} %. Spot jobs wait {waited[gfs-rise]} min on
    average under `gfs-rise`, {waited[gfs]} min under `gfs` and {waited[yarn-cs]} min under `yarn-cs`. The
    policy that breaks the fewest promises and the one with the shortest wait are, by load: {best}.
"""
TABLE: Final = """
    Preempted spot jobs lose everything. A promise is broken when a spot job is evicted within its guaranteed
    hour. Numbers are means over seeds with 95 % intervals.
"""
CLAIMS: Final = """
    A claim holds if our mean ratio lies on the same side of 1 as the paper's.
"""
READINGS: Final = """
    Eq. 9 adds up the highest quantile of each organisation, as if all peaked at once. With {n} organisations
    it reserves {a:.0f} % more than high-priority jobs ask for on day 2 and {b:.0f} % after two weeks; one
    quantile of the total (`{pool}`) reserves {c:.0f} % and {d:.0f} %. At 4x `gfs` evicts {gfs} of mean wait,
    and the total's quantile {pooled}. If a job may pass one that does not fit, `{yarn}` evicts {passing}; if
    not (`{strict}`), {waiting}. All of this begins with no
    history of demand. After {days} days of it `gfs` evicts {known}, and `gfs-rise` {rise_known}.
"""
HOW: Final = """
    `{command}` made this page: {done} of {asked} runs, {seeds} seeds. The workload is SYNTHETIC: {days} days,
    generated to meet what GFS (ASPLOS '26) publishes, on {hosts} hosts of 8 GPUs
    ([traces](../../docs/simulator.md)).
"""
