"""What is said of fairness, of differences between policies, and of which jobs count."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from cotenant.controller.sim.results.paired import policy_differences
from cotenant.controller.sim.results.summary import contention, counted_mask, fairness, jain, summarise
from cotenant.controller.sim.scenario import Scenario
from cotenant.controller.sim.simulate import simulate
from tests.controller.sim.workloads import JobRow, cluster, workload


def drawn(seed: int) -> list[JobRow]:
    chance = random.Random(seed)
    rows = [
        JobRow(
            float(chance.choice((0, 0, chance.randint(0, 1000)))),
            chance.randint(1, 500),
            chance.choice((1, 2)),
        )
        for _ in range(chance.randint(1, 12))
    ]
    first_s = min(row.submit_s for row in rows)
    return sorted((row._replace(submit_s=row.submit_s - first_s) for row in rows), key=lambda r: r.submit_s)


def test_a_job_alone_is_not_slowed_and_ends_when_it_should() -> None:
    found = fairness(simulate(workload(JobRow(0, 100)), cluster(1), "fifo"))
    assert found.slowdown.tolist() == pytest.approx([1.0])
    assert found.rho.tolist() == pytest.approx([1.0])


def test_two_jobs_in_turn_the_second_waits_longer_than_its_share_would_take() -> None:
    """Both want the one GPU from 0 to 130 s; the second has it to itself afterwards."""
    found = fairness(simulate(workload(JobRow(0, 100), JobRow(0, 100)), cluster(1), "fifo"))
    assert found.slowdown.tolist() == pytest.approx([1.0, 2.0])
    # Contention of the first is 2 all along; of the second 2 for one half of its stay, 1 for the other.
    assert found.rho.tolist() == pytest.approx([0.5, 2.0 / 1.5])


@pytest.mark.parametrize("number", range(20))
def test_contention_is_the_mean_of_what_was_wanted_while_a_job_was_there(number: int) -> None:
    rows = drawn(number)
    outcome = simulate(workload(*rows), cluster(1, 2), "sjf")
    ends_s = outcome.workload.submit_s + outcome.jct_s
    moments = np.unique(np.concatenate((outcome.workload.submit_s, ends_s)))
    for row, found in enumerate(contention(outcome).tolist()):
        total = 0.0
        for start_s, end_s in pairwise(moments.tolist()):
            if start_s >= rows[row].submit_s and end_s <= ends_s[row]:
                there = (outcome.workload.submit_s <= start_s) & (ends_s >= end_s)
                total += max(1.0, float(outcome.workload.gpus[there].sum()) / 2) * (end_s - start_s)
        assert found == pytest.approx(total / float(outcome.jct_s[row]), rel=1e-6)


@pytest.mark.parametrize(
    ("speeds", "index"), [([1.0, 1.0, 1.0], 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25), ([], None)]
)
def test_jains_index_is_one_for_equals_and_one_in_n_for_a_winner(
    speeds: list[float], index: float | None
) -> None:
    assert jain(np.array(speeds)) == index


def run(label: str, seed: int, mean_s: float, *, interrupted: bool = False) -> dict[str, Any]:
    spread = {"mean": mean_s, "p50": mean_s, "p95": mean_s}
    return {"label": label, "seed": seed, "interrupted": interrupted, "jct_s": spread, "wait_s": spread}


def test_what_seeds_have_in_common_drops_out_of_a_difference() -> None:
    """Seeds scatter by hundreds of seconds, the policies differ by ten: two intervals would overlap."""
    runs = [run("a", seed, 1000.0 * seed) for seed in range(4)]
    runs += [run("b", seed, 1000.0 * seed - 10.0) for seed in range(4)]
    (found, *_) = policy_differences(runs)
    assert found == {
        "policy": "b", "against": "a", "measure": "jct_s.mean", "difference": -10.0, "half": 0.0, "seeds": 4,
    }  # fmt: skip


def test_only_whole_runs_of_seeds_that_both_have_are_compared() -> None:
    runs = [run("a", 0, 1.0), run("a", 1, 2.0), run("a", 2, 3.0), run("b", 0, 2.0), run("b", 1, 5.0)]
    assert {each["seeds"] for each in policy_differences([*runs, run("b", 2, 9.0, interrupted=True)])} == {2}
    assert policy_differences(runs[:4]) == []
    assert policy_differences([run("a", 0, 1.0, interrupted=True), *runs[3:]]) == []


def test_jobs_at_both_ends_run_and_are_not_counted() -> None:
    assert counted_mask(10, 0.1).tolist() == [False, *[True] * 8, False]
    assert counted_mask(5, 0.1).all() and counted_mask(0, 0.1).tolist() == []
    outcome = simulate(workload(*(JobRow(0, 100) for _ in range(4))), cluster(1), "fifo")
    whole, middle = summarise(outcome), summarise(outcome, 0.25)
    assert (whole["counted_jobs"], middle["counted_jobs"]) == (4, 2)
    assert (whole["jct_s"]["mean"], middle["jct_s"]["mean"]) == (325.0, 325.0)
    assert (whole["jct_s"]["p99"] > middle["jct_s"]["p99"]) and middle["finished"] == 4
    assert middle["makespan_s"] == whole["makespan_s"]


@pytest.mark.parametrize("trim", [-0.1, 0.5, 3.0])
def test_no_more_than_all_can_be_left_out(trim: float) -> None:
    with pytest.raises(ValueError, match="left out at each end"):
        Scenario(trace="philly/0e4a51", trim=trim)


def test_a_long_label_is_broken_between_its_parameters_and_loses_nothing() -> None:
    plots = pytest.importorskip("cotenant.controller.sim.results.plots")
    label = "widest:Widest:narrow=true,strict=false"
    assert plots.break_label("patient") == "patient"
    assert plots.break_label(label) == "widest:Widest:\nnarrow=true,\nstrict=false"
    assert plots.break_label(label).replace("\n", "") == label
