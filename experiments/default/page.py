"""The page: every number and every verdict is computed from the runs."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.controller.sim.results import plots
from experiments.default import cells, small_hosts
from experiments.default.cells import (
    ARRAYS,
    BLIND,
    COMMANDS,
    CONTESTANTS,
    DEFAULT,
    EASY,
    EXACT,
    FAMILIES,
    FIFO,
    FOUR,
    HOST,
    LOAD_TIMES_S,
    PATIENT,
    RESUMABLE,
    SMALL,
    TIRESIAS,
    USUAL_S,
    Cell,
    Result,
)
from experiments.default.measures import (
    LATE,
    LOST,
    MEAN,
    MEASURES,
    MOST,
    OVER,
    SHARES,
    TRIES,
    Middle,
    Place,
    Runs,
    number,
)
from experiments.default.targets import ALL, BEFORE_COMMIT, CHIEF, TOLD, Target, targets, with_interval
from experiments.shared.tables import header, row_of, said, saved

GREATEST: Final = (MOST, OVER)
"""Of these the tables hold the greatest value of all windows, of others the median."""


def write(results: Sequence[Result], asked: Sequence[Cell], machine: str, out: Path) -> Path:
    """default.md in `out`, its picture and numbers in a folder beside it, and the tables of all grounds on
    a page of their own."""
    runs, written = Runs(results), out / "default.md"
    written.write_text(text(results, asked, machine, out / "default"))
    (out / "default-tables.md").write_text(tables(runs))
    _write_numbers(runs, out / "default" / "numbers.csv")
    return written


def text(results: Sequence[Result], asked: Sequence[Cell], machine: str, folder: Path) -> str:
    """`folder`: where the picture is written."""
    runs = Runs(results)
    wanted = sorted(targets(runs), key=lambda one: one.is_met)
    parts = ["# The default beside fifo, EASY, tiresias and patient", _verdict(wanted), _answer(runs)]
    if missing := len(asked) - len(results):
        parts.insert(1, f"**Not all of it has been run: {missing} of {len(asked)} runs are missing.**")
    met = [row_of([one.what, one.told, "met" if one.is_met else "**not met**"]) for one in wanted]
    titles = header(["target, where all resume and 80 % tell", "measured", ""])
    parts.append("\n".join(["## Targets", "", said(TARGETS), "", *titles, *met]))
    parts += [_chief(runs), _picture(runs, folder), METHOD]
    commits = ", ".join(sorted({one.commit for one in results}))
    count, minutes = f"{len(results)} of {len(asked)} runs", sum(one.cpu_s for one in results) / 60.0
    ran = said(RAN, runs=count, minutes=minutes, commits=commits, machine=machine)
    return "\n\n".join([*parts, ran]) + "\n"


def _verdict(wanted: Sequence[Target]) -> str:
    """What is not met comes before all else."""
    missed = sum(not one.is_met for one in wanted)
    if not missed:
        return f"**All {len(wanted)} targets are met.**"
    return f"**{missed} of {len(wanted)} targets are not met.** They come first in the table of targets."


def _answer(runs: Runs) -> str:
    host, known = (Place(small_hosts.LOAD, ALL, TOLD, ground) for ground in (HOST, FOUR))
    return said(
        """The default needs no setting and is told no lengths. On 64 GPUs at load 1, where all jobs resume
        and 80 % tell their length, its mean completion time is {beside[fifo]} of `fifo`'s, {beside[EASY]} of
        EASY's and {beside[tiresias]} of `tiresias`'s. On one host of four GPUs (synthetic) a short try takes
        {tries[default]} minutes, and {tries[fifo]} under `fifo`. Preemptions cost {lost} % of that host's
        time. Where programs run again and again, the default learns from their commands: that brings its mean
        completion time to {alike} of what it is without them (four GPUs, synthetic).""",
        alike=with_interval(runs.at(known, against=BLIND)),
        beside={by: with_interval(runs.at(CHIEF, against=by)) for by in CONTESTANTS},
        tries={by: _cell(runs, host, by, TRIES) for by in CONTESTANTS},
        lost=_cell(runs, host, DEFAULT, LOST),
    )


def _picture(runs: Runs, folder: Path) -> str:
    found = {by: runs.at(CHIEF, by) for by in CONTESTANTS if by != FIFO}
    bars = [plots.Range(by, *at) for by, at in found.items() if at is not None]
    title = "Mean completion time over fifo's: 64 GPUs, load 1"
    figure = plots.ranges({"all resume, 80 % tell": bars}, title, "mean / fifo's, 95 %", synthetic=False)
    folder.mkdir(parents=True, exist_ok=True)
    return saved(figure, folder, "answer", title)


def _cell(runs: Runs, place: Place, by: str, of: str = MEAN) -> str:
    if of in GREATEST:
        worst = runs.worst(place, of, by)
        return "-" if worst is None else number(worst, of)
    found = runs.at(place, by, of)
    return "-" if found is None else number(found.median, of)


def _chief(runs: Runs) -> str:
    """Every policy by every measure, in one place."""
    lines = ["## 64 GPUs at load 1, all resume, 80 % tell", "", *header(["", *MEASURES])]
    for by in CONTESTANTS:
        if runs.at(CHIEF, by):
            found = (
                _cell(runs, CHIEF, by, of) if of in GREATEST else with_interval(runs.at(CHIEF, by, of), of)
                for of in MEASURES
            )
            lines.append(row_of([by, *found]))
    return "\n".join(lines)


class Table(NamedTuple):
    """Places of one kind by the words of their rows, and the policies that stand beside the default."""

    title: str
    rows: Mapping[str, Place]
    others: Sequence[str]


def tables(runs: Runs) -> str:
    """The page of all tables but the first."""
    every = _tables()
    places = [place for one in every for place in one.rows.values()]
    below = {
        by: sum(found.median < 1.0 for place in places if (found := runs.at(place, against=by)))
        for by in (EASY, TIRESIAS)
    }
    answer = said(ROWS, below=below, count=sum(runs.at(place) is not None for place in places))
    parts = ["# The default on each kind of jobs", answer, said(MEANS), *(_table(runs, one) for one in every)]
    return "\n\n".join(parts) + "\n"


def _tables() -> list[Table]:
    """One for each kind of ground."""
    at, usual = small_hosts.LOAD, (EASY, TIRESIAS, PATIENT, EXACT)
    philly = {
        f"load {load:g}, {SHARES[resumable]} resume": Place(load, resumable, TOLD)
        for resumable, load in product(RESUMABLE, cells.LOADS)
    }
    small = {
        _row(ground, share): Place(at, share, TOLD, ground) for ground, share in product(SMALL, RESUMABLE)
    }
    timed = {
        f"{ground}, loads of {time_s:g} s": Place(at, ALL, TOLD, ground, time_s)
        for ground, time_s in product((*ARRAYS, HOST), LOAD_TIMES_S)
    }
    timed |= {
        f"{ground}, loads of {USUAL_S:g} s, {SHARES[resumable]} resume": Place(
            at, resumable, TOLD, ground, USUAL_S
        )
        for ground, resumable in product(ARRAYS, RESUMABLE[1:])
    }
    known = {
        _row(ground, share): Place(at, share, TOLD, ground) for ground, share in product(FAMILIES, RESUMABLE)
    }
    beside = (EASY, TIRESIAS, EXACT)
    return [
        Table("64 GPUs: Philly's VCs", philly, usual),
        Table("Small hosts (synthetic)", small, usual),
        Table("Arrays and grids of short tasks beside long jobs (synthetic)", timed, beside),
        Table("Families of commands (synthetic)", known, (*beside, BLIND)),
    ]


def _row(ground: str, resumable: float) -> str:
    return f"{ground}, {SHARES[resumable]} resume"


def _table(runs: Runs, table: Table) -> str:
    costs = (LATE, LOST, MOST, OVER)
    lines = [f"## {table.title}", "", *header(["", *table.others, DEFAULT, *costs])]
    for name, place in table.rows.items():
        means = [*(_cell(runs, place, by) for by in table.others), with_interval(runs.at(place))]
        lines.append(row_of([name, *means, *(_cell(runs, place, DEFAULT, of) for of in costs)]))
    return "\n".join(lines)


def _write_numbers(runs: Runs, file: Path) -> None:
    """Every policy, place and measure, with intervals."""
    file.parent.mkdir(parents=True, exist_ok=True)
    places = dict.fromkeys((*runs.places(), *runs.grounds()))
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(
            ["ground", *Place._fields[:3], "load_time_s", "windows", "policy", "measure", *Middle._fields]
        )
        for place, by, what in product(places, CONTESTANTS, MEASURES):
            if found := runs.at(place, by, what):
                row = [
                    place.ground or "all VCs",
                    *place[:3],
                    place.load_time_s,
                    len(runs.windows(place)),
                    by,
                    what,
                ]
                writer.writerow([*row, *(f"{value:.4g}" for value in found)])


RAN: Final = (
    "`make results-default` runs what is missing and writes this page: {runs}, {minutes:.0f} processor "
    "minutes, commits {commits}. {machine}"
)
TARGETS: Final = "The value is the worst of all cases that a target names; brackets hold 95 % intervals."
ROWS: Final = """
    Of {count} rows the default's mean completion time is below EASY's in {below[EASY]} and below `tiresias`'s
    in {below[tiresias]}. [The page on the default](default.md) has the targets, and says how all was made.
