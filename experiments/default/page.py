"""The page: every number and every verdict is computed from the runs."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from experiments.default import cells, small_hosts
from experiments.default.cells import CONTESTANTS, DEFAULT, EASY, FIFO, RESUMABLE, SMALL, Cell, Result
from experiments.default.measures import LATE, MEAN, MEASURES, P99, TRIES, Middle, Place, Runs
from experiments.shared.tables import header, row_of, said

ALL, TOLD = RESUMABLE[0], cells.TELLS[0]
CHIEF: Final = Place(1.0, ALL, TOLD)
SHARES: Final = {1.0: "all", 0.8: "80 %", 0.5: "half", 0.0: "none"}
TO_EASY: Final = 1.02


def text(results: Sequence[Result], asked: Sequence[Cell], machine: str, numbers: Path) -> str:
    """`numbers`: where all of them are written."""
    runs = Runs(results)
    _write_numbers(runs, numbers)
    wanted = list(targets(runs))
    parts = ["# The default, beside fifo, EASY, tiresias and patient", _answer(runs, wanted)]
    if missing := len(asked) - len(results):
        parts.insert(1, f"**Not all of it has been run: {missing} of {len(asked)} runs are missing.**")
    met = [row_of([one.what, one.told, "met" if one.is_met else "**not met**"]) for one in wanted]
    parts.append("\n".join([*header(["all resume, 80 % tell", "measured", ""]), *met]))
    parts += [_chief(runs), _table(runs, "64 GPUs: Philly's VCs", ("",), cells.LOADS)]
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
    missed = [f"{one.what} ({one.told})" for one in wanted if not one.is_met]
    host = Place(small_hosts.LOAD, ALL, TOLD, next(iter(SMALL)))
    beside = {by: _told(runs.at(CHIEF, against=by)) for by in CONTESTANTS}
    tries = {by: _short(runs.at(host, by, TRIES), TRIES) for by in CONTESTANTS}
    return said(
        """{verdict} On 64 GPUs at load 1, where all resume and 80 % tell, the default's mean completion time
        is {beside[fifo]} of fifo's, {beside[EASY]} of EASY's, {beside[tiresias]} of tiresias's and
        {beside[exact lengths]} of its own with exact lengths. On one host of four GPUs (synthetic) a try
        takes {tries[default]} minutes, under fifo {tries[fifo]}.""",
        verdict=f"**Not met: {'; '.join(missed)}.**" if missed else "**All that was to be met is met.**",
        beside=beside,
        tries=tries,
    )


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
    others, rest = [by for by in CONTESTANTS if by not in (FIFO, DEFAULT)], [*MEASURES][1:]
    lines = [f"## {title}", "", "Means by policy; behind them the other numbers of the default.", ""]
    lines += header(["", "resume", "tell", *others, DEFAULT, *rest])
    for ground, resumable, tells, load in product(grounds, RESUMABLE, cells.TELLS, loads):
        place = Place(load, resumable, tells, ground)
        means = [*(_short(runs.at(place, by)) for by in others), _told(runs.at(place))]
        more = [_short(runs.at(place, what=what), what) for what in rest]
        drawn = SHARES[resumable], SHARES[tells]
        lines.append(row_of([ground or f"load {load:g}", *drawn, *means, *more]))
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
METHOD: Final = f"""\
## Method

* Numbers are over fifo's on the same jobs, but for the last two columns; medians over windows (small
  hosts: over seeds), with 95 % bootstraps that draw VCs, then windows. Every policy, VC and measure, with
  intervals: [default/numbers.csv](default/numbers.csv).
* EASY is `{CONTESTANTS[EASY].policy}`; the default is `{CONTESTANTS[DEFAULT].policy}`. With exact lengths
  each is told as the job arrives; else none is: jobs that tell do so {cells.TELL_AFTER_S:g} s after an
  attempt's first step, the others never. Late jobs go first under the default only; the others run as in
  their papers, without ageing.
* Nothing is shared (`--pairs none`): this is about order and preemption alone. Starts are warm, load and
  pause times modelled. Who resumes and who tells is drawn once for all policies, with the window's number
  as the seed; what cannot resume is never preempted.
* 64 GPUs: eight hosts of eight, empty at first; VCs {", ".join(cells.VCS)}; up to two windows of
  {cells.WINDOW_JOBS} consecutive jobs from the first row on, arrivals stretched until each offers its
  load.
* Small hosts: generated tries and sweeps (`experiments/default/small_hosts.py`), seeds 1 to 6, ten days
  on one host, four on two. Their numbers are chosen, not recorded, and were set by how long tries wait
  under fifo.
* A try runs under ten minutes; its time is from submission to end. A job's wait is the sum of its waits."""
