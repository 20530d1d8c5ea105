"""The page: every number, and every verdict that depends on one, is computed from the runs.

Rule: ± is a 95 % interval over seeds (Student's). A verdict about every seed looks at every seed, those with
nothing to divide by too. What was not run is not on the page, and the page says how much was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from cotenant.controller.sim.results.paired import interval
from experiments.gfs.scheduling_runs import (
    ABLATIONS,
    BASELINES,
    HOSTS,
    KNOWN_DAYS,
    LOADS,
    POLICIES,
    POOL,
    RISE_8,
    STRICT,
    Cell,
    Reserved,
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


OF_SPOT: Final = COLUMNS[3:7]


class Pair(NamedTuple):
    """A figure of two policies with the same jobs."""

    mine: float
    theirs: float

    @property
    def ratio(self) -> float:
        """Infinite where they have none of it and mine some; none of both is no excess."""
        if self.theirs > 0:
            return self.mine / self.theirs
        return math.inf if self.mine > 0 else 0.0


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

    def pairs(self, world: World, load: str, policy: str, to: str, of: Of, known_days: int = 0) -> list[Pair]:
        """Of the seeds that both have."""
        mine, theirs = (self.of(world, load, each, known_days) for each in (policy, to))
        return [Pair(of(mine[s]), of(theirs[s])) for s in sorted(set(mine) & set(theirs))]

    def ratio(self, world: World, load: str, policy: str, to: str, of: Of) -> list[float] | None:
        """Seed by seed, of those that both have."""
        return ratios(self.pairs(world, load, policy, to, of)) or None

    def table(
        self,
        world: World,
        load: str,
        policies: Sequence[str],
        known_days: int = 0,
        columns: Sequence[Measure] = COLUMNS,
    ) -> list[str]:
        present = [policy for policy in policies if self.of(world, load, policy, known_days)]
        if not present:
            return []
        lines = header(["policy", "seeds", *(measure.title for measure in columns)])
        for policy in present:
            rows = list(self.of(world, load, policy, known_days).values())
            cells = [shown(interval([measure.of(row) for row in rows]), measure.form) for measure in columns]
            lines.append(row_of([f"`{policy}`", str(len(rows)), *cells]))
        return [*lines, ""]


def ratios(pairs: Sequence[Pair]) -> list[float]:
    """Of those with something to divide by."""
    return [pair.ratio for pair in pairs if pair.theirs > 0]


def page(rows: Rows, asked: int, command: str, facts: str, reserved: Reserved) -> str:
    runs = Runs(rows)
    parts = [
        "# Spot jobs beside hp jobs: GFS, its baselines, and gfs-rise",
        "",
        said(
            "Classes, quota and preemption of GFS (ASPLOS '26) over a SYNTHETIC workload of {days} days, "
            "generated to meet what GFS publishes ({hosts} hosts of 8 GPUs; [traces](../../docs/traces.md)): "
            "{done} of {asked} runs were computed for this page, and each table says how many seeds it has. "
            "The history of demand begins empty in each run but those that say otherwise, so the first day "
            "is a cold start. Made by `{command}`.",
            days=runs.days, hosts=HOSTS, done=len(rows), asked=asked, command=command,
        ),
        "",
        *answer(runs),
        *to_meet(runs),
        *readings(runs, reserved),
        "## The paper's claims",
        "",
        *claims(runs),
        "",
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


def verdict(pairs: Sequence[Pair], at_most: float) -> tuple[str, str]:
    """What was found, and whether mine is at most so much of theirs: in every seed, on average, or not."""
    if not pairs:
        return "not computed", "not computed"
    found = ratios(pairs)
    missing = len(pairs) - len(found)
    text = shown(interval(found), "{:.3f}") + f" ({min(found):.3f} to {max(found):.3f})" if found else ""
    if missing:
        text += f" {missing} of {len(pairs)} seeds: nothing to divide by"
    every = [pair.ratio for pair in pairs]
    if max(every) <= at_most:
        return text, "met in every seed"
    return text, "met on average only" if sum(every) / len(every) <= at_most else "NOT met"


class Asked(NamedTuple):
    """A ratio that was asked for, and the policies of each reading: the first as they are by default."""

    title: str
    of: Of
    at_most: float
    asked: str
    readings: Sequence[tuple[str, str]]


def asked_ratios(runs: Runs) -> list[Asked]:
    yarn, rise = "yarn-cs", "gfs-rise"
    passing, strict = best_wait(runs, (yarn, "lyra", "fgd")), best_wait(runs, tuple(STRICT.values()))
    of_gfs = (("gfs", yarn), (POOL, yarn), ("gfs", STRICT[yarn]))
    of_rise = ((rise, yarn), (rise, STRICT[yarn]))

    def evicted(row: Row) -> float:
        return row.evicted

    def wait(row: Row) -> float:
        return row.spot_wait_s

    return [
        Asked("evictions", evicted, 0.75, "at most .75", of_gfs),
        Asked("hp JCT", lambda row: row.hp_jct_s, 1.002, "at most 1.002", of_gfs),
        Asked("evictions", evicted, 0.3, "at most .30", of_rise),
        Asked("evictions", evicted, 0.5, "at most .50", ((rise, "gfs"), (rise, POOL))),
        Asked("spot wait", wait, 0.2, "at most .20", ((rise, "gfs"), (rise, POOL))),
        Asked("spot wait (best baseline)", wait, 0.6, "at most .60", ((rise, passing), (rise, strict))),
    ]


def to_meet(runs: Runs) -> list[str]:
    load: str = "gfs-4x"
    lines = [
        "## What was to be met, at 4x, where preempted jobs lose everything",
        "",
        *header(["figure", "asked", "found: mean ± interval (seeds)", "verdict"]),
    ]
    for each in asked_ratios(runs):
        for policy, to in each.readings:
            text, judged = verdict(runs.pairs("lose", load, policy, to, each.of), each.at_most)
            lines.append(row_of([f"{each.title}, `{policy}` / `{to}`", each.asked, text, judged]))
    rows = list(runs.of("lose", load, "gfs-rise").values())
    of_gfs = list(runs.of("lose", load, "gfs").values())
    broken = verdict([Pair(row.broken, 1.0) for row in rows], 0.02)
    p99 = verdict([Pair(row.decision_p99_ms, 1.0) for row in (*of_gfs, *rows)], 10.0)
    return [
        *lines,
        row_of(["broken promises, `gfs-rise`", "at most .02", *broken]),
        row_of(["decision at 287 hosts, 99th percentile, ms", "below 10", *p99]),
        "",
    ]


def readings(runs: Runs, reserved: Reserved) -> list[str]:
    """Why a figure is asked against two readings of the same policy."""
    load, yarn, rise = "gfs-4x", "yarn-cs", "gfs-rise"
    if not all(runs.of("lose", load, policy) for policy in (yarn, STRICT[yarn], "gfs", POOL, rise)):
        return []

    def wait_h(policy: str, load: str = load) -> float:
        return mean(runs, "lose", load, policy, lambda row: row.spot_wait_s) / 3600

    def evicted(policy: str) -> float:
        return 100 * mean(runs, "lose", load, policy, lambda row: row.evicted)

    by, total = reserved.by_organisation, reserved.of_the_total
    return [
        "## Why there are two readings",
        "",
        said(
            "**Eq. 9** adds up the highest quantile of each organisation, as if all peaked at once: with {n} "
            "organisations of the released trace's shares it reserves {a:.0f} % more than hp jobs then ask "
            "for on day 2 and {b:.0f} % after two weeks (seed 0), one quantile of the total {c:.0f} % and "
            "{d:.0f} %. Hourly peaks of hp demand are {peak:.2f} of the cluster on average. At 4x `gfs` "
            "evicts {e:.1f} % of runs at a mean spot wait of {w:.1f} h, `{pool}` {pe:.1f} % at {pw:.1f} h: "
            "who admits few has few to evict, which is why `{rise}` is asked against both.",
            n=reserved.organisations, a=100 * by.day_2, b=100 * by.after_two_weeks, c=100 * total.day_2,
            d=100 * total.after_two_weeks, peak=reserved.peak, e=evicted("gfs"), w=wait_h("gfs"), pool=POOL,
            pe=evicted(POOL), pw=wait_h(POOL), rise=rise,
        ),
        "",
        said(
            "**First come, first served**: in the paper's Table 5 spot jobs wait 3,110 s under `{yarn}` at a "
            "load of .77. Where whoever fits passes those that do not, gangs of up to 736 GPUs among them, "
            "`{yarn}` evicts {e:.1f} % of runs at 4x and spot jobs wait {w:.1f} h; in strict order one wide "
            "gang keeps all others of its class waiting: {se:.1f} % and {sw:.1f} h. The paper does not say "
            "which it ran, so each ratio is asked against both.",
            yarn=yarn, e=evicted(yarn), w=wait_h(yarn), se=evicted(STRICT[yarn]), sw=wait_h(STRICT[yarn]),
        ),
        "",
    ]  # fmt: skip


def best_wait(runs: Runs, policies: Sequence[str]) -> str:
    """Under whom spot jobs wait least at 4x."""
    load = "gfs-4x"
    known = [policy for policy in policies if runs.of("lose", load, policy)]
    return min(known, key=lambda p: mean(runs, "lose", load, p, lambda r: r.spot_wait_s), default=policies[0])


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

    every = (*POLICIES, RISE_8, *STRICT.values(), POOL)
    for load in ("gfs", "gfs-2x", "gfs-4x"):
        add(f"Table 5 in shape, {TITLES[load]}: preempted jobs lose everything", "lose", load, every)
    for load in LOADS:
        add(f"The same where preempted jobs save, {TITLES[load]}", "save", load, every)
    add("Tables 8 to 10 in shape: ablations at 2x", "lose", "gfs-2x", ("gfs", *ABLATIONS))
    known = runs.table("lose", "gfs-4x", every, KNOWN_DAYS, OF_SPOT)
    if known:
        lines.extend([f"## {KNOWN_DAYS} days of hp demand known before, {TITLES['gfs-4x']}", "", *known])
    hours = ("gfs", "gfs:hours=2", "gfs:hours=4", "gfs-rise", "gfs-rise:hours=2", "gfs-rise:hours=4")
    add("Table 6 in shape: guaranteed hours at 2x", "lose", "gfs-2x", hours)
    return lines


def losses(runs: Runs) -> list[str]:
    """Where ours is behind somebody."""
    lines = ["## Where gfs-rise loses", ""]
    worlds: tuple[World, ...] = ("lose", "save")
    behind = (
        Measure("evictions", lambda row: 100 * row.evicted, "{:.2f} %"),
        Measure("spot wait", lambda row: row.spot_wait_s, "{:,.0f} s"),
    )
    for world in worlds:
        for load in LOADS:
            for other in (*BASELINES, *STRICT.values(), "gfs", POOL):
                for name, of, form in behind:
                    pairs = runs.pairs(world, load, "gfs-rise", other, of)
                    mine, theirs = (
                        (sum(each) / len(pairs) for each in zip(*pairs, strict=True)) if pairs else (0.0, 0.0)
                    )
                    if mine > theirs:
                        text = f"{form.format(mine)} against {form.format(theirs)} under `{other}`"
                        lines.append(f"* {TITLES[load]}, {world}: {name} {text}")
    return [*(lines if len(lines) > 2 else [*lines, "Nowhere in what was computed."]), ""]
