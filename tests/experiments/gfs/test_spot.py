"""The generated workload of GFS meets what is published of its trace, and says that it is generated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.sim import TraceProblem, read
from experiments.gfs.spot import (
    DAY_S,
    GPUS,
    HP,
    LOADS,
    ORGANISATION_SHARES,
    PROGRAM,
    SPOT,
    TaskClass,
    spot,
    synthesise_spot,
)

if TYPE_CHECKING:
    from tests.experiments.conftest import Run


def test_organisations_have_the_released_traces_shares_of_gpu_seconds() -> None:
    """Long and wide tasks are few, so one seed's shares are not the expectation; those of several are."""
    found = np.zeros(len(ORGANISATION_SHARES))
    for seed in range(4):
        trace = synthesise_spot(seed=seed, days=91)
        owners = trace.organisation.codes[trace.hp]
        seconds = (trace.gpus * trace.duration_s)[trace.hp]
        found += np.bincount(owners, weights=seconds, minlength=len(found)) / seconds.sum() / 4
    np.testing.assert_allclose(found, ORGANISATION_SHARES, atol=0.01)
    assert sum(ORGANISATION_SHARES) == pytest.approx(1.0)


def test_a_seed_has_the_tasks_that_it_had_with_other_owners() -> None:
    """Each column has a stream of its own: pinned with the organisations of before."""
    trace = synthesise_spot(seed=3, days=1.0)
    assert len(trace) == 2_233 and int(trace.hp.sum()) == 1_887
    sums = tuple(float(column.sum()) for column in (trace.submit_s, trace.duration_s, trace.gpus))
    assert sums == (89_146_054.0, 59_987_583.0, 11_232.0)


@pytest.mark.parametrize("seed", [0, 7, 2**40])
@pytest.mark.parametrize("kind", [HP, SPOT], ids=["hp", "spot"])
def test_the_papers_table_3_is_met(kind: TaskClass, seed: int) -> None:
    trace = synthesise_spot(seed=seed, days=91)
    new = (trace.submit_s > 0.0) & (trace.hp == kind.hp)
    assert int(new.sum()) == pytest.approx(138_403 if kind.hp else 26_635, rel=0.02), seed
    assert float(np.mean(trace.duration_s[new])) == pytest.approx(kind.duration_s_mean, rel=0.06), seed
    assert float(np.median(trace.duration_s[new])) == pytest.approx(kind.duration_s_median, rel=0.15), seed
    offered = float(np.sum(trace.gpus[new] * trace.duration_s[new])) / (91 * DAY_S * GPUS)
    assert offered == pytest.approx(kind.offered_load, rel=0.15), seed
    assert trace.synthetic and "generated" in trace.source and str(seed) in trace.notes[0]


def test_shares_are_whole_and_loads_those_that_the_documentation_names() -> None:
    for kind in (HP, SPOT):
        assert sum(kind.gpus_of_pod.values()) == pytest.approx(1.0)
        assert sum(kind.gang_pods.values()) == pytest.approx(1.0)
    assert (round(HP.offered_load, 2), round(SPOT.offered_load, 2)) == (0.71, 0.06)


def test_the_workload_is_stationary_from_its_first_second() -> None:
    trace = synthesise_spot(seed=3, days=60)
    ends_s = trace.submit_s + trace.duration_s
    held = [
        float(trace.gpus[(trace.submit_s <= at_s) & (ends_s > at_s)].sum()) / GPUS
        for at_s in np.arange(0.0, 60 * DAY_S, 6 * 3600.0)
    ]
    first, rest = held[:20], held[20:]
    assert np.mean(first) == pytest.approx(np.mean(rest), abs=3 * float(np.std(rest))), "no empty beginning"
    assert np.mean(held) == pytest.approx(HP.offered_load + SPOT.offered_load, rel=0.2)


@given(seed=st.integers(0, 2**32), days=st.floats(0.1, 4.0), scale=st.floats(0.0, 8.0))
@settings(max_examples=25, deadline=None)
def test_hp_tasks_are_the_same_at_every_spot_load(seed: int, days: float, scale: float) -> None:
    one, other = (
        synthesise_spot(seed=seed, days=days),
        synthesise_spot(seed=seed, days=days, spot_scale=scale),
    )
    for column in ("submit_s", "duration_s", "gpus"):
        np.testing.assert_array_equal(getattr(one, column)[one.hp], getattr(other, column)[other.hp])
    assert bool(np.all(np.diff(other.submit_s) >= 0.0))
    if scale == 0.0:
        assert bool(np.all(other.hp))


def test_the_three_loads_of_the_paper_have_names() -> None:
    made = (synthesise_spot(seed=0, spot_scale=LOADS[name]) for name in ("gfs", "gfs-2x", "gfs-4x"))
    tasks = [int(np.count_nonzero(~trace.hp)) for trace in made]
    assert tasks[1] / tasks[0] == pytest.approx(2.0, rel=0.15)
    assert tasks[2] / tasks[0] == pytest.approx(4.0, rel=0.15)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"days": 0.0}, "0 days cannot be generated"),
        ({"days": 1000.0}, "1000 days cannot"),
        ({"spot_scale": -1.0}, "scaled by -1"),
        ({"spot_scale": float("nan")}, "scaled by nan"),
        ({"seed": -1}, "-1 is no seed"),
    ],
)
def test_what_cannot_be_generated_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(TraceProblem, match=message):
        synthesise_spot(**{"seed": 0, **options})  # type: ignore[arg-type]


def test_a_file_of_the_command_has_the_tasks_as_they_were_generated(
    runs: Callable[[Any, str], Run],
) -> None:
    run, file = runs(spot, PROGRAM), "spot.csv.gz"
    asked = (file, "--spot-scale", "4", "--days", "0.01", "--seed", "3")
    written = run(*asked)
    assert written.code == 0 and "SYNTHETIC" in written.err
    trace, made = read(file), synthesise_spot(seed=3, days=0.01, spot_scale=4.0)
    for column in ("submit_s", "duration_s", "gpus", "hp"):
        np.testing.assert_array_equal(getattr(trace, column), getattr(made, column))
    assert (trace.synthetic, trace.organisation.texts()) == (True, made.organisation.texts())
    assert run(*asked).code == 1, "it is already there"
    assert run(file, "--days", "many").code == 2
