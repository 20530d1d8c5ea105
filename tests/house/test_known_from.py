"""docs/gpus.md says of each fact where it is known from: nothing there is without one of four marks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpus.md"
COLUMN = "known from"
MARK = re.compile(
    r"seen: .+, driver \S+"
    r"|program: \d+\.\d+\.\d+"
    r"|public: (.+ #\d+|.*\b(NVIDIA|ALCF)\b.*\b(guide|reference|catalog|man page)\b.*|NVIDIA forum \d+)"
    r"|believed"
)


def unmarked(text: str) -> list[str]:
    """Lines that are neither headings nor rows with a mark in the column of marks."""
    found = []
    at: int | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if not line or line.startswith("#"):
            at = None
        elif COLUMN in cells:
            at = cells.index(COLUMN)
        elif at is not None and set(line) <= set("| -"):
            continue
        elif at is None or len(cells) <= at or not all(map(MARK.fullmatch, cells[at].split("; "))):
            found.append(line)
    return found


def test_every_line_of_the_page_says_where_it_is_known_from() -> None:
    assert unmarked(PAGE.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "MPS is fast.",
        "| MPS is fast | | nothing |",
        "| MPS is fast | everybody | nothing |",
        "| MPS is fast | public: somebody | nothing |",
        "| MPS is fast | seen: H200 | nothing |",
        "| MPS is fast | believed; public: somebody | nothing |",
    ],
)
def test_a_line_without_a_mark_is_found(line: str) -> None:
    table = f"| fact | {COLUMN} | what cotenant does |\n| --- | --- | --- |\n"
    assert unmarked(table + "| a | seen: H200, driver 580.95 | b |\n" + line) == [line]
