"""Six pairs of training jobs on one device, under MPS and by time slices, measured by the hardware suite.

Rule: a pair is compared with solo runs of the same study; the two modes differ in nothing but how the agent
shares the device.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from hwtests import host, pair_runs
from hwtests.jobs import PAIRS, jobs
from hwtests.pair_table import Mode, Solo, TooFew
from hwtests.slices import Run, Unit, Values, read_units

T = TypeVar("T")

SIX: Final = PAIRS[:6]
REHEARSED: Final = (("launches", "launches"),)
SECONDS: Final = (3.0, 12.0)
"""Of each measurement; the longer one where a job made too few steps."""
SECONDS_REHEARSED: Final = (0.8, 4.0, 20.0)
SOLOS: Final = "solos"


def pairs_of(run: Run) -> tuple[tuple[str, str], ...]:
    return REHEARSED if run.rehearse else SIX


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
    *shorter, longest = SECONDS_REHEARSED if run.rehearse else SECONDS
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
