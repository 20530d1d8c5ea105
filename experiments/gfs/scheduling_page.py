"""The page: every number, and every verdict that depends on one, is computed from the runs.

Rule: ± is a 95 % interval over seeds (Student's). A verdict about every seed looks at every seed. What was
not run is not on the page, and the page says how much was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from cotenant.controller.sim.results.paired import interval
from experiments.gfs.scheduling_runs import (
    ABLATIONS,
    BASELINES,
    HOSTS,
    LOADS,
    POLICIES,
    RISE_8,
    Cell,
    Row,
    World,
)
from experiments.shared.tables import header, row_of, said, shown

Rows = Mapping[Cell, Row]
Of = Callable[[Row], float]
TITLES: Final = {"gfs": "low spot load (1x)", "gfs-2x": "medium (2x)", "gfs-4x": "high (4x)"}


class Measure(NamedTuple):
    title: str
    of: Of
    form: str


COLUMNS: Final = (
    Measure("hp JCT p99, s", lambda row: row.hp_jct_p99_s, "{:,.0f}"),
    Measure("hp JCT, s", lambda row: row.hp_jct_s, "{:,.0f}"),
    Measure("hp wait, s", lambda row: row.hp_wait_s, "{:.1f}"),
    Measure("spot JCT, s", lambda row: row.spot_jct_s, "{:,.0f}"),
    Measure("spot wait, s", lambda row: row.spot_wait_s, "{:,.0f}"),
    Measure("evicted %", lambda row: 100 * row.evicted, "{:.2f}"),
    Measure("broken %", lambda row: 100 * row.broken, "{:.2f}"),
    Measure("allocated %", lambda row: 100 * row.allocated, "{:.1f}"),
    Measure("lost GPU-h", lambda row: row.lost_gpu_h, "{:,.0f}"),
)


class Runs:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.days = next(iter(rows)).days if rows else 0

    def of(self, world: World, load: str, policy: str) -> dict[int, Row]:
        """By seed."""
        return {
            cell.seed: row
            for cell, row in self._rows.items()
            if (cell.world, cell.load, cell.policy) == (world, load, policy)
        }

    def ratio(self, world: World, load: str, policy: str, to: str, of: Of) -> list[float] | None:
        """Seed by seed, of those that both have."""
        mine, theirs = self.of(world, load, policy), self.of(world, load, to)
        both = sorted(set(mine) & set(theirs))
        found = [of(mine[s]) / of(theirs[s]) for s in both if of(theirs[s]) > 0]
        return found or None

    def table(self, world: World, load: str, policies: Sequence[str]) -> list[str]:
        present = [policy for policy in policies if self.of(world, load, policy)]
        if not present:
            return []
        lines = header(["policy", "seeds", *(measure.title for measure in COLUMNS)])
        for policy in present:
            rows = list(self.of(world, load, policy).values())
            cells = [shown(interval([measure.of(row) for row in rows]), measure.form) for measure in COLUMNS]
            lines.append(row_of([f"`{policy}`", str(len(rows)), *cells]))
        return [*lines, ""]


def page(rows: Rows, asked: int, command: str, facts: str) -> str:
    runs = Runs(rows)
    parts = [
        "# Spot jobs beside hp jobs: GFS, its baselines, and gfs-rise",
        "",
        said(
            "Classes, quota and preemption of GFS (ASPLOS '26) over a SYNTHETIC workload of {days} days, "
            "generated to meet what GFS publishes ({hosts} hosts of 8 GPUs; [traces](../traces.md)): {done} "
            "of {asked} runs were computed for this page, and each table says how many seeds it has. The "
            "history of demand begins empty in each run, so its first day is a cold start. `make "
            "results-gfs` computes five days and five seeds. Made by `{command}`.",
            days=runs.days, hosts=HOSTS, done=len(rows), asked=asked, command=command,
        ),
        "",
        *answer(runs),
        *to_meet(runs),
        *tables(runs),
        *losses(runs),
        "## How it was made",
        "",
        facts,
        "",
    ]  # fmt: skip
    return "\n".join(parts)


# --- The first screen -----------------------------------------------------------------------------


def answer(runs: Runs) -> list[str]:
    lines = ["**Which policy for which load, and what does it cost?** " + advice(runs), ""]
    for load in ("gfs", "gfs-2x", "gfs-4x"):
        known = [p for p in (*POLICIES, RISE_8) if runs.of("lose", load, p)]
        if len(known) < 2:
            continue
        said_of = [f"`{policy}` {brief(runs, 'lose', load, policy)}" for policy in known]
        fewest = min(known, key=lambda p: mean(runs, "lose", load, p, lambda row: row.broken))
        quickest = min(known, key=lambda p: mean(runs, "lose", load, p, lambda row: row.spot_wait_s))
        lines += [
            f"* {TITLES[load]}: fewest broken promises `{fewest}`, shortest spot wait `{quickest}`. "
            + "; ".join(said_of) + "."
        ]  # fmt: skip
    figures = (
        "Figures: runs of spot jobs that were evicted; of those, within the promised hour; mean wait of a "
        "spot job. Preempted jobs lose everything in this world. What hp jobs get is in the tables."
    )
    return [*lines, "", figures, ""]


def advice(runs: Runs) -> str:
    """`gfs-rise` against who waits least, load by load."""
    said_of = []
    for load in ("gfs", "gfs-2x", "gfs-4x"):
        known = [p for p in POLICIES if runs.of("lose", load, p)]
        if "gfs-rise" not in known or len(known) < 2:
            continue
        quickest = min(known, key=lambda p: mean(runs, "lose", load, p, lambda row: row.spot_wait_s))
        broken = [100 * mean(runs, "lose", load, p, lambda row: row.broken) for p in ("gfs-rise", quickest)]
        waits = [
            mean(runs, "lose", load, p, lambda row: row.spot_wait_s) / 60 for p in ("gfs-rise", quickest)
        ]
        said_of.append(
            f"at {TITLES[load]} it breaks {broken[0]:.1f} % of its promises where `{quickest}`, which waits "
            f"least, breaks {broken[1]:.1f} %, for a mean spot wait of {waits[0]:.0f} min "
            f"in place of {waits[1]:.0f}"
        )
    return f"`gfs-rise` where spot jobs should not be evicted: {'; '.join(said_of)}." if said_of else ""


def mean(runs: Runs, world: World, load: str, policy: str, of: Of) -> float:
    rows = list(runs.of(world, load, policy).values())
    return sum(map(of, rows)) / len(rows)


def brief(runs: Runs, world: World, load: str, policy: str) -> str:
    evicted = 100 * mean(runs, world, load, policy, lambda row: row.evicted)
    broken = 100 * mean(runs, world, load, policy, lambda row: row.broken)
    wait_h = mean(runs, world, load, policy, lambda row: row.spot_wait_s) / 3600
    return f"{evicted:.1f} %, {broken:.1f} %, {wait_h:.2f} h"


# --- Verdicts -------------------------------------------------------------------------------------


def verdict(found: list[float] | None, at_most: float) -> tuple[str, str]:
    if found is None:
        return "not computed", "not computed"
    text = shown(interval(found), "{:.3f}") + f" ({min(found):.3f} to {max(found):.3f})"
    if max(found) <= at_most:
        return text, "met in every seed"
    return text, "met on average only" if sum(found) / len(found) <= at_most else "NOT met"


def to_meet(runs: Runs) -> list[str]:
    load: str = "gfs-4x"

    def row(title: str, policy: str, to: str, of: Of, at_most: float, asked: str) -> str:
        text, judged = verdict(runs.ratio("lose", load, policy, to, of), at_most)
        return row_of([title, asked, text, judged])

    best = best_wait(runs, load)
    broken = [row.broken for row in runs.of("lose", load, "gfs-rise").values()] or None
    broken_text, broken_judged = verdict(broken, 0.02)
    p99 = [
        r.decision_p99_ms for policy in ("gfs", "gfs-rise") for r in runs.of("lose", load, policy).values()
    ]
    p99_text, p99_judged = verdict(p99 or None, 10.0)
    lines = [
        "## What was to be met, at 4x, where preempted jobs lose everything",
        "",
        *header(["figure", "asked", "found: mean ± interval (seeds)", "verdict"]),
        row("evictions, gfs / yarn-cs", "gfs", "yarn-cs", lambda r: r.evicted, 0.75, "at most .75"),
        row("hp JCT, gfs / yarn-cs", "gfs", "yarn-cs", lambda r: r.hp_jct_s, 1.002, "at most 1.002"),
        row("evictions, gfs-rise / yarn-cs", "gfs-rise", "yarn-cs", lambda r: r.evicted, 0.3, "at most .30"),
        row("evictions, gfs-rise / gfs", "gfs-rise", "gfs", lambda r: r.evicted, 0.5, "at most .50"),
        row("spot wait, gfs-rise / gfs", "gfs-rise", "gfs", lambda r: r.spot_wait_s, 0.2, "at most .20"),
        row(
            f"spot wait, gfs-rise / best of yarn-cs, lyra, fgd (here {best})", "gfs-rise", best,
            lambda r: r.spot_wait_s, 0.6, "at most .60",
        ),
        row_of(["broken promises, gfs-rise", "at most .02", broken_text, broken_judged]),
        row_of(["decision at 287 hosts, 99th percentile, ms", "below 10", p99_text, p99_judged]),
        "",
        "Of the paper's claims:",
        "",
        *claims(runs),
        "",
    ]  # fmt: skip
    return lines


def best_wait(runs: Runs, load: str) -> str:
    known = [policy for policy in ("yarn-cs", "lyra", "fgd") if runs.of("lose", load, policy)]
    return min(known, key=lambda p: mean(runs, "lose", load, p, lambda r: r.spot_wait_s), default="yarn-cs")


def claims(runs: Runs) -> list[str]:
    """Tables 5, 6, 8, 9 and 10 as ratios."""
    lines = header(["claim", "paper", "here", "holds"])

    def add(title: str, paper: str, found: list[float] | None, holds: Callable[[float], bool]) -> None:
        if found is None:
            lines.append(row_of([title, paper, "not computed", "-"]))
        else:
            average = sum(found) / len(found)
            lines.append(
                row_of([title, paper, shown(interval(found), "{:.2f}"), "yes" if holds(average) else "NO"])
            )

    def below(value: float) -> bool:
        return value < 1.0

    evicted, wait, jct = (lambda r: r.evicted), (lambda r: r.spot_wait_s), (lambda r: r.spot_jct_s)
    for load in LOADS:
        title = TITLES[load]
        add(
            f"Table 5, {title}: evictions, gfs / yarn-cs",
            "below 1",
            runs.ratio("lose", load, "gfs", "yarn-cs", evicted),
            below,
        )
        add(
            f"Table 5, {title}: spot wait, gfs / yarn-cs",
            "below 1",
            runs.ratio("lose", load, "gfs", "yarn-cs", wait),
            below,
        )
    medium = "gfs-2x"
    add(
        "Table 6: spot wait, H = 4 / H = 1",
        "5.47",
        runs.ratio("lose", medium, "gfs:hours=4", "gfs", wait),
        lambda v: v > 1,
    )
    add("Table 8: spot JCT, gfs / gfs-e", ".52", runs.ratio("lose", medium, "gfs", "gfs-e", jct), below)
    add("Table 8: evictions, gfs / gfs-e", ".15", runs.ratio("lose", medium, "gfs", "gfs-e", evicted), below)
    add("Table 9: spot wait, gfs / gfs-d", ".26", runs.ratio("lose", medium, "gfs", "gfs-d", wait), below)
    add("Table 9: evictions, gfs / gfs-d", ".70", runs.ratio("lose", medium, "gfs", "gfs-d", evicted), below)
    for variant, paper in (("gfs-s", ".68"), ("gfs-p", ".41"), ("gfs-sp", ".46")):
        add(
            f"Table 10: evictions, gfs / {variant}",
            paper,
            runs.ratio("lose", medium, "gfs", variant, evicted),
            below,
        )
    return lines


# --- Tables ---------------------------------------------------------------------------------------


def tables(runs: Runs) -> list[str]:
    lines: list[str] = []

    def add(title: str, world: World, load: str, policies: Sequence[str]) -> None:
        found = runs.table(world, load, policies)
        if found:
            lines.extend([f"## {title}", "", *found])

    every = (*POLICIES, RISE_8)
    for load in ("gfs", "gfs-2x", "gfs-4x"):
        add(f"Table 5 in shape, {TITLES[load]}: preempted jobs lose everything", "lose", load, every)
    for load in LOADS:
        add(f"The same where preempted jobs save, {TITLES[load]}", "save", load, every)
    add("Tables 8 to 10 in shape: ablations at 2x", "lose", "gfs-2x", ("gfs", *ABLATIONS))
    hours = ("gfs", "gfs:hours=2", "gfs:hours=4", "gfs-rise", "gfs-rise:hours=2", "gfs-rise:hours=4")
    add("Table 6 in shape: guaranteed hours at 2x", "lose", "gfs-2x", hours)
    return lines


def losses(runs: Runs) -> list[str]:
    """Where ours is behind somebody."""
    lines = ["## Where gfs-rise loses", ""]
    worlds: tuple[World, ...] = ("lose", "save")
    for world in worlds:
        for load in LOADS:
            mine = runs.of(world, load, "gfs-rise")
            for other in (*BASELINES, "gfs") if mine else ():
                for name, of in (("evictions", lambda r: r.evicted), ("spot wait", lambda r: r.spot_wait_s)):
                    found = runs.ratio(world, load, "gfs-rise", other, of)
                    if found and sum(found) / len(found) > 1.0:
                        text = shown(interval(found), "{:.2f}")
                        lines.append(f"* {TITLES[load]}, {world}: {name} {text} times that of `{other}`")
    return [*(lines if len(lines) > 2 else [*lines, "Nowhere in what was computed."]), ""]
