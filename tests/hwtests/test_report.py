"""The report of the hardware suite, from made-up records: none of these numbers was ever measured."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwtests import report
from hwtests.recording import Recorder, plain, short, why
from hwtests.report import Machine, Measured, Mismatch, Record

FAKE = Machine(gpus=("fake GPU",), driver="0.0", torch="2.5", commit="0000000", fake=True)
REAL = msgspec.structs.replace(FAKE, fake=False)
"""As if it were one: in this file alone."""
NUMBER = Measured(name="rate", value=1.23456, unit="TFLOP/s", note="fake")
PASSED = Record(test="test_mps.py::test_a", outcome="passed", measured=(NUMBER,), duration_s=1.0)
SKIPPED = Record(test="test_pairs.py::test_b[x]", outcome="skipped", reason="no GPU | here")
FAILED = Record(test="test_mps.py::test_c", outcome="failed", reason="AssertionError: 2\n3")


def made(machine: Machine = REAL, *records: Record, **more: Any) -> report.Report:
    return report.make(machine, records, started="2000-01-01T00:00:00Z", **more)


def test_a_report_is_complete_if_everything_ran_on_a_gpu_and_passed() -> None:
    found = made(REAL, PASSED, parts=["mps"])
    assert (found.complete, found.gaps) == (True, ())
    assert "**Complete**" in report.as_markdown(found)


GAPS: dict[str, tuple[report.Report, str]] = {
    "made up": (made(FAKE, PASSED), "made-up records: not a result"),
    "a dry run": (made(msgspec.structs.replace(REAL, device="cpu"), PASSED), "a dry run on cpu"),
    "a skip": (made(REAL, PASSED, SKIPPED), "1 of 2 tests were skipped"),
    "a failure": (made(REAL, PASSED, FAILED), "1 of 2 tests failed"),
    "deselected": (made(REAL, PASSED, left_out=3), "3 tests were left out"),
    "another part": (made(REAL, PASSED, parts=["mps", "kill"]), "these parts did not run: kill"),
    "killed": (made(REAL, PASSED, interrupted="the run is not over"), "the run is not over"),
    "nothing": (made(REAL), "no test ran"),
}


@pytest.mark.parametrize(("found", "words"), GAPS.values(), ids=GAPS.keys())
def test_a_partial_report_says_what_it_lacks(found: report.Report, words: str) -> None:
    assert not found.complete
    assert words in found.gaps[0]
    assert report.as_markdown(found).splitlines()[2].startswith(f"**Partial.** {found.gaps[0]}")


def test_the_page_has_every_number_and_every_reason_on_one_line() -> None:
    page = report.as_markdown(made(FAKE, PASSED, SKIPPED, FAILED))
    assert "| rate | 1.235 | TFLOP/s | fake |" in page
    assert "* 1 skipped: no GPU \\| here" in page
    assert "AssertionError: 2 / 3" in page
    assert "fake GPU" in page


def test_a_number_that_was_not_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="no measurement"):
        Measured(name="rate", value=float("nan"))
    with pytest.raises(ValueError, match="says why"):
        Measured(name="rate", value=None)


words = st.text(max_size=20)
values = st.one_of(st.booleans(), words, st.floats(allow_nan=False, allow_infinity=False))
records = st.builds(
    Record,
    test=st.builds("test_{}.py::test_{}".format, st.sampled_from("abc"), words),
    outcome=st.sampled_from(("passed", "failed", "skipped")),
    reason=words,
    measured=st.lists(st.builds(Measured, name=words, value=values, unit=words, note=words), max_size=3).map(
        tuple
    ),
)


@given(st.lists(records, max_size=5, unique_by=lambda record: record.test))
def test_json_is_read_back_as_it_was_written(some: list[Record]) -> None:
    found = made(FAKE, *some)
    text = report.as_json(found)
    assert report.from_json(text) == found
    assert json.loads(text)["schema"] == "hardware-report/1"
    assert set(found.records) == set(some)
    rows = [line for line in report.as_markdown(found).split("\n") if line.startswith("| test_")]
    assert len(rows) == len(some), "one row each, whatever the texts hold"


OTHERS = {"no JSON": "{", "another schema": '{"schema": "x/1"}', "nothing": "{}"}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS.keys())
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a hardware report"):
        report.from_json(text)


def test_a_later_run_adds_to_a_report_and_a_skip_takes_nothing_away() -> None:
    before = made(REAL, PASSED, FAILED)
    again = msgspec.structs.replace(FAILED, outcome="passed", reason="")
    skipped = msgspec.structs.replace(PASSED, outcome="skipped", reason="no MPS", measured=())
    assert set(report.joined(before, REAL, [again, skipped])) == {PASSED, again}


def test_runs_of_different_machines_are_not_joined() -> None:
    other = msgspec.structs.replace(REAL, driver="1.0")
    with pytest.raises(Mismatch, match=r"driver \(0.0 then, 1.0 now\)"):
        report.joined(made(REAL, PASSED), other, [])


# --- Recording ---------------------------------------------------------------------------------------


def said(test: str, outcome: str, when: str = "call", longrepr: object = None) -> Any:
    return SimpleNamespace(nodeid=test, outcome=outcome, when=when, longrepr=longrepr, duration=0.5)


def test_the_file_on_disk_grows_with_every_test_and_says_that_the_run_is_not_over(tmp_path: Path) -> None:
    path = tmp_path / "out" / "report.json"
    recorder = Recorder(path, FAKE, ["mps"], add=False)
    recorder.note("test_mps.py::test_a", "rate", 2.0, "TFLOP/s")
    for when in ("setup", "call", "teardown"):
        recorder.pytest_runtest_logreport(said("hwtests/test_mps.py::test_a", "passed", when))
    found = report.from_json(path.read_bytes())
    assert [(record.outcome, record.duration_s) for record in found.records] == [("passed", 1.5)]
    assert found.records[0].measured[0].value == 2.0
    assert "the run is not over, or was killed" in found.gaps
    recorder.pytest_sessionfinish(SimpleNamespace(shouldfail=False), 0)  # type: ignore[arg-type]
    assert report.from_json(path.read_bytes()).gaps == ("made-up records: not a result",)
    assert path.with_suffix(".md").read_text().startswith("# Hardware report")
    assert sorted(p.name for p in path.parent.iterdir()) == ["report.json", "report.md"]


def test_what_failed_first_is_what_is_told(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "r.json", FAKE, [], add=False)
    crash = SimpleNamespace(reprcrash=SimpleNamespace(message="assert 1 == 2\n  more"))
    recorder.pytest_runtest_logreport(said("hwtests/test_a.py::b", "failed", "call", crash))
    recorder.pytest_runtest_logreport(said("hwtests/test_a.py::b", "passed", "teardown"))
    (record,) = report.from_json((tmp_path / "r.json").read_bytes()).records
    assert (record.outcome, record.reason) == ("failed", "assert 1 == 2")


def test_a_report_of_another_machine_is_not_added_to(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(report.as_json(made(REAL, PASSED)))
    with pytest.raises(Mismatch):
        Recorder(path, FAKE, [], add=True)
    kept = Recorder(path, REAL, ["mps"], add=True)
    kept.write()
    assert report.from_json(path.read_bytes()).records == (PASSED,)


def test_the_reason_of_a_skip() -> None:
    assert why(said("t", "skipped", longrepr=("f.py", 3, "Skipped: no MPS here"))) == "no MPS here"
    assert short("hwtests/test_a.py::b[c]") == "test_a.py::b[c]"


PLAIN: tuple[tuple[object, object], ...] = (
    (3, 3.0),
    (True, True),
    (float("nan"), None),
    (None, None),
    ("x", "x"),
    (Path("y"), "y"),
)


@pytest.mark.parametrize(("value", "wanted"), PLAIN)
def test_what_a_test_notes_is_a_number_a_word_or_nothing(value: object, wanted: object) -> None:
    assert plain(value) == wanted and type(plain(value)) is type(wanted)
