"""The fit on measured step times of real applications, where the shared measurements are at hand.

The whole validation, with its protocol, is `experiments/castor/throughput.py`. This is a small part of it: it
fails when a change of the law makes it worse.
"""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from cotenant.controller.performance import Gang, MeasuredStep, ThroughputModel
from cotenant.profiler.step_law import StepTable, solve
from cotenant.profiler.throughput import fit

pytest.importorskip("scipy", reason="fits need SciPy, which is not installed here")
DATA = Path(__file__).resolve().parents[3] / "shared" / "interference" / "adaptdl_step_times.csv.gz"
pytestmark = pytest.mark.skipif(not DATA.is_file(), reason="the shared measurements are not here")
SEEN = ("1", "2", "4", "11", "22")


def rows_of(app: str) -> list[tuple[str, MeasuredStep]]:
    """Placement and step, every row of an application."""
    with gzip.open(DATA, "rt", newline="") as lines:
        return [
            (
                "".join(sorted(row["placement"])) or f"{row['num_nodes']}/{row['num_replicas']}",
                MeasuredStep(
                    batch_size=float(row["local_bsz"]),
                    gang=Gang(devices=int(row["num_replicas"]), hosts=int(row["num_nodes"])),
                    step_s=float(row["step_time_s"]),
                ),
            )
            for row in csv.DictReader(lines)
            if row["app"] == app
        ]


@pytest.mark.parametrize("app", ["bert", "ncf"])
def test_placements_held_out_are_predicted_within_eleven_percent(app: str) -> None:
    rows = rows_of(app)
    names = sorted({placement for placement, _ in rows})
    fold = dict(zip(np.random.default_rng(0).permutation(names), np.arange(len(names)) % 5, strict=True))
    folds = np.array([fold[placement] for placement, _ in rows])
    table = StepTable.make([step for _, step in rows])
    errors: list[float] = []
    for number in range(5):
        out = table.only(folds == number)
        errors.extend(np.abs(solve(table.only(folds != number)).predict(out) / out.step_s - 1.0))
    assert len(errors) == len(rows)
    assert np.mean(errors) <= 0.11, "seed 0"


@pytest.mark.parametrize("app", ["bert", "ncf"])
def test_a_profile_of_four_devices_says_what_sixty_four_take_and_that_it_may_be_off(app: str) -> None:
    rows = rows_of(app)
    sizes = sorted({step.batch_size for _, step in rows})
    chosen = (sizes[0], sizes[len(sizes) // 2], sizes[-1])
    model = fit([step for placement, step in rows if placement in SEEN and step.batch_size in chosen])
    assert isinstance(model, ThroughputModel), str(model)
    guesses = [
        (model.predict(step.batch_size, 1, step.gang), step.step_s)
        for _, step in rows
        if step.gang.devices > 4
    ]
    errors = [abs(guess.step_s / took_s - 1.0) for guess, took_s in guesses if guess is not None]
    inside = [guess.low_s <= took_s <= guess.high_s for guess, took_s in guesses if guess is not None]
    assert len(errors) == len(guesses) > 300
    assert np.mean(errors) <= 0.25
    assert np.mean(inside) >= 0.8
