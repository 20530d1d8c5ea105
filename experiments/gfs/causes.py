"""docs/results/gfs-causes.md: why figures of gfs.md differ from what GFS and a prototype of ours found.

    python experiments/gfs/causes.py                # three seeds: a quarter of an hour on one core

One thing is changed at a time: whether the policies know two weeks of hp demand when spot jobs begin to come,
whether the baseline lets jobs pass one that does not fit, and how much eq. 9 reserves. Runs are kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import machine
import msgspec
import numpy as np

from cotenant.controller.models.forecast import Demand, Floats, Forecaster, ForecastModel, LastChange
from cotenant.controller.sim import Scenario, Workload, policies_named, scenario, simulate, synthesise_spot
from experiments.shared import paths
from experiments.shared.kept_runs import complete, keep

FILE: Final = paths.RESULTS / "gfs-causes.md"
CACHE: Final = paths.CACHE / "gfs-causes"
DAYS, KNOWN_DAYS, HOSTS = 2, 14, 287
STRICT, POOL = "yarn-cs:backfill=none", "gfs:aggregation=pool"
POLICIES: Final = ("yarn-cs", STRICT, "lyra", "gfs", POOL, "gfs-rise")
DAY_S: Final = 86_400.0


class Cell(NamedTuple):
    policy: str
    known_days: int
    """Of hp demand, before the first spot job comes."""
    seed: int

    @property
    def file(self) -> Path:
        return CACHE / f"{self.policy.replace(':', '_').replace('=', '-')}-{self.known_days}-{self.seed}.json"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Of the spot jobs of one run."""

    jobs: int
    wait_s: float
    evicted: float
    broken: float
    commit: str


def load(cell: Cell) -> Row | None:
    return msgspec.json.decode(cell.file.read_bytes(), type=Row) if cell.file.exists() else None


def from_day(workload: Workload, first_s: float) -> Workload:
    """Without the spot jobs of the time before."""
    kept = workload.hp | (workload.submit_s >= first_s)
    names = (
        "submit_s", "duration_s", "expected_s", "gpus", "load_s", "pause_s", "model", "hp", "organisation"
    )  # fmt: skip
    columns = {name: getattr(workload, name)[kept] for name in names}
    fractions = np.array(workload.fractions)[kept].tolist() if workload.fractions else ()
    return dataclasses.replace(workload, fractions=tuple(fractions), job_ids=(), **columns)


def run(cell: Cell, commit: str) -> None:
    """In a process of its own."""
    (choice,) = policies_named(cell.policy)
    trace = f"synth:gfs-4x:{DAYS + cell.known_days}"
    asked = Scenario(trace=trace, hosts=HOSTS, pairs="none", on_preempt="lose")
    (task,) = scenario.tasks(asked, [choice], [cell.seed])
    workload = from_day(task.workload, cell.known_days * DAY_S)
    outcome = simulate(workload, task.cluster, choice.name, choice.parameters, physics=task.physics)
    spot = ~workload.hp
    runs = int(spot.sum()) + int(outcome.preemptions[spot].sum())
    row = Row(
        jobs=int(spot.sum()),
        wait_s=float(outcome.wait_s[spot].mean()),
        evicted=float(outcome.preemptions[spot].sum()) / runs,
        broken=float(outcome.early_preemptions[spot].sum()) / runs,
        commit=commit,
    )
    keep(row, cell.file)


def table(rows: dict[Cell, Row], known_days: int) -> list[str]:
    lines = ["| policy | seeds | spot wait, s | evicted % | broken % |", "| --- | --- | --- | --- | --- |"]
    for policy in POLICIES:
        found = [row for cell, row in sorted(rows.items()) if cell[:2] == (policy, known_days)]
        if found:
            each = [
                " / ".join(f"{value:,.{places}f}" for value in values)
                for places, values in (
                    (0, [row.wait_s for row in found]),
                    (2, [100.0 * row.evicted for row in found]),
                    (2, [100.0 * row.broken for row in found]),
                )
            ]
            lines.append(f"| `{policy}` | {len(found)} | {' | '.join(each)} |")
    return lines


def ratio(rows: dict[Cell, Row], name: str, one: str, other: str, known_days: int) -> str:
    """Of two policies, seed by seed."""
    seeds = sorted({cell.seed for cell in rows if cell.known_days == known_days})
    pairs = [(rows.get(Cell(one, known_days, n)), rows.get(Cell(other, known_days, n))) for n in seeds]
    found = [getattr(a, name) / getattr(b, name) for a, b in pairs if a and b and getattr(b, name) > 0]
    return " / ".join(f"{each:.2f}" for each in found) or "-"


