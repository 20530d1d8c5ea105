"""What two jobs did to each other, computed from made-up lives: none of these was ever measured."""

from __future__ import annotations

import csv
import io
import math

import pytest

from cotenant.controller.training import pair_rows
from cotenant.profiler.indicators.sources import Indicator, Summary
from hwtests.driving import Job, Life, Report
from hwtests.pair_table import (
    PairMean,
    Solo,
    TooFew,
    averaged,
    median_step_s,
    merged,
    table,
    together,
    window,
)


def life(name: str, started_s: float, first_step_s: float, ended_s: float, step_s: float) -> Life:
    """Ten steps in each report, as fast as `step_s` says."""
    reports, at_s, step = [], first_step_s, 1
    while at_s + 10 * step_s <= ended_s + 1e-9:
        at_s, step = at_s + 10 * step_s, step + 10
        reports.append(Report(at_s=at_s, step=step, count=10, elapsed_s=10 * step_s))
    return Life(
        name=name, started_s=started_s, first_step_s=first_step_s, ended_s=ended_s, reports=reports, pid=1
    )


def solo(name: str, step_s: float, **more: object) -> Solo:
    """It loads for 2 s and makes 100 steps."""
    job = Job(model=name, batch_size=8)
    wall_s = 2.0 + 100 * step_s
    plain = {
        "step_s": step_s,
        "wall_s": wall_s,
        "hello_s": 1.0,
        "load_s": 2.0,
        "steps": 100,
        "memory_mib": math.nan,
    }
    return Solo(job=job, **{**plain, **more})  # type: ignore[arg-type]


def test_only_steps_that_lie_wholly_in_the_window_count() -> None:
    alone = life("a", 0.0, 1.0, 11.0, 0.1)
    found = window(alone, 3.0, 9.05, warm_up_steps=5)
    assert [report.at_s for report in found] == pytest.approx([4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    later = window(alone, 0.0, 99.0, warm_up_steps=25)
    assert later[0].at_s == pytest.approx(5.0)


def test_too_few_steps_are_no_measurement() -> None:
    with pytest.raises(TooFew, match="a: 0 reports"):
        median_step_s([], "a")


def test_two_that_share_at_half_their_speed() -> None:
    """Each takes twice as long; sharing gains nothing but the newcomer's load time."""
    first, second = life("a", 0.0, 2.0, 30.0, 0.2), life("b", 2.0, 4.0, 24.0, 0.2)
    run = together(first, second, (solo("a", 0.1), solo("b", 0.1)), "time-slicing")
    assert (run.first_xi, run.second_xi, run.speed) == pytest.approx((2.0, 2.0, 1.0))
    # Alone a's 141 steps take 16.1 s, of which b waits 14.1; then it takes 12 s. Shared it took 22.
    assert run.benefit == pytest.approx((14.1 + 12.0) / 22.0)
    assert run.first_delay == pytest.approx(first.reports[-1].at_s / (2.0 + 0.1 * first.reports[-1].step))


def test_both_orders_are_one_row() -> None:
    a, b = solo("a", 0.1), solo("b", 0.1)
    one = together(life("a", 0, 2, 30, 0.2), life("b", 2, 4, 24, 0.1), (a, b), "mps")
    other = together(life("b", 0, 2, 30, 0.1), life("a", 2, 4, 24, 0.3), (b, a), "mps")
    (mean,) = averaged([one, other])
    assert (mean.models, mean.mode, mean.count) == (("a", "b"), "mps", 2)
    assert mean.xi == pytest.approx((2.5, 1.0))


def test_modes_are_kept_apart() -> None:
    solos = (solo("a", 0.1), solo("b", 0.1))
    lives = (life("a", 0, 2, 30, 0.2), life("b", 2, 4, 24, 0.2))
    runs = [together(*lives, solos, mode) for mode in ("mps", "time-slicing")]
    assert [mean.mode for mean in averaged(runs)] == ["mps", "time-slicing"]


def test_the_table_is_read_as_pairs_and_what_is_missing_is_empty() -> None:
    active = Summary(mean=0.5, variance=0.01, count=9, period_s=0.5, source="gpm")
    absent = Summary(
        mean=math.nan, variance=math.nan, count=0, period_s=0.5, source="gpm", reason="no counter"
    )
    indicators = {Indicator.SMACT: active, Indicator.NVLTX: absent}
    solos = {"a": solo("a", 0.1, indicators=indicators, memory_mib=900.0), "b": solo("b", 0.2)}
    mean = PairMean(models=("a", "b"), mode="mps", xi=(1.25, 1.6), count=2, speed=1.4, benefit=1.1)
    text = table([mean], solos, "fake GPU")
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["sharing"], row["pair"], row["gpu_type"]) == ("mps", "a+b", "fake GPU")
    assert (row["xi1"], row["norm1"], row["solo1"], row["solo2"]) == ("1.25", "0.8", "10", "5")
    assert (row["solo1_mem_mib"], row["solo2_mem_mib"], row["solo1_SMACT_mean"]) == ("900", "", "0.5")
    assert "solo1_NVLTX_mean" not in row, "a column of nothing is left out"
    pairs = pair_rows.read(text.encode(), "pairs.csv")
    assert pairs.xi.tolist() == [[1.25, 1.6]]
    assert pairs.groups == ("a+b",)
    assert {"SMACT_mean", "mem_mib", "batch", "amp"} <= set(pairs.names)


def test_a_later_table_replaces_the_rows_that_it_has_and_keeps_the_others() -> None:
    before = "gpu_type,sharing,xi1,solo1,pair\nfake,mps,1.5,9,a+b\nfake,mps,2.5,8,c+d\n"
    after = "gpu_type,sharing,xi1,solo2,pair\nfake,mps,1.25,7,a+b\n"
    wanted = "gpu_type,sharing,xi1,solo1,solo2,pair\nfake,mps,1.25,,7,a+b\nfake,mps,2.5,8,,c+d\n"
    assert merged(before, after) == wanted
    assert merged(wanted, after) == wanted
