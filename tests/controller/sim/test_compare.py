"""Several runs at once: the same results wherever they run, stops that lose nothing, intervals, documents."""

from __future__ import annotations

import csv
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.sim import compare
from cotenant.controller.sim.choices import BadChoice, PolicyChoice, policies_named
from cotenant.controller.sim.compare import TaskProgress, TaskRun, run_all
from cotenant.controller.sim.results import plots
from cotenant.controller.sim.results.document import MEASURED, document, write_jobs
from cotenant.controller.sim.results.paired import interval
from cotenant.controller.sim.scenario import Scenario, tasks
from cotenant.controller.sim.simulate import WATCH_EVERY
from tests.building.limits import within_s

SMALL = Scenario(trace="philly/51b7ef")


def small(policies: str = "fifo,srtf", seeds: tuple[int, ...] = (0,)) -> list[compare.Task]:
    return tasks(SMALL, policies_named(policies), seeds)


def steady(value: Any) -> Any:
    """Without what the machine measured."""
    if isinstance(value, dict):
        return {key: steady(one) for key, one in value.items() if key not in MEASURED}
    return [steady(one) for one in value] if isinstance(value, list) else value


# --- Policies as text ---------------------------------------------------------------------------------


def test_options_belong_to_the_policy_before_them() -> None:
    names = [choice.name for choice in policies_named("fifo, interval:interval_s=30,srtf")]
    assert names == ["fifo", "interval", "srtf"]
    assert policies_named("fifo,interval:interval_s=30")[1].parameters == {"interval_s": 30.0}


def test_a_list_of_numbers_is_one_value() -> None:
    tiresias, fifo = policies_named("tiresias:thresholds_gpu_s=3250,7200,fifo")
    assert tiresias.parameters == {"thresholds_gpu_s": "3250,7200"}
    assert fifo.name == "fifo"


def test_a_label_can_be_typed_again() -> None:
    (choice,) = policies_named("interval:interval_s=30")
    assert policies_named(choice.label) == (choice,)
    assert PolicyChoice("x", {"b": True, "a": 1}).label == "x:a=1,b=true"


def test_a_policy_named_twice_runs_once() -> None:
    assert len(policies_named("sjf,fifo,sjf")) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sjff", "there is no policy 'sjff'"),
        ("interval:intervall_s=30", "has no parameter 'intervall_s'"),
        ("interval:interval_s=soon", "must be a number, got 'soon'"),
        ("interval:30", "'30' is not KEY=VALUE"),
        ("a=1", "belongs to no policy"),
        (" , ", "no policy was named"),
    ],
)
def test_a_mistake_in_a_list_of_policies_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(BadChoice, match=message):
        policies_named(text)


def test_the_nearest_policy_is_offered() -> None:
    with pytest.raises(BadChoice) as caught:
        policies_named("srft")
    assert caught.value.hint == "did you mean srtf?"


# --- Runs ----------------------------------------------------------------------------------------------


APART = """
import msgspec, sys
from cotenant.controller.sim.choices import policies_named
from cotenant.controller.sim.compare import run_all
from cotenant.controller.sim.scenario import Scenario, tasks
runs = run_all(tasks(Scenario(trace="philly/51b7ef"), policies_named("fifo,srtf"), (0, 1)), workers=2)
sys.stdout.buffer.write(msgspec.json.encode([run.summary for run in runs]))
"""


def test_processes_give_what_one_process_gives() -> None:
    """And in the order of the tasks. In a process of its own, which takes its helpers with it."""
    here = run_all(small(seeds=(0, 1)), workers=1)
    done = subprocess.run(
        [sys.executable, "-c", APART], capture_output=True, check=True, timeout=within_s(120)
    )
    apart = msgspec.json.decode(done.stdout)
    assert [summary["label"] for summary in apart] == ["fifo", "srtf", "fifo", "srtf"]
    assert steady(apart) == steady([run.summary for run in here])


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not() -> None:
    def encoded(seed: int) -> bytes:
        runs = run_all(small(seeds=(seed,)), workers=1)
        value = document("philly/51b7ef", runs, options=SMALL.options())
        return msgspec.json.encode(steady(value))

    assert encoded(3) == encoded(3)
    assert encoded(3) != encoded(4)


def test_progress_ends_with_all_jobs_of_each_task() -> None:
    seen: dict[int, TaskProgress] = {}
    run_all(small(), workers=1, report=lambda progress: seen.update({progress.task: progress}))
    assert {task: (p.finished, p.total) for task, p in seen.items()} == {0: (63, 63), 1: (63, 63)}


