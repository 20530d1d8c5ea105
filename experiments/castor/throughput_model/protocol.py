"""What is held out, what is fitted to what, and what comes of it. Reads one file; decides by seed alone.

Rule: a row is predicted by a fit that has seen no row of its placement, and none is left out of the count,
also where its reach was not seen: there a model would say that it does not know, and the law is asked
anyway.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from cotenant.controller.performance import Gang, MeasuredStep, ThroughputModel
from cotenant.profiler.step_law import StepTable, solve
from cotenant.profiler.throughput import fit

SEEDS: Final = (0, 1, 2, 3, 4)
FOLDS: Final = 5
SEEN_PLACEMENTS: Final = ("1", "2", "4", "11", "22")
SEEN_DEVICES_MAX: Final = 4

Array = NDArray[np.float64]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement, and where it was placed."""

    step: MeasuredStep
    placement: str
    """Devices on each host, sorted ("112"), or HOSTS/DEVICES where the source says no more."""
    counts: str
    """HOSTS/DEVICES."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Errors |predicted - measured| / measured of one application's held-out rows."""

    rows: int
    mean: float
    median: float
    p95: float
    bias: float
    """Mean of predicted / measured - 1: which way it errs."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """From what a profiler sees."""

    fitted_rows: int
    claimed: float
    """The error that the model says of itself, from those rows alone."""
    error: Spread
    in_range: float
    """Share of the rows within their predicted range of four in five."""
    by_devices: dict[str, float]
    """Mean error by how many devices the row had: "5-8", "9-16", ..."""


def read(path: Path) -> dict[str, list[Row]]:
    """Every row of the file, by application."""
    found: dict[str, list[Row]] = {}
    with gzip.open(path, "rt", newline="") as lines:
        for line in csv.DictReader(lines):
            counts = f"{line['num_nodes']}/{line['num_replicas']}"
            row = Row(
                step=MeasuredStep(
                    batch_size=float(line["local_bsz"]),
                    gang=Gang(devices=int(line["num_replicas"]), hosts=int(line["num_nodes"])),
                    step_s=float(line["step_time_s"]),
                ),
                placement="".join(sorted(line["placement"])) or counts,
                counts=counts,
            )
            found.setdefault(line["app"], []).append(row)
    return dict(sorted(found.items()))


# --- Placements held out -------------------------------------------------------------------------------


def by_placement(row: Row) -> str:
    return row.placement


def by_counts(row: Row) -> str:
    return row.counts


def folds(rows: Sequence[Row], group: Callable[[Row], str], seed: int) -> NDArray[np.int64]:
    """The fold of each row: groups in a random order, dealt out in turn."""
    names = np.array(sorted({group(row) for row in rows}))
    np.random.default_rng(seed).shuffle(names)
    fold = {str(name): number % FOLDS for number, name in enumerate(names)}
    return np.array([fold[group(row)] for row in rows])


def predicted(rows: Sequence[Row], group: Callable[[Row], str], seed: int) -> Array:
    """Each row by the fit to the other folds."""
    fold, table = folds(rows, group, seed), StepTable.make([row.step for row in rows])
    result = np.empty(len(rows))
    for number in range(FOLDS):
        out = fold == number
        result[out] = solve(table.only(~out)).predict(table.only(out))
    return result


def unknown(rows: Sequence[Row], group: Callable[[Row], str], seed: int) -> int:
    """How many rows have a reach that the other folds have not."""
    fold = folds(rows, group, seed)
    reach = np.array([row.step.gang.reach for row in rows])
    return sum(int((~np.isin(reach[fold == n], reach[fold != n])).sum()) for n in range(FOLDS))


def in_range(rows: Sequence[Row], group: Callable[[Row], str], seed: int) -> float:
    """Share of rows in the predicted range, each by the model of the other folds; unknown is outside."""
    fold, hits = folds(rows, group, seed), []
    for number in range(FOLDS):
        model = fit([row.step for row, one in zip(rows, fold, strict=True) if one != number])
        assert isinstance(model, ThroughputModel), str(model)
        hits += [_within(model, row) for row, one in zip(rows, fold, strict=True) if one == number]
    return float(np.mean(hits))


def _within(model: ThroughputModel, row: Row) -> bool:
    guess = model.predict(row.step.batch_size, row.step.accumulation_steps, row.step.gang)
    return guess is not None and guess.low_s <= row.step.step_s <= guess.high_s


def spread(rows: Sequence[Row], predictions: Array) -> Spread:
    ratios = predictions / np.array([row.step.step_s for row in rows]) - 1.0
    errors = np.abs(ratios)
    return Spread(
        rows=len(rows),
        mean=float(errors.mean()),
        median=float(np.median(errors)),
        p95=float(np.quantile(errors, 0.95)),
        bias=float(ratios.mean()),
    )


# --- From what a profiler sees -------------------------------------------------------------------------


def seen_by_a_profiler(rows: Sequence[Row]) -> list[Row]:
    """Five placements at the smallest, the middle and the largest batch size of the application."""
    sizes = sorted({row.step.batch_size for row in rows})
    chosen = {sizes[0], sizes[len(sizes) // 2], sizes[-1]}
    return [row for row in rows if row.placement in SEEN_PLACEMENTS and row.step.batch_size in chosen]


def from_a_profile(rows: Sequence[Row]) -> tuple[Seen, list[Row], Array]:
    """Every row above four devices, predicted; with those rows and predictions."""
    few = seen_by_a_profiler(rows)
    model = fit([row.step for row in few])
    assert isinstance(model, ThroughputModel), str(model)
    wide = [row for row in rows if row.step.gang.devices > SEEN_DEVICES_MAX]
    guesses = np.array([_known(model.step_s(row.step.batch_size, 1, row.step.gang)) for row in wide])
    return (
        Seen(
            fitted_rows=len(few),
            claimed=model.error_ratio,
            error=spread(wide, guesses),
            in_range=float(np.mean([_within(model, row) for row in wide])),
            by_devices=by_devices(wide, guesses),
        ),
        wide,
        guesses,
    )


def _known(step_s: float | None) -> float:
    assert step_s is not None, "two hosts were profiled"
    return step_s


def by_devices(rows: Sequence[Row], predictions: Array) -> dict[str, float]:
    """Mean error of rows with 5 to 8 devices, 9 to 16, ..."""
    devices = np.array([row.step.gang.devices for row in rows])
    measured = np.array([row.step.step_s for row in rows])
    errors = np.abs(predictions / measured - 1.0)
    bands = {f"{half + 1}-{2 * half}": (devices > half) & (devices <= 2 * half) for half in (4, 8, 16, 32)}
    return {name: float(errors[rows].mean()) for name, rows in bands.items() if rows.any()}
