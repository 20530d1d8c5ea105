"""The runs and the page of experiments/results/default.md."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from experiments.default import cells, page
from experiments.default.cells import CONTESTANTS, DEFAULT, FIFO, Cell, Result
from experiments.default.measures import middle

ASKED = [
    cell for cell in cells.runs() if cell.ground in (*cells.SMALL, cells.VCS[0]) and cell.window in (0, 1)
]
WINDOW = Cell(ground="one host of four", window=1, load=0.8, resumable=0.5, tells=0.0)


@pytest.mark.parametrize("by", CONTESTANTS)
def test_a_run_that_stands_for_other_draws_gives_their_times(by: str) -> None:
    trace, drawn, stands = (
        cells.trace_of(WINDOW).take(np.arange(150)),
        replace(WINDOW, by=by),
        WINDOW.under(by),
    )
    assert cells.ran(drawn, trace).jct_s == cells.ran(stands, trace).jct_s


def test_all_policies_get_the_same_jobs_and_draws_at_the_load_that_is_named() -> None:
    trace = cells.trace_of(WINDOW)
    first, *others = (cells.workload(WINDOW.under(by), trace) for by in ("patient", "tiresias", DEFAULT))
    assert first.offered_load(4) == pytest.approx(WINDOW.load)
    assert 0.4 < np.mean(first.resumes) < 0.6
    for other in others:
        assert (other.submit_s == first.submit_s).all()
        assert other.resumes == first.resumes


def test_generated_jobs_depend_on_the_seed_alone_and_say_that_they_are_synthetic() -> None:
    once, again = cells.trace_of(WINDOW), cells.trace_of(WINDOW)
    other = cells.trace_of(replace(WINDOW, window=2))
    assert once.synthetic
    assert (once.duration_s == again.duration_s).all()
    assert len(once) != len(other)


def test_the_median_is_over_all_windows_and_its_interval_draws_groups_first() -> None:
    assert middle([[1.0, 2.0], [3.0]]).median == 2.0
    assert middle([[2.0, 2.0], [2.0]])[1:] == (2.0, 2.0)
    narrow, wide = middle([[1.0, 2.0, 3.0]]), middle([[1.0], [2.0], [3.0]])
    assert narrow[1:] == (1.0, 3.0) == wide[1:]


def results(default_s: float) -> list[Result]:
    """Of two windows each: under fifo each job takes 100 s, under the default as said, under others 50 s."""
    times_s = {FIFO: 100.0, DEFAULT: default_s}
    return [
        Result(
            cell=cell,
            commit="c0ffee",
            jct_s=[times_s.get(cell.by, 50.0)] * 3,
            longest_wait_s=1.0,
            tries_median_s=60.0,
            cpu_s=1.0,
        )
        for cell in ASKED
    ]


def test_the_page_says_first_how_many_targets_are_met_and_marks_the_others(tmp_path: Path) -> None:
    told = page.text(results(default_s=46.0), ASKED, "", tmp_path)
    marked = [line for line in told.splitlines() if line.endswith("**not met** |")]
    assert marked[0].startswith("| 64 GPUs, load 1: mean at most 0.45 of fifo's | 0.46 (0.46-0.46) |")
    all_of_them = len(marked) + told.count("| met |")
    assert told.split("\n\n")[1].startswith(f"**{told.count('| met |')} of {all_of_them} targets are met.**")
    assert f"page: {len(ASKED)} of {len(ASKED)} runs" in " ".join(told.split())
    assert len((tmp_path / "numbers.csv").read_text().splitlines()) > 1000


def test_the_page_says_that_all_is_met_where_it_is(tmp_path: Path) -> None:
    told = page.text(results(default_s=11.0), ASKED, "", tmp_path)
    assert told.split("\n\n")[1].startswith("**11 of 11 targets are met.**")
    assert "not met" not in told


def test_a_page_of_which_runs_are_missing_says_that_before_all_else(tmp_path: Path) -> None:
    told = page.text(results(default_s=11.0)[:1], ASKED, "", tmp_path)
    assert told.split("\n\n")[1].startswith(f"**Not all of it has been run: {len(ASKED) - 1} of")
