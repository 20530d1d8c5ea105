"""What two jobs did to each other, computed from made-up sights: none of these was ever measured."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import pytest

from cotenant.controller.performance import Indicators, IndicatorStats, Profile
from hwtests.jobs import Job
from hwtests.pair_table import PairMean, Seen, Solo, averaged, table, together


def seen(name: str, launched_s: float, step: int, step_s: float) -> Seen:
    return Seen(name=name, launched_s=launched_s, step=step, step_s=step_s)


def solo(name: str, step_s: float, **more: Any) -> Solo:
    """It loads for 2 s."""
    job = Job(name=name, script="language_model", batch_size=8)
    plain = {"load_s": 2.0, "memory_mib": math.nan, "indicators": Indicators(), "profile": Profile()}
    return Solo(job=job, step_s=step_s, **{**plain, **more})


def test_two_that_share_at_half_their_speed() -> None:
    """Each takes twice as long; sharing gains nothing but the newcomer's load time."""
    first, second = seen("a", 0.0, 140, 0.2), seen("b", 2.0, 100, 0.2)
    run = together(first, second, 24.0, (solo("a", 0.1), solo("b", 0.1)), "time-slicing")
    assert (run.first_xi, run.second_xi, run.speed) == pytest.approx((2.0, 2.0, 1.0))
    # Alone a's 140 steps take 16 s, of which b waits 14; then it takes 12 s. Shared it took 22.
    assert run.benefit == pytest.approx((14.0 + 12.0) / 22.0)
    assert run.first_delay == pytest.approx(24.0 / 16.0)


def test_both_orders_are_one_row() -> None:
    a, b = solo("a", 0.1), solo("b", 0.1)
    one = together(seen("a", 0, 140, 0.2), seen("b", 2, 200, 0.1), 24.0, (a, b), "mps")
    other = together(seen("b", 0, 280, 0.1), seen("a", 2, 66, 0.3), 24.0, (b, a), "mps")
    (mean,) = averaged([one, other])
    assert (mean.models, mean.mode, mean.count) == (("a", "b"), "mps", 2)
    assert mean.xi == pytest.approx((2.5, 1.0))


def test_modes_are_kept_apart() -> None:
    solos = (solo("a", 0.1), solo("b", 0.1))
    two = (seen("a", 0, 140, 0.2), seen("b", 2, 100, 0.2))
    runs = [together(*two, 24.0, solos, mode) for mode in ("mps", "time-slicing")]
    assert [mean.mode for mean in averaged(runs)] == ["mps", "time-slicing"]


def test_a_row_of_the_table_and_what_is_missing_is_empty() -> None:
    active = IndicatorStats(mean=0.5, variance=0.01, count=9, period_s=0.5, source="gpm")
    indicators = Indicators(SMACT=active)
    solos = {"a": solo("a", 0.1, indicators=indicators, memory_mib=900.0), "b": solo("b", 0.2)}
    mean = PairMean(models=("a", "b"), mode="mps", xi=(1.25, 1.6), count=2, speed=1.4, benefit=1.1)
    text = table([mean], solos, "fake GPU")
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["sharing"], row["pair"], row["gpu_type"]) == ("mps", "a+b", "fake GPU")
    assert (row["xi1"], row["norm1"], row["solo1"], row["solo2"]) == ("1.25", "0.8", "10", "5")
    assert (row["solo1_mem_mib"], row["solo2_mem_mib"], row["solo1_SMACT_mean"]) == ("900", "", "0.5")
    assert "solo1_NVLTX_mean" not in row, "a column of nothing is left out"
