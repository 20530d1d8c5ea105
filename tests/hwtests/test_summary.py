"""Rows and page of the hardware suite, from a made-up suite that pytest ran: it measured nothing."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from hwtests import summary
from hwtests.measuring import in_words
from hwtests.rows import CUT_OFF, Keeper, Row, read

pytest_plugins = ("pytester",)

SUITE = """
import pytest

def test_passes(record_property):
    record_property("rate", "1.235 TFLOP/s")

@pytest.mark.parametrize("mode", ["a", "b"])
def test_skips(mode):
    pytest.skip("no GPU | here")

def test_fails():
    assert False, "first line\\nsecond line"

@pytest.fixture
def broken():
    raise ValueError("no daemon")

def test_never_begins(broken):
    pass
"""
MACHINE = {"device": "cuda", "commit": "0000000"}


def run(pytester: pytest.Pytester, text: str = SUITE) -> tuple[Path, list[Row]]:
    """A run of a made-up suite of one part, which goes on behind what was kept before."""
    kept = pytester.path / "kept" / "one.jsonl"
    pytester.makepyfile(test_mps=text)
    pytester.runpytest_inprocess("-p", "no:cacheprovider", plugins=[Keeper(kept)], no_reraise_ctrlc=True)
    return kept, read(kept)


def test_outcomes_reasons_and_numbers_are_kept_as_each_test_ends(pytester: pytest.Pytester) -> None:
    _, rows = run(pytester)
    found = {row.test: (row.part, row.outcome, row.reason) for row in rows}
    assert found == {
        "test_passes": ("mps", "passed", ""),
        "test_skips[a]": ("mps", "skipped", "no GPU | here"),
        "test_skips[b]": ("mps", "skipped", "no GPU | here"),
        "test_fails": ("mps", "failed", "AssertionError: first line"),
        "test_never_begins": ("mps", "failed", "failed on setup: ValueError: no daemon"),
    }
    assert rows[0].measured == {"rate": "1.235 TFLOP/s"}


def test_a_run_goes_on_with_what_has_not_ended_and_gives_up_what_was_cut_off_twice(
    pytester: pytest.Pytester,
) -> None:
    two = "def test_a():\n    {}\n\ndef test_b():\n    pass\n"
    stopped = two.format("raise KeyboardInterrupt")
    kept, rows = run(pytester, stopped)
    assert [(row.test, row.outcome) for row in rows] == [("test_a", "cut off")]
    with kept.open("ab") as file:
        file.write(b'{"part": "mps", "te')
    _, rows = run(pytester, stopped)
    assert [(row.test, row.outcome) for row in rows] == [("test_a", "failed"), ("test_b", "passed")]
    assert rows[0].reason == CUT_OFF
    before = kept.read_bytes()
    assert run(pytester, two.format("pass"))[0].read_bytes() == before, "nothing runs again"


def test_the_page_begins_with_what_it_lacks(pytester: pytest.Pytester) -> None:
    _, rows = run(pytester)
    lines = summary.write_page(rows, MACHINE, ["mps", "kill"]).splitlines()
    assert lines[2] == (
        "**Partial.** 2 of 5 tests failed; 2 of 5 tests were skipped; these parts did not run: kill."
    )
    assert "* 2 skipped: no GPU \\| here" in lines
    assert "| rate | 1.235 TFLOP/s |" in lines
    assert "| commit | 0000000 |" in lines


def test_a_run_is_complete_only_on_a_gpu() -> None:
    passed = [Row(part="mps", test="test_a", outcome="passed")]
    assert "**Complete**" in summary.write_page(passed, MACHINE, ["mps"])
    assert summary.find_gaps(passed, "cpu", ["mps"]) == [
        "a dry run on cpu: it shows that the suite works, and nothing about a GPU"
    ]
    cut = [msgspec.structs.replace(passed[0], outcome="cut off")]
    assert summary.find_gaps(cut, "cuda", ["mps"]) == ["1 of 1 tests were cut off"]
    assert summary.find_gaps([], "cuda", [])[-1] == "no test ran"


def test_a_number_is_text_with_its_unit_and_a_missing_one_says_why() -> None:
    assert in_words(1.23456, "TFLOP/s", "fake") == "1.235 TFLOP/s (fake)"
    assert (in_words(True), in_words("ACTIVE"), in_words(3)) == ("yes", "ACTIVE", "3")
    assert in_words(math.nan, "s", otherwise="GPM is closed") == "- (GPM is closed)"
    assert in_words(None) == "- (it could not be measured)"