def hourly_peaks(seed: int, days: int) -> Floats:
    """Hp demand of the generated workload, granted or not; shape (organisations, hours)."""
    trace = synthesise_spot(seed=seed, days=days, spot_scale=0.0)
    found = np.zeros((len(trace.organisation.names), days * 24))
    for number in range(len(found)):
        mine = trace.hp & (trace.organisation.codes == number)
        begins, gpus = trace.submit_s[mine], trace.gpus[mine]
        at_s = np.concatenate((begins, begins + trace.duration_s[mine]))
        change = np.concatenate((gpus, -gpus))
        order = np.lexsort((change, at_s))
        at_s, level = at_s[order], np.cumsum(change[order])
        for hour in range(days * 24):
            first, after = np.searchsorted(at_s, (hour * 3600.0, (hour + 1) * 3600.0))
            found[number, hour] = level[max(first - 1, 0) : max(after, 1)].max(initial=0.0)
    return found


def reserved(seed: int = 0, days: int = 28) -> list[str]:
    """By how much eq. 9 reserves more than is asked for in the two hours ahead; by how many organisations."""
    demand = hourly_peaks(seed, days)
    lines = ["| organisations | day 2 | days 3 and 4 | days 5 to 8 | after two weeks |", "| --- " * 5 + "|"]
    for groups in (1, 3, 6, 12):
        grouped = np.stack([demand[first::groups].sum(axis=0) for first in range(groups)])
        model = ForecastModel(
            fitted=LastChange(why=""), series=("total",), horizon_h=2, levels=(0.5, 0.9), dated=False,
            errors=(), hours=0, last_hour=0, seed=0, made_by="causes",
        )  # fmt: skip
        forecaster, over = Forecaster(model), []
        for hour in range(24, days * 24 - 2):
            names = tuple(f"org{number}" for number in range(groups))
            known = Demand(names=names, values=grouped[:, : hour + 1], first_hour=0, dated=False)
            forecast = forecaster.forecast(known)
            highest = forecast.quantiles[:groups, :, 1].max(axis=1).sum()
            over.append(highest / grouped[:, hour + 1 : hour + 3].sum(axis=0).max() - 1.0)
        parts = (over[:24], over[24:72], over[72:168], over[312:])
        lines.append(f"| {groups} | " + " | ".join(f"{np.mean(part):+.0%}" for part in parts) + " |")
    return lines


FIGURES: Final = (
    ("evictions, gfs-rise / gfs", "at most .50", ("evicted", "gfs-rise", "gfs")),
    (
        "evictions, gfs-rise / gfs with one quantile of the total",
        "at most .50",
        ("evicted", "gfs-rise", POOL),
    ),
    ("evictions, gfs-rise / yarn-cs", "at most .30", ("evicted", "gfs-rise", "yarn-cs")),
    ("spot wait, gfs-rise / gfs", "at most .20", ("wait_s", "gfs-rise", "gfs")),
    ("spot wait, gfs-rise / yarn-cs", "at most .60", ("wait_s", "gfs-rise", "yarn-cs")),
    ("spot wait, gfs-rise / lyra", "at most .60", ("wait_s", "gfs-rise", "lyra")),
    ("spot wait, gfs-rise / yarn-cs that keeps its order", "at most .60", ("wait_s", "gfs-rise", STRICT)),
    ("spot wait, gfs / yarn-cs that keeps its order", "2.5 before", ("wait_s", "gfs", STRICT)),
)
"""What, what was asked of it or found before, and of which runs."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=1e6, help="how long new runs may begin")
    asked = parser.parse_args()
    cells = [
        Cell(policy, known, seed)
        for seed in range(asked.seeds)
        for known in (KNOWN_DAYS, 0)
        for policy in POLICIES
    ]
    complete(cells, load, run, workers=1, minutes=asked.minutes)
    rows = {cell: row for cell in cells if (row := load(cell)) is not None}
    text = (Path(__file__).with_name("causes.md")).read_text()
    figures = [
        f"| {what} | {wanted} | {ratio(rows, *runs, 0)} | {ratio(rows, *runs, KNOWN_DAYS)} |"
        for what, wanted, runs in FIGURES
    ]
    head = [
        "| figure | asked, or found before | nothing known | two weeks known |",
        "| --- | --- | --- | --- |",
    ]
    made = f"`{' '.join(['python experiments/gfs/causes.py', *sys.argv[1:]])}`"
    commits = sorted({row.commit for row in rows.values()})
    parts = {
        "FIGURES": "\n".join([*head, *figures]),
        "COLD": "\n".join(table(rows, 0)),
        "RESERVED": "\n".join(reserved()),
        "WARM": "\n".join(table(rows, KNOWN_DAYS)),
        "MADE": f"{made}: {len(rows)} of {len(cells)} runs, {', '.join(commits)}. {machine.sentences()}",
    }
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->", part)
    FILE.write_text(text)
    print(f"{FILE}: {len(rows)} of {len(cells)} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
