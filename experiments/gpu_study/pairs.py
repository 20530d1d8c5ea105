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

from experiments.gpu_study.parts import Study, Unit, Values, read_units
from hwtests import host, pair_runs
from hwtests.jobs import PAIRS, jobs
from hwtests.pair_table import Mode, Solo, TooFew

T = TypeVar("T")

SIX: Final = PAIRS[:6]
REHEARSED: Final = (("launches", "launches"),)
SECONDS: Final = (3.0, 12.0)
"""Of each measurement; the longer one where a job made too few steps."""
SECONDS_REHEARSED: Final = (0.8, 4.0, 20.0)
SOLOS: Final = "solos"


def pairs_of(study: Study) -> tuple[tuple[str, str], ...]:
    return REHEARSED if study.rehearse else SIX


def list_solos(study: Study) -> Mapping[str, Unit]:
    names = dict.fromkeys(name for pair in pairs_of(study) for name in pair)
    return {name: partial(measure_solo, study, name) for name in names}


def list_pairs(mode: Mode, study: Study) -> Mapping[str, Unit]:
    return {"+".join(pair): partial(measure_pair, study, pair, mode) for pair in pairs_of(study)}


def measure_solo(study: Study, name: str) -> Values:
    job = jobs(study.device)[name]
    solo = with_patience(study, lambda folder, s: pair_runs.alone(job, study.device, folder, s))
    values: Values = msgspec.to_builtins(solo)
    return values


def measure_pair(study: Study, pair: tuple[str, str], mode: Mode) -> Values:
    first, second = (read_solo(study, name) for name in pair)
    run = with_patience(
        study, lambda folder, s: pair_runs.shared(first, second, study.device, folder, mode, s)
    )
    values: Values = msgspec.to_builtins(run)
    return values


def with_patience(study: Study, measure: Callable[[Path, float], T]) -> T:
    """Measure in a short folder, for longer where a job made too few steps."""
    *shorter, longest = SECONDS_REHEARSED if study.rehearse else SECONDS
    for seconds in shorter:
        try:
            return _measure_once(measure, seconds)
        except TooFew as problem:
            study.say(f"  {problem}: it gets more time")
    return _measure_once(measure, longest)


def _measure_once(measure: Callable[[Path, float], T], seconds: float) -> T:
    with tempfile.TemporaryDirectory(prefix="gs-", ignore_cleanup_errors=True) as name:
        return measure(Path(name) / "c", seconds)


def read_solo(study: Study, name: str) -> Solo:
    kept = read_units(study.folder, SOLOS)
    if name not in kept:
        raise ValueError(f"{name} was not measured alone: see {study.folder / SOLOS}.json")
    return msgspec.convert(kept[name], Solo)


def find_no_mps(study: Study) -> str:
    if not study.is_on_gpu:
        return "MPS needs a GPU; CPU slots time-slice"
    return host.lacks_mps()


def find_no_slices(study: Study) -> str:
    return host.lacks_time_slicing() if study.is_on_gpu else ""
