"""Slices and the tests in them go on where they stopped, and are made once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hwtests import pairs, rows, suite, summary
from hwtests.command import SAME, keep_machine, parse, run_slices
from hwtests.device import Device
from hwtests.jobs import PAIRS
from hwtests.slices import LIMIT_S, Outcome, Run, Slice, Unit, read_units, run_slice


def on_cpu(folder: Path) -> Run:
    return Run(folder, Device(kind="cpu", cores=(0,)), True, lambda text: None)


def test_a_slice_goes_on_where_it_failed_and_is_made_once(tmp_path: Path) -> None:
    calls: list[str] = []

    def unit(name: str) -> dict[str, Any]:
        calls.append(name)
        if calls.count(name) == 1 and name == "second":
            raise ValueError("not yet")
        return {"name": name}

    units: dict[str, Unit] = {name: partial(unit, name) for name in ("first", "second", "third")}
    one = Slice("one", "", lambda _: units)
    failed = run_slice(one, on_cpu(tmp_path), 60.0)
    assert (failed.state, sorted(failed.units)) == ("failed", ["first", "third"])
    assert "not yet" in failed.why
    for _ in range(2):
        assert run_slice(one, on_cpu(tmp_path), 60.0).state == "done"
    assert calls == ["first", "second", "third", "second"]


def test_a_slice_that_is_cut_off_keeps_its_units(tmp_path: Path) -> None:
    def wait() -> dict[str, Any]:
        while True:
            time.sleep(0.01)

    quick: dict[str, Unit] = {"quick": lambda: {"x": 1}}
    cut = run_slice(Slice("one", "", lambda _: {**quick, "endless": wait}), on_cpu(tmp_path), 0.3)
    assert cut.state == "cut off"
    assert read_units(tmp_path, "one") == {"quick": {"x": 1}}
    with (tmp_path / "one.jsonl").open("a") as file:
        file.write('{"unit": "torn", "val')
    over = run_slice(
        Slice("one", "", lambda _: {**quick, "endless": lambda: {"x": 2}}), on_cpu(tmp_path), 9.0
    )
    assert over.state == "done" and over.units == {"quick": {"x": 1}, "endless": {"x": 2}}


def test_a_slice_that_did_not_apply_is_asked_again(tmp_path: Path) -> None:
    whys = iter(("no MPS", ""))
    one = Slice("one", "", lambda _: {}, lambda _: next(whys))
    states = [run_slice(one, on_cpu(tmp_path), 9.0).state for _ in range(2)]
    assert states == ["does not apply", "done"]


def test_slices_are_chosen_by_number_or_name_and_a_page_follows_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages: list[dict[str, str]] = []

    def write_pages(run: Run, machine: Mapping[str, str], found: Mapping[str, Outcome]) -> None:
        pages.append({name: outcome.state for name, outcome in found.items()})

    table = tuple(Slice(name, f"{name}?", lambda _: {}) for name in "abc")
    for words in (["--slice", "c,1"], []):
        chosen = parse("", "x", table, tmp_path, words).chosen
        assert run_slices(on_cpu(tmp_path), table, chosen, 9.0, {}, write_pages) == 0
    assert pages[1] == {"a": "done", "c": "done"} and len(pages) == 5
    with pytest.raises(SystemExit):
        parse("", "x", table, tmp_path, ["--slice", "4"])
    assert "no such slice: 4" in capsys.readouterr().err


def test_a_folder_belongs_to_one_machine(tmp_path: Path) -> None:
    machine = dict.fromkeys(SAME, "1")
    for _ in range(2):
        assert keep_machine(tmp_path / "machine.json", machine) == ""
    assert "driver was 1 and is 2" in keep_machine(tmp_path / "machine.json", {**machine, "driver": "2"})


def test_every_file_of_the_suite_is_in_a_slice_that_may_take_eight_minutes(tmp_path: Path) -> None:
    assert all(each.limit_s == LIMIT_S == 480.0 for each in suite.SLICES)
    files: Counter[str] = Counter()
    for each in suite.SLICES:
        for unit in each.units(on_cpu(tmp_path)).values():
            assert isinstance(unit, partial)
            files.update(unit.args[2] if unit.func is suite.run_tests else ())
    assert files == Counter(summary.suite_parts())


def test_a_pair_is_measured_in_one_order_where_time_is_short(tmp_path: Path) -> None:
    run = on_cpu(tmp_path)._replace(rehearse=False)
    assert pairs.pairs_of(run) == PAIRS
    assert set(pairs.pairs_of(run._replace(seconds=6.0))) == {*PAIRS, *(pair[::-1] for pair in PAIRS)}


def test_what_needs_leave_or_a_second_gpu_is_not_begun_without(tmp_path: Path) -> None:
    by_name = {each.name: each for each in suite.SLICES}
    run = on_cpu(tmp_path)._replace(rehearse=False, device=Device(kind="cuda", cores=(0,)))
    assert "two GPUs" in by_name["gangs"].find_obstacle(run)
    assert "--allow-faults" in by_name["faults"].find_obstacle(run)
    assert by_name["faults"].find_obstacle(run._replace(words=("--allow-faults",))) == ""


def test_without_a_gpu_every_test_skips_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # Also on a machine that has one.
    run = on_cpu(tmp_path)._replace(device=Device(kind="cuda", cores=(0,)))
    said = suite.run_tests(run, "all", summary.suite_parts(), "")
    assert not said["passed"] and not said["failed"] and not said["measured"]
    kept = suite.read_rows(tmp_path)
    assert {row.part for row in kept} == set(summary.suite_parts())
    assert all(row.reason for row in kept)


def test_pytest_that_cannot_run_fails_the_slice_and_names_its_log(tmp_path: Path) -> None:
    run = on_cpu(tmp_path)._replace(words=("--no-such-option",))
    with pytest.raises(ValueError, match=r"pytest ended with 4: see .*numbers\.log"):
        suite.run_tests(run, "numbers", ("accumulation",), "")
    assert rows.read(tmp_path / "tests" / "numbers.jsonl") == []
