"""The page of the hardware suite, from JUnit files of pytest's own: none of its numbers was measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hwtests import summary
from hwtests.measuring import in_words
from hwtests.summary import Mismatch, Run

pytest_plugins = ("pytester",)

SUITE = """
import pytest

@pytest.fixture(scope="session", autouse=True)
def machine(record_testsuite_property):
    record_testsuite_property("device", DEVICE)
    record_testsuite_property("commit", COMMIT)

def test_passes(record_property):
    record_property("rate", "1.235 TFLOP/s")

@pytest.mark.parametrize("mode", ["a", "b"])
def test_skips(mode):
    pytest.skip("no GPU | here")

def test_fails():
    assert not FAILS, "first line\\nsecond line"
"""


@pytest.fixture
def ran(pytester: pytest.Pytester) -> summary.Run:
    return run(pytester)


def run(pytester: pytest.Pytester, fails: bool = True, device: str = "cuda", commit: str = "0000000") -> Run:
    """A run of a made-up suite of one part."""
    values = f"DEVICE, COMMIT, FAILS = {device!r}, {commit!r}, {fails!r}\n"
    pytester.makepyfile(test_mps=values + SUITE)
    pytester.runpytest_inprocess("--junitxml=report.xml", "-o", "junit_family=xunit1")
    return summary.read((pytester.path / "report.xml").read_bytes())


def test_outcomes_reasons_and_numbers_are_read_from_pytest_s_own_file(ran: Run) -> None:
    rows = {test: (row.part, row.outcome, row.reason) for (_, test), row in ran.rows.items()}
    assert rows["test_passes"] == ("mps", "passed", "")
    assert rows["test_skips[b]"] == ("mps", "skipped", "no GPU | here")
    assert rows["test_fails"] == ("mps", "failed", "AssertionError: first line")
    assert ran.rows["mps", "test_passes"].measured == {"rate": "1.235 TFLOP/s"}


def test_the_page_begins_with_what_it_lacks(ran: Run) -> None:
    lines = summary.page(ran, ["mps", "kill"]).splitlines()
    assert lines[2] == (
        "**Partial.** 1 of 4 tests failed; 2 of 4 tests were skipped; these parts did not run: kill."
    )
    assert "* 2 skipped: no GPU \\| here" in lines
    assert "| rate | 1.235 TFLOP/s |" in lines
    assert "| commit | 0000000 |" in lines


def test_a_run_is_complete_only_on_a_gpu(pytester: pytest.Pytester) -> None:
    found = run(pytester, fails=False)
    passed = {key: row for key, row in found.rows.items() if row.outcome == "passed"}
    whole = Run(machine=found.machine, rows=passed)
    assert "**Complete**" in summary.page(whole, ["mps"])
    dry = Run(machine={**found.machine, "device": "cpu"}, rows=passed)
    assert summary.gaps(dry, ["mps"]) == [
        "a dry run on cpu: it shows that the suite works, and nothing about a GPU"
    ]
    assert summary.gaps(Run(machine=found.machine, rows={}), [])[-1] == "no test ran"


def test_a_later_run_replaces_what_it_did_not_skip(pytester: pytest.Pytester) -> None:
    first, later = run(pytester), run(pytester, fails=False)
    joined = summary.join((first, later))
    assert joined.rows["mps", "test_fails"].outcome == "passed"
    assert summary.join((later, first)).rows["mps", "test_fails"].outcome == "failed"
    skipped = {key: replace(row, outcome="skipped") for key, row in later.rows.items()}
    joined = summary.join((later, Run(machine=first.machine, rows=skipped)))
    assert joined.rows["mps", "test_fails"].outcome == "passed"


def test_runs_of_different_commits_are_no_one_page(pytester: pytest.Pytester, ran: Run) -> None:
    with pytest.raises(Mismatch, match=r"commit \(0000000 and 1111111\)"):
        summary.join((ran, run(pytester, commit="1111111")))


@pytest.mark.parametrize("text", [b"", b"<a/>", b"<testsuites><testsuite/></testsuites>"])
def test_other_files_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a JUnit file"):
        summary.read(text)


def test_a_number_is_text_with_its_unit_and_a_missing_one_says_why() -> None:
    assert in_words(1.23456, "TFLOP/s", "fake") == "1.235 TFLOP/s (fake)"
    assert (in_words(True), in_words("ACTIVE"), in_words(3)) == ("yes", "ACTIVE", "3")
    assert in_words(math.nan, "s", otherwise="GPM is closed") == "- (GPM is closed)"
    assert in_words(None) == "- (it could not be measured)"
