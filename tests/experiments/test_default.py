"""The runs and the page of experiments/results/default.md."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from cotenant.controller import sim
from experiments.default import arrays, cells, families, page, targets
from experiments.default.cells import BLIND, CONTESTANTS, DEFAULT, FIFO, Cell, Result
from experiments.default.measures import LOST, MOST, OVER, Place, Runs, middle

ASKED = [
    cell for cell in cells.runs() if cell.ground in (*cells.GENERATED, cells.VCS[0]) and cell.window in (0, 1)
]
WINDOW = Cell(ground="one host of four", window=1, load=0.8, resumable=0.5, tells=0.0)


@pytest.mark.parametrize("ground", [cells.HOST, cells.COMMANDS])
@pytest.mark.parametrize("by", CONTESTANTS)
def test_a_run_that_stands_for_other_draws_gives_their_times(by: str, ground: str) -> None:
    window = replace(WINDOW, ground=ground)
    drawn, stands = replace(window, by=by), window.under(by)
    rows = np.arange(150)
    first, second = (cells.ran(cell, cells.trace_of(cell).take(rows)) for cell in (drawn, stands))
    assert first.jct_s == second.jct_s


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


def test_without_commands_the_jobs_of_the_host_with_commands_are_those_of_the_host() -> None:
    there = replace(WINDOW, ground=cells.COMMANDS)
    rows = np.arange(150)
    known, plain = (cells.trace_of(each).take(rows) for each in (there, WINDOW))
    assert len(known.submissions) == 150 and not plain.submissions
    assert (known.duration_s == plain.duration_s).all() and (known.submit_s == plain.submit_s).all()
    assert there.under(BLIND) == WINDOW and there.under(FIFO) == WINDOW.under(FIFO)
    assert there.under(DEFAULT) == there


def logs_by_script(trace: sim.Trace, beginning: str) -> dict[tuple[str, str], list[float]]:
    """Of tries no one: those have a word more."""
    found = dict[tuple[str, str], list[float]]()
    for each, length_s in zip(trace.submissions, trace.duration_s.tolist(), strict=True):
        if each.argv[1].startswith(beginning) and "--debug" not in each.argv:
            found.setdefault((each.user, each.argv[1]), []).append(np.log(length_s))
    return found


def test_families_spread_as_published() -> None:
    on = cells.GENERATED[cells.FOUR]
    traces = [families.generated(on, seed) for seed in range(100, 140)]
    logs = [each for trace in traces for each in logs_by_script(trace, "train").values() if len(each) >= 12]
    within = np.median([np.std(each, ddof=1) for each in logs])
    between = np.std([np.mean(each) for each in logs], ddof=1)
    assert within == pytest.approx(families.WITHIN_SIGMAS[2], abs=0.12)
    assert between == pytest.approx(families.BETWEEN_SIGMA, abs=0.2)
    tries = [
        each for trace in traces for each in trace.submissions if "once" in each.argv[1] or len(each.argv) > 4
    ]
    repeated = np.mean(["--debug" in each.argv for each in tries])
    assert repeated == pytest.approx(families.REPEATED, abs=0.02)


@pytest.mark.parametrize("ground", cells.ARRAYS)
def test_arrays_have_one_command_and_one_limit_and_grids_have_many(ground: str) -> None:
    trace = arrays.generated(cells.GENERATED[ground], 5)
    tasks = [each for each in trace.submissions if each.array]
    by_array = {array: {each for each in tasks if each.array == array} for array in {e.array for e in tasks}}
    assert len(tasks) > len(by_array) > 1 and all(len(found) == 1 for found in by_array.values())
    assert {each.array_limit for each in tasks} <= {*arrays.AT_ONCE[cells.GENERATED[ground].gpus]}
    assert all(len(each) > 1 for each in logs_by_script(trace, "tune").values())
    limits_s = arrays.TASK_S_LIMITS
    short = [
        length_s
        for each, length_s in zip(trace.submissions, trace.duration_s.tolist(), strict=True)
        if "pretrain" not in each.argv[1]
    ]
    assert limits_s[0] <= min(short) <= max(short) <= limits_s[1]


def test_preemptions_cost_pauses_and_loads_but_one_and_training_done_twice() -> None:
    whole = cells.trace_of(WINDOW).take(np.arange(3))
    jobs = cells.workload(WINDOW, whole)
    found = sim.simulate(jobs, cells.cluster(WINDOW.ground), "fifo", physics=sim.Physics(pairs="none"))
    assert cells.preemption_costs_s(found) == pytest.approx(np.zeros(3), abs=1e-6)
    needed_s = found.workload.load_s
    preempted = dataclasses.replace(
        found,
        load_s=needed_s + np.array([0.0, 20.0, 45.0]),
        pause_s=np.array([0.0, 4.0, 8.0]),
        rework_s=np.array([0.0, 0.0, 7.0]),
    )
    assert cells.preemption_costs_s(preempted) == pytest.approx(np.array([0.0, 24.0, 60.0]), abs=1e-6)


def test_the_worst_window_is_the_greatest_value_and_a_row_the_median() -> None:
    cell = Cell(ground="arrays on three", window=1, load=0.8, resumable=1.0, tells=0.8, load_time_s=20.0)
    known = [
        replace(
            one,
            cell=replace(cell, window=window),
            lost_share=lost,
            preemptions_max=most,
            over_tenth_share=over,
        )
        for one, (window, lost, most, over) in zip(
            results(1.0), [(1, 0.01, 5, 0.0), (2, 0.02, 9, 0.25), (3, 0.06, 2, 0.0)], strict=False
        )
    ]
    fifo = [replace(one, cell=one.cell.under(FIFO)) for one in known]
    runs = Runs([*known, *fifo])
    (place,) = runs.places()
    lost = runs.at(place, what=LOST)
    assert lost is not None and lost.median == pytest.approx(2.0)
    assert (runs.worst(place, MOST), runs.worst(place, OVER)) == (9.0, 25.0)
    by_name = {one.what: one for one in targets.targets(runs)}
    (tenth,) = [one for name, one in by_name.items() if "tenth" in name]
    assert not tenth.is_met and "arrays on three" in tenth.told
    (all_of,) = [one for name, one in by_name.items() if "all device time" in name]
    assert all_of.is_met


def test_every_row_of_the_page_before_is_a_row_still() -> None:
    rows = {Place(each.load, each.resumable, each.tells, each.ground).pooled for each in cells.windows()}
    assert len(targets.before()) == 15 and {*targets.before()} <= rows


def test_the_median_is_over_all_windows_and_its_interval_draws_groups_first() -> None:
    assert middle([[1.0, 2.0], [3.0]]).median == 2.0
    assert middle([[2.0, 2.0], [2.0]])[1:] == (2.0, 2.0)
    narrow, wide = middle([[1.0, 2.0, 3.0]]), middle([[1.0], [2.0], [3.0]])
    assert narrow[1:] == (1.0, 3.0) == wide[1:]


def results(default_s: float) -> list[Result]:
    """Of two windows each: under fifo each job takes 100 s, under the default as said (a tenth less on the
    host with commands), under others 50 s."""
    times_s = {FIFO: 100.0, DEFAULT: default_s}
    with_commands = {**times_s, DEFAULT: 0.9 * default_s}
    return [
        Result(
            cell=cell,
            commit="c0ffee",
            jct_s=[(with_commands if cell.ground == cells.COMMANDS else times_s).get(cell.by, 50.0)] * 3,
            longest_wait_s=1.0,
            tries_median_s=60.0,
            lost_share=0.0,
            preemptions_max=0,
            over_tenth_share=0.0,
            cpu_s=1.0,
        )
        for cell in ASKED
    ]


def test_the_page_says_first_how_many_targets_are_missed_and_which(tmp_path: Path) -> None:
    written = page.write(results(default_s=46.0), ASKED, "", tmp_path)
    told = written.read_text()
    verdicts = [
        line.endswith("| met |") for line in told.splitlines() if line.endswith(("met** |", "| met |"))
    ]
    assert verdicts == sorted(verdicts), "missed ones come first"
    first, missed = told.split("\n\n")[1], verdicts.count(False)
    assert first.startswith(f"**{missed} of {len(verdicts)} targets are not met.**")
    assert "| 64 GPUs, load 1: mean at most 0.45 of fifo's | 0.46 (0.46-0.46) | **not met** |" in told
    assert told.index("not met** |") < told.index("![")
    assert f"page: {len(ASKED)} of {len(ASKED)} runs" in " ".join(told.split())
    assert len((tmp_path / "default" / "numbers.csv").read_text().splitlines()) > 1000


def test_all_other_tables_are_on_a_page_that_counts_their_rows(tmp_path: Path) -> None:
    page.write(results(default_s=46.0), ASKED, "", tmp_path)
    told = (tmp_path / "default-tables.md").read_text()
    rows = [
        line for line in told.splitlines() if line.startswith(("| load", "| one", "| two", "| arr", "| fam"))
    ]
    counted = sum(not line.split(" | ")[-5].startswith("-") for line in rows)
    assert f"Of {counted} rows the default's mean" in told
    assert told.count("\n## ") == 4


def test_the_page_says_that_all_is_met_where_it_is(tmp_path: Path) -> None:
    told = page.text(results(default_s=9.0), ASKED, "", tmp_path)
    assert told.split("\n\n")[1].startswith("**All ")
    assert "not met" not in told


def test_a_page_of_which_runs_are_missing_says_that_before_all_else(tmp_path: Path) -> None:
    told = page.text(results(default_s=11.0)[:1], ASKED, "", tmp_path)
    assert told.split("\n\n")[1].startswith(f"**Not all of it has been run: {len(ASKED) - 1} of")
