"""What the pages on bounds and on foresight make of runs, by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from experiments.unharmed import page, simulated, simulated_page
from experiments.unharmed.simulated import Cell, Result, Way


def real(pair: str, alone_p99_s: float, *, bound: float = 1.1, parted: bool = False) -> dict[str, Any]:
    """A minute of a pair: the protected job's steps alone take 0.1 s, beside the guest 0.105."""
    return {
        "pair": pair,
        "bound": bound,
        "processor": "x",
        "alone_p50_s": 0.1,
        "alone_p99_s": alone_p99_s,
        "alone_mean_s": 0.1,
        "busy": 0.2,
        "minutes": [{"p50_s": 0.105, "p99_s": 0.126, "mean_s": 0.105}],
        "guest_steps_per_s": 4.0,
        "parted": parted,
        "told_p50": 1.05,
    }


def test_how_often_chance_breaks_a_p99_is_seen_from_stretches_alone() -> None:
    runs = [real("a:b", 0.100), real("a:b", 0.115), real("a:b", 0.125), real("b:a", 0.3)]
    assert page.find_noise(runs, 0.1) == pytest.approx(2 / 6)
    assert page.find_noise(runs, 0.2) == pytest.approx(1 / 6)
    assert page.find_noise(runs[-1:], 0.1) is None


def test_a_pair_that_was_parted_takes_turns_and_is_not_said_to_do_less() -> None:
    (row,) = page.rows([real("a:a", 0.1)])
    assert (row.minutes_held, row.p99_held) == (1, 0) and row.guest == pytest.approx(0.4)
    assert "less than in turns in: no pair. Parted: none." in flat(page.verdicts([real("a:a", 0.1)]))
    weak = {**real("a:a", 0.1), "guest_steps_per_s": 0.1}
    assert "less than in turns in: a:a. Parted: none." in flat(page.verdicts([weak]))
    assert "less than in turns in: no pair. Parted: a:a." in flat(page.verdicts([{**weak, "parted": True}]))


@pytest.mark.parametrize(
    ("steps_per_s", "p50_s", "verdict"),
    [(1.0, 0.112, "Met in all runs"), (0.9, 0.112, "Not met in 1 of 1"), (1.0, 0.113, "Not met in 1 of 1")],
)
def test_a_run_without_declarations_meets_both_figures_or_says_first_that_it_does_not(
    steps_per_s: float, p50_s: float, verdict: str
) -> None:
    minutes = [{"p50_s": p50_s, "p99_s": 0.2, "mean_s": 0.1}]
    told = {"waited_s": 6.0, "reason": "why", "load": 1.0, "guest_steps_per_s": steps_per_s}
    text = page.undeclared_section([{**real("loader:compute", 0.1), **told, "minutes": minutes}])
    assert text.split("\n")[3].startswith(verdict)
    assert page.undeclared_section([]) == ""


def flat(text: str) -> str:
    return " ".join(text.split())


def result(way: Way, jct_s: list[float], slowdown: list[float], hp: list[bool], seed: int = 0) -> Result:
    return Result(
        cell=Cell(ground=simulated.GFS, seed=seed, way=way),
        commit="x",
        jct_s=jct_s,
        slowdown=slowdown,
        hp=hp,
        spot_wait_s=7200.0,
        evictions=0.25,
        makespan_s=100.0,
        cpu_s=1.0,
    )


def test_a_class_is_compared_with_the_same_jobs_where_hp_jobs_are_alone() -> None:
    alone = result(simulated.HP_ALONE, [100.0, 100.0, 400.0], [1.0, 1.0, 1.0], [True, True, False])
    shared = result(simulated.HP_SHARES, [104.0, 120.0, 200.0], [1.04, 1.2, 1.7], [True, True, False])
    assert simulated_page.find_share_over(shared, 1.05, True) == 0.5
    assert simulated_page.find_share_over(shared, 1.5, False) == 1.0
    assert simulated_page.find_share_over(shared, 1.5) == pytest.approx(1 / 3)
    assert simulated_page.find_share_grown(shared, alone, 1.05) == 0.5
    lines = simulated_page.sections([alone, shared]).splitlines()
    (row,) = [line for line in lines if "| shared, 1.05 |" in line]
    assert row == (
        f"| {simulated.GFS} | gfs-rise | shared, 1.05 | 1.12 | 0.50 | 2.00 | 25.0% | 50.0% | 50.0% | 100.0% |"
    )


def test_what_was_run_once_is_compared_with_nothing_else() -> None:
    later = result(simulated.HP_SHARES, [1.0, 1.0], [1.0, 1.0], [True, False], seed=1)
    assert "gfs-rise" not in simulated_page.sections([later])


def test_every_cell_has_a_file_of_its_own_and_comes_once() -> None:
    cells = simulated.cells()
    assert len({cell.file for cell in cells}) == len(cells) == len(set(cells))
    assert {cell.ground for cell in cells} == {*simulated.VCS, simulated.GFS, simulated.SERVER}


@pytest.mark.parametrize("ground", [simulated.SERVER, simulated.GFS, simulated.VCS[0]])
def test_the_jobs_of_a_ground_fit_on_its_devices(ground: str) -> None:
    workload, cluster = simulated.jobs_of(ground, 1, "none")
    assert len(workload) >= 50
    assert int(workload.gpus.max()) <= cluster.gpus
    assert 0.1 < workload.hp.mean() < 0.9
