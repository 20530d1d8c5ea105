"""What the default was to meet, and what came of it.

Rule: a target is met or not by the worst of all places that it names.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from experiments.default import cells, small_hosts
from experiments.default.cells import BLIND, COMMANDS, EASY, FAMILIES, FIFO, FOUR, RESUMABLE, SMALL, TIRESIAS
from experiments.default.measures import LATE, LOST, MEAN, OVER, P99, SHARES, Middle, Place, Runs, number

ALL, TOLD = RESUMABLE[0], cells.TELLS[0]
CHIEF: Final = Place(1.0, ALL, TOLD)
TO_EASY: Final = 1.02
TO_BEFORE: Final = 1.02
BEFORE_COMMIT: Final = "43c8d2ed"
"""Of the runs of the page before: `before-COMMIT.csv` holds the medians of its rows."""
BEFORE: Final = Path(__file__).with_name(f"before-{BEFORE_COMMIT}.csv")
LOST_MOST: Final = 3.0
"""Per cent of all device time held."""
BELOW: Final = 0.99
"""At most so much of the mean without commands counts as below it."""


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
    yield from _target(runs, "64 GPUs, load 1: mean at most {} of tiresias's", 0.6, [CHIEF], against=TIRESIAS)
    yield from _target(runs, "64 GPUs, load 1: p99 at most {} of fifo's", 1.05, [CHIEF], P99)
    yield from _target(runs, "64 GPUs, every load: p99 at most {} of fifo's", 1.05, loads, P99)
    for host, (resumable, most) in product(SMALL, zip(RESUMABLE, (0.12, 0.2, 0.45), strict=True)):
        what = f"{host}, {SHARES[resumable]} resume: mean at most {{}} of fifo's"
        yield from _target(runs, what, most, [_place(host, resumable)])
    everywhere = [*loads, *(_place(host, ALL) for host in SMALL)]
    what = "64 GPUs, small hosts: at most {} % of jobs over twice as late as under fifo"
    yield from _target(runs, what, 1.0, everywhere, LATE)
    yield from _to_easy(runs)
    yield from _to_before(runs)
    yield from _lost(runs)
    for ground in (COMMANDS, FOUR):
        what = f"{ground}, none resume: mean at most {{}} of fifo's"
        yield from _target(runs, what, 0.5, [_place(ground, RESUMABLE[-1])])
    for ground in FAMILIES:
        known = [_place(ground, resumable) for resumable in RESUMABLE]
        what = f"{ground}, whatever resumes: mean at most {{}} of the same jobs' without commands"
        yield from _target(runs, what, BELOW, known, against=BLIND)


def _place(ground: str, resumable: float) -> Place:
    return Place(small_hosts.LOAD, resumable, TOLD, ground)


def _target(
    runs: Runs, what: str, most: float, places: Sequence[Place], of: str = MEAN, against: str = FIFO
) -> Iterator[Target]:
    """With the worst of the places."""
    found = [(at, place) for place in places if (at := runs.at(place, what=of, against=against))]
    if found:
        at, place = max(found)
        where = f", {place.words}" if len(places) > 1 else ""
        yield Target(what.format(most), most, at.median, f"{with_interval(at, of)}{where}")


def _to_easy(runs: Runs) -> Iterator[Target]:
    found = [(at.median, place) for place in runs.grounds() if (at := runs.at(place, against=EASY))]
    yield from _worst_of(f"every VC, host, load and draw: mean at most {TO_EASY} of EASY's", TO_EASY, found)


def _to_before(runs: Runs) -> Iterator[Target]:
    found = [(at.median / mean, place) for place, mean in before().items() if (at := runs.at(place))]
    what = f"every row of the page of {BEFORE_COMMIT}: mean at most {TO_BEFORE} of then"
    yield from _worst_of(what, TO_BEFORE, found)


def before() -> dict[Place, float]:
    """The default's mean over fifo's in each row of the tables of the page before."""
    with BEFORE.open(newline="") as opened:
        return {
            Place(float(row["load"]), float(row["resumable"]), float(row["tells"]), row["ground"]): float(
                row["mean"]
            )
            for row in csv.DictReader(opened)
        }


def _lost(runs: Runs) -> Iterator[Target]:
    """Of what preemptions cost: medians over windows of device time, and any window of single jobs."""
    places = runs.places()
    lost = [(at.median, place) for place in places if (at := runs.at(place, what=LOST))]
    what = f"everywhere: preemptions cost at most {LOST_MOST:g} % of all device time"
    yield from _worst_of(what, LOST_MOST, lost)
    over = [(worst, place) for place in places if (worst := runs.worst(place, OVER)) is not None]
    what = "everywhere: preemptions cost no job more than a tenth of its training (% of jobs, worst window)"
    yield from _worst_of(what, 0.0, over)


def _worst_of(what: str, most: float, found: Sequence[tuple[float, Place]]) -> Iterator[Target]:
    if found:
        (worst, place), over = max(found), sum(value > most for value, _ in found)
        told = f"{worst:.2f}: {place.words}; {over} of {len(found)} over"
        yield Target(what, most, worst, told)


def with_interval(found: Middle | None, of: str = MEAN) -> str:
    if found is None:
        return "-"
    median, low, high = (number(value, of) for value in found)
    return f"{median} ({low}-{high})"