"""
MEANS: Final = f"""
    Of the jobs 80 % tell their length. The tables hold mean completion times over `fifo`'s by policy, and
    four numbers of the default: the share of jobs that end more than twice as late as under `fifo`; the share
    of all device time held that preemptions cost (pauses, loads after a preemption, steps made twice); the
    most preemptions of one job; and the share of jobs that preemptions cost more than {cells.OVER:g} of their
    training. Of the last two the tables hold the worst window.
"""
METHOD: Final = f"""\
## How this page was made

* Numbers are ratios to `fifo`'s on the same jobs, and medians over windows (small hosts: over seeds).
  [The tables](default-tables.md) have each kind of jobs;
  [default/numbers.csv](default/numbers.csv) has every policy, VC and measure.
* EASY is `{CONTESTANTS[EASY].policy}`; the default is `{CONTESTANTS[DEFAULT].policy}`. *Exact lengths* is
  the default told each length on arrival. Jobs that tell their length do so {cells.TELL_AFTER_S:g} s after an
  attempt's first step. What cannot resume is never preempted.
* Nothing is shared (`--pairs none`), starts are warm, load and pause times are modelled, or the load time
  is that of a row's name.
* 64 GPUs are eight hosts of eight, empty at first, with up to two windows of {cells.WINDOW_JOBS} consecutive
  jobs of the VCs {", ".join(cells.VCS)}; arrivals are stretched until each offers its load.
* Small hosts have generated tries and sweeps (`experiments/default/small_hosts.py`), seeds 1 to 6, whose
  numbers were chosen by how long tries wait under `fifo`. A try runs under ten minutes.
* Arrays (`experiments/default/arrays.py`) are long jobs, arrays with a limit on tasks at once (`-a 0-N%k`),
  and grids of tasks of ten seconds to ten minutes, on one host of three and of eight slots.
* Families (`experiments/default/families.py`) are tries and sweeps of programs that come again. How lengths
  spread between and within programs is that of Helios (Venus, VC vcvGl, September 2020; Hu et al., SC '21).
  *{COMMANDS}* has the jobs of *{HOST}*, where each sweep is one script with other values.
  *{BLIND}*: the same jobs, of which nobody knows which are alike.
* The page before (runs of {BEFORE_COMMIT}) is kept in `experiments/default/before-{BEFORE_COMMIT}.csv`."""