def test_ctrl_c_ends_the_run_under_way_and_keeps_what_was_finished() -> None:
    pressed: list[TaskProgress] = []

    def report(progress: TaskProgress) -> None:
        if progress.task == 1 and not pressed:
            pressed.append(progress)
            signal.raise_signal(signal.SIGINT)

    long = Scenario(trace="philly/0e4a51", jobs=3 * WATCH_EVERY)
    runs = run_all(tasks(long, policies_named("fifo,sjf,srtf"), (0,)), workers=1, report=report)
    assert 0 < pressed[0].finished < pressed[0].total
    assert [(run.label, run.summary["interrupted"]) for run in runs] == [("fifo", False), ("sjf", True)]
    value = document("t", runs, options={}, not_run=["srtf seed 0"])
    assert value["interrupted"] is True


def test_a_second_ctrl_c_interrupts_at_once() -> None:
    stop = threading.Event()
    told: list[int] = []
    with compare.stopping(stop, told.append):
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert told == [signal.SIGINT, signal.SIGTERM]


# --- Numbers and files -----------------------------------------------------------------------------------


def test_an_interval_is_students() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.303 / 3**0.5)
    assert interval([5.0]).half is None
    with pytest.raises(ValueError, match="at least one"):
        interval([])


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=60))
def test_an_interval_holds_its_mean_and_is_never_negative(values: list[float]) -> None:
    found = interval(values)
    assert found.half is not None
    assert found.low <= found.mean <= found.high
    assert min(values) - 1e-6 <= found.mean <= max(values) + 1e-6


def kept() -> TaskRun:
    (run,) = run_all(small("srtf"), workers=1, keep=True)
    assert run.outcome is not None
    return run


def test_the_csv_of_jobs_adds_up(tmp_path: Path) -> None:
    run = kept()
    assert run.outcome is not None
    write_jobs(run.outcome, tmp_path / "jobs.csv")
    with (tmp_path / "jobs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 63
    for row in rows:
        parts = sum(float(row[name]) for name in ("wait_s", "load_s", "run_s", "pause_s"))
        assert float(row["jct_s"]) == pytest.approx(parts, abs=0.01)
    mean = sum(float(row["jct_s"]) for row in rows) / len(rows)
    assert mean == pytest.approx(run.summary["jct_s"]["mean"], abs=0.001)


def test_plots_are_written_and_the_same_data_gives_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = kept()
    assert run.outcome is not None
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        plots.write_all({"srtf": run.outcome}, tmp_path / folder)
    names = [path.name for path in (tmp_path / "one").iterdir()]
    assert len(names) == 4
    for name in names:
        first = (tmp_path / "one" / name).read_bytes()
        assert first == (tmp_path / "two" / name).read_bytes()
        assert b"SYNTHETIC" not in first


def test_what_is_synthetic_says_so_in_its_picture() -> None:
    pytest.importorskip("matplotlib")
    curves = [plots.curve("fifo", np.array([1.0, 2.0, np.nan]))]
    figure = plots.distributions(curves, "Waiting", "waiting", synthetic=True)
    assert figure.get_suptitle() == "Waiting (SYNTHETIC jobs)"


def test_an_axis_of_durations_is_marked_in_units_that_people_read() -> None:
    pytest.importorskip("matplotlib")
    curves = [plots.curve("fifo", np.array([0.0, 30.0, 4e3, 9e6]))]
    marks = [
        mark.get_text()
        for mark in plots.distributions(curves, "", "", synthetic=False).axes[0].get_xticklabels()
    ]
    assert marks == ["0.1 s", "1 s", "10 s", "1 min", "10 min", "1 h", "1 d", "10 d", "100 d"]


def test_the_parts_of_a_bar_add_up_to_a_jct() -> None:
    pytest.importorskip("matplotlib")
    outcome = kept().outcome
    assert outcome is not None
    bar = plots.parts(outcome, "srtf")
    rows = plots.around_median(outcome.jct_s)
    assert sum(bar[1:]) == pytest.approx(float(outcome.jct_s[rows].mean()))


def test_ranges_are_drawn_with_their_intervals_and_one_is_marked() -> None:
    pytest.importorskip("matplotlib")
    sets = {name: [plots.Range("a", 1.5, 1.2, 2.0), plots.Range("b", 0.9, 0.95, 1.0)] for name in ("x", "y")}
    figure = plots.ranges(sets, "Mean JCT", "against fifo", synthetic=True)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
    assert "SYNTHETIC" in figure.get_suptitle()
    assert "1" in [text.get_text() for text in axes.get_xticklabels()]
