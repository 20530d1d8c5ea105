"""Six pairs of training jobs on one device, under MPS and by time slices: how much each slows the other down.

Rule: a pair is compared with solo runs of the same folder; the two modes differ in nothing but how the agent
shares the device. Recorded, hardly asserted. The tables are `pairs-mps.csv` and `pairs-time-slicing.csv`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from hwtests import host, pair_runs, pair_table
from hwtests.jobs import PAIRS, jobs
from hwtests.pair_table import Mode, Sharing, Solo, TooFew
from hwtests.slices import Outcome, Run, Slice, Unit, Values, read_units
from hwtests.summary import row_of

T = TypeVar("T")

REHEARSED: Final = (("launches", "launches"),)
LONGER: Final = 4
"""So many times the seconds, where a job made too few steps."""
SECONDS_REHEARSED: Final = (0.8, 4.0, 20.0)
BOTH_S_MIN: Final = 6.0
"""From so many seconds of a measurement on each pair is measured in both orders."""
NOISE: Final = 0.15
"""Two runs of one thing may differ by this share; company cannot make a job faster than that."""
SOLOS: Final = "solos"
MODES: Final[Mapping[str, Mode]] = {"pairs-mps": "mps", "pairs-slices": "time-slicing"}


def pairs_of(run: Run) -> tuple[tuple[str, str], ...]:
    if run.rehearse:
        return REHEARSED
    return PAIRS if run.seconds < BOTH_S_MIN else (*PAIRS, *(pair[::-1] for pair in PAIRS))


def list_solos(run: Run) -> Mapping[str, Unit]:
    names = dict.fromkeys(name for pair in pairs_of(run) for name in pair)
    return {name: partial(measure_solo, run, name) for name in names}


def list_pairs(mode: Mode, run: Run) -> Mapping[str, Unit]:
    return {"+".join(pair): partial(measure_pair, run, pair, mode) for pair in pairs_of(run)}


def measure_solo(run: Run, name: str) -> Values:
    job = jobs(run.device)[name]
    solo = with_patience(run, lambda folder, s: pair_runs.alone(job, run.device, folder, s))
    values: Values = msgspec.to_builtins(solo)
    return values


def measure_pair(run: Run, pair: tuple[str, str], mode: Mode) -> Values:
    first, second = (read_solo(run, name) for name in pair)
    shared = with_patience(
        run, lambda folder, s: pair_runs.shared(first, second, run.device, folder, mode, s)
    )
    values: Values = msgspec.to_builtins(shared)
    return values


def with_patience(run: Run, measure: Callable[[Path, float], T]) -> T:
    """Measure in a short folder, for longer where a job made too few steps."""
    *shorter, longest = SECONDS_REHEARSED if run.rehearse else (run.seconds, LONGER * run.seconds)
    for seconds in shorter:
        try:
            return _measure_once(measure, seconds)
        except TooFew as problem:
            run.say(f"  {problem}: it gets more time")
    return _measure_once(measure, longest)


def _measure_once(measure: Callable[[Path, float], T], seconds: float) -> T:
    with tempfile.TemporaryDirectory(prefix="gs-", ignore_cleanup_errors=True) as name:
        return measure(Path(name) / "c", seconds)


def read_solo(run: Run, name: str) -> Solo:
    kept = read_units(run.folder, SOLOS)
    if name not in kept:
        raise ValueError(f"{name} was not measured alone: run the slice {SOLOS}")
    return msgspec.convert(kept[name], Solo)


def find_no_mps(run: Run) -> str:
    if not run.is_on_gpu:
        return "MPS needs a GPU; CPU slots time-slice"
    return host.lacks_mps()


def find_no_slices(run: Run) -> str:
    return host.lacks_time_slicing() if run.is_on_gpu else ""


SLICES: Final = (
    Slice(SOLOS, "How fast is each job of the pairs alone?", list_solos),
    Slice("pairs-mps", "What do six pairs cost each other under MPS?", partial(list_pairs, "mps"),
          find_no_mps),
    Slice("pairs-slices", "What do the same pairs cost by time slices?", partial(list_pairs, "time-slicing"),
          find_no_slices),
)  # fmt: skip


def write_tables(run: Run) -> None:
    """A table for each mode in which pairs were measured, as `cotenant predictor train` reads it."""
    solos = {name: msgspec.convert(kept, Solo) for name, kept in read_units(run.folder, SOLOS).items()}
    for name, mode in MODES.items():
        runs = [msgspec.convert(kept, Sharing) for kept in read_units(run.folder, name).values()]
        if runs:
            text = pair_table.table(pair_table.averaged(runs), solos, run.device.name)
            (run.folder / f"pairs-{mode}.csv").write_text(text, encoding="utf-8")


def write_section(found: Mapping[str, Outcome]) -> list[str]:
    """Of a page: a row for each pair and mode; nothing where none was measured."""
    rows = [
        row_of(
            pair,
            mode,
            *(f"{run[key]:.2f}" for key in ("first_xi", "second_xi", "speed", "benefit")),
            doubt(run),
        )
        for name, mode in MODES.items()
        if name in found
        for pair, run in found[name].units.items()
    ]
    if not rows:
        return []
    head = ["| pair | by | xi of the first | of the second | speed together | benefit | |"]
    return ["## Pairs", "", *head, "| --- | --- | --: | --: | --: | --: | --- |", *sorted(rows), ""]


def doubt(run: Values) -> str:
    """What makes a measured pair doubtful; empty if nothing does."""
    return (
        "faster than alone: the machine was disturbed"
        if min(run["first_xi"], run["second_xi"]) < 1 - NOISE
        else ""
    )
