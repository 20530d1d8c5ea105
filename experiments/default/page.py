"""The page: every number and every verdict is computed from the runs."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from cotenant.controller.sim.results import plots
from experiments.default import cells, small_hosts
from experiments.default.cells import CONTESTANTS, DEFAULT, EASY, FIFO, RESUMABLE, SMALL, Cell, Result
from experiments.default.measures import LATE, MEAN, MEASURES, P99, TRIES, Middle, Place, Runs
from experiments.shared.tables import header, row_of, said, saved

ALL, TOLD = RESUMABLE[0], cells.TELLS[0]
CHIEF: Final = Place(1.0, ALL, TOLD)
SHARES: Final = {1.0: "all", 0.8: "80 %", 0.5: "half", 0.0: "none"}
TO_EASY: Final = 1.02


def text(results: Sequence[Result], asked: Sequence[Cell], machine: str, folder: Path) -> str:
    """`folder`: where the picture and all of the numbers are written."""
    runs = Runs(results)
    _write_numbers(runs, folder / "numbers.csv")
    wanted = list(targets(runs))
    parts = [
        "# The default beside fifo, EASY, tiresias and patient",
        _answer(runs, wanted),
        _picture(runs, folder),
    ]
    if missing := len(asked) - len(results):
        parts.insert(1, f"**Not all of it has been run: {missing} of {len(asked)} runs are missing.**")
    met = [row_of([one.what, one.told, "met" if one.is_met else "**not met**"]) for one in wanted]
    titles = header(["target, where all resume and 80 % tell", "measured", ""])
    parts.append("\n".join(["## Targets", "", said(TARGETS), "", *titles, *met]))
    parts += [_chief(runs), said(MEANS), _table(runs, "64 GPUs: Philly's VCs", ("",), cells.LOADS)]
    parts += [_table(runs, "Small hosts (synthetic)", (*SMALL,), (small_hosts.LOAD,)), METHOD]
    commits = ", ".join(sorted({one.commit for one in results}))
    count, minutes = f"{len(results)} of {len(asked)} runs", sum(one.cpu_s for one in results) / 60.0
    ran = said(RAN, runs=count, minutes=minutes, commits=commits, machine=machine)
    return "\n\n".join([*parts, ran]) + "\n"


class Target(NamedTuple):
    """What was to be met, and what came."""

    what: str
    most: float
    measured: float
    told: str

    @property
    def is_met(self) -> bool:
        return self.measured <= self.most


def targets(runs: Runs) -> Iterator[Target]:
    loads = [Place(load, ALL, TOLD) for load in cells.LOADS]
    yield from _target(runs, "64 GPUs, load 1: mean at most {} of fifo's", 0.45, [CHIEF])
    yield from _target(
        runs, "64 GPUs, load 1: mean at most {} of tiresias's", 0.6, [CHIEF], against=cells.TIRESIAS
    )
    yield from _target(runs, "64 GPUs, every load: p99 at most {} of fifo's", 1.05, loads, P99)
    for host, (resumable, most) in product(SMALL, zip(RESUMABLE, (0.12, 0.2, 0.45), strict=True)):
        what = f"{host}, {SHARES[resumable]} resume: mean at most {{}} of fifo's"
        yield from _target(runs, what, most, [Place(small_hosts.LOAD, resumable, TOLD, host)])
    everywhere = [*loads, *(Place(small_hosts.LOAD, ALL, TOLD, host) for host in SMALL)]
    yield from _target(
        runs, "everywhere: at most {} % of jobs over twice as late as under fifo", 1.0, everywhere, LATE
    )
    easy = [(at.median, place) for place in runs.grounds() if (at := runs.at(place, against=EASY))]
    if easy:
        (worst, place), over = max(easy), sum(value > TO_EASY for value, _ in easy)
        told = f"{worst:.2f}: {place.ground}, load {place.load:g}, {SHARES[place.resumable]} resume, "
        told += f"{SHARES[place.tells]} tell; {over} of {len(easy)} over"
        yield Target(f"every VC, host, load and draw: mean at most {TO_EASY} of EASY's", TO_EASY, worst, told)


def _target(
    runs: Runs, what: str, most: float, places: Sequence[Place], of: str = MEAN, against: str = FIFO
) -> Iterator[Target]:
    """With the worst of the places."""
    found = [(at, place) for place in places if (at := runs.at(place, what=of, against=against))]
    if found:
        at, place = max(found)
        where = f", {place.ground or f'64 GPUs at load {place.load:g}'}" if len(places) > 1 else ""
        yield Target(what.format(most), most, at.median, f"{_told(at, of)}{where}")


def _answer(runs: Runs, wanted: Sequence[Target]) -> str:
    host = Place(small_hosts.LOAD, ALL, TOLD, next(iter(SMALL)))
    return said(
        """**{met} of {all} targets are met.** On 64 GPUs at load 1, where all jobs resume and 80 % tell their
        length, the default's mean completion time is {beside[fifo]} of `fifo`'s, {beside[EASY]} of EASY's and
        {beside[tiresias]} of `tiresias`'s. On one host of four GPUs (synthetic) a short try takes
        {tries[default]} minutes, and {tries[fifo]} under `fifo`.""",
        met=sum(one.is_met for one in wanted),
        all=len(wanted),
        beside={by: _told(runs.at(CHIEF, against=by)) for by in CONTESTANTS},
        tries={by: _short(runs.at(host, by, TRIES), TRIES) for by in CONTESTANTS},
    )


def _picture(runs: Runs, folder: Path) -> str:
    found = {by: runs.at(CHIEF, by) for by in CONTESTANTS if by != FIFO}
    bars = [plots.Range(by, *at) for by, at in found.items() if at is not None]
    title = "Mean completion time over fifo's: 64 GPUs, load 1"
    figure = plots.ranges({"all resume, 80 % tell": bars}, title, "mean / fifo's, 95 %", synthetic=False)
    folder.mkdir(parents=True, exist_ok=True)
    return saved(figure, folder, "answer", title)


def _told(found: Middle | None, of: str = MEAN) -> str:
    """With its interval."""
    if found is None:
        return "-"
    median, low, high = (_number(value, of) for value in found)
    return f"{median} ({low}-{high})"


def _short(found: Middle | None, of: str = MEAN) -> str:
    return "-" if found is None else _number(found.median, of)


def _number(value: float, of: str) -> str:
    return f"{value:.0f}" if of == TRIES else f"{value:.{3 if 0.0 < value < 0.095 else 2}f}"


def _chief(runs: Runs) -> str:
    """Every policy by every measure, in one place."""
    lines = ["## 64 GPUs at load 1, all resume, 80 % tell", "", *header(["", *MEASURES])]
    for by in CONTESTANTS:
        lines.append(row_of([by, *(_told(runs.at(CHIEF, by, what), what) for what in MEASURES)]))
    return "\n".join(lines)


def _table(runs: Runs, title: str, grounds: Sequence[str], loads: Sequence[float]) -> str:
    others = [by for by in CONTESTANTS if by not in (FIFO, DEFAULT)]
    lines = [f"## {title}", ""]
    lines += header(["", "resume", *others, DEFAULT, LATE])
    for ground, resumable, load in product(grounds, RESUMABLE, loads):
        place = Place(load, resumable, TOLD, ground)
        means = [*(_short(runs.at(place, by)) for by in others), _told(runs.at(place))]
        late = _short(runs.at(place, what=LATE), LATE)
        lines.append(row_of([ground or f"load {load:g}", SHARES[resumable], *means, late]))
    return "\n".join(lines)


def _write_numbers(runs: Runs, file: Path) -> None:
    """Every policy, place and measure, with intervals."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pooled = dict.fromkeys(each._replace(ground="") for each in runs.grounds() if each.ground in cells.VCS)
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(["ground", *Place._fields[:3], "windows", "policy", "measure", *Middle._fields])
        for place, by, what in product([*pooled, *runs.grounds()], CONTESTANTS, MEASURES):
            if found := runs.at(place, by, what):
                row = [place.ground or "all VCs", *place[:3], len(runs.windows(place)), by, what]
                writer.writerow([*row, *(f"{value:.4g}" for value in found)])


RAN: Final = (
    "`make results-default` runs what is missing and writes this page: {runs}, {minutes:.0f} processor "
    "minutes, commits {commits}. {machine}"
)
TARGETS: Final = "The value is the worst of all cases that a target names; brackets hold 95 % intervals."
MEANS: Final = """
    Of the jobs in the next two tables 80 % tell their length. They hold mean completion times over
    `fifo`'s by policy, and the share of the default's jobs that end more than twice as late as under
    `fifo`.
"""
METHOD: Final = f"""\
## How this page was made

* Numbers are ratios to `fifo`'s on the same jobs, and medians over windows (small hosts: over seeds).
  [default/numbers.csv](default/numbers.csv) has every policy, VC and measure.
* EASY is `{CONTESTANTS[EASY].policy}`; the default is `{CONTESTANTS[DEFAULT].policy}`. *Exact lengths* is
  the default told each length on arrival. Jobs that tell their length do so {cells.TELL_AFTER_S:g} s after an
  attempt's first step. What cannot resume is never preempted.
* Nothing is shared (`--pairs none`), starts are warm, load and pause times are modelled.
* 64 GPUs are eight hosts of eight, empty at first, with up to two windows of {cells.WINDOW_JOBS} consecutive
  jobs of the VCs {", ".join(cells.VCS)}; arrivals are stretched until each offers its load.
* Small hosts have generated tries and sweeps (`experiments/default/small_hosts.py`), seeds 1 to 6, whose
  numbers were chosen by how long tries wait under `fifo`. A try runs under ten minutes."""
