"""One page from the rows of one or more runs on a GPU host. Pure.

Rule: the page says first what it lacks. It calls a run complete only if every test of every part ran on a
CUDA device and passed. A number stands there only if a test measured it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from hwtests.rows import OUTCOMES, Row

CELL_CHARS: Final = 500
DEVICE: Final = "device"
"""The machine's property that tells a run on a GPU (`cuda`) from a dry run (`cpu`)."""


def find_gaps(rows: Sequence[Row], device: str, parts: Iterable[str]) -> list[str]:
    """Why the run is not complete, most important first. `parts`: every part of the suite."""
    found = []
    if device != "cuda":
        found.append(f"a dry run on {device}: it shows that the suite works, and nothing about a GPU")
    for outcome, words in (("failed", "failed"), ("cut off", "were cut off"), ("skipped", "were skipped")):
        count = sum(row.outcome == outcome for row in rows)
        if count:
            found.append(f"{count} of {len(rows)} tests {words}")
    missing = sorted(set(parts) - {row.part for row in rows})
    if missing:
        found.append(f"these parts did not run: {', '.join(missing)}")
    return found if rows else [*found, "no test ran"]


def write_page(rows: Sequence[Row], machine: Mapping[str, str], parts: Sequence[str]) -> str:
    """What it lacks, the machine, a line for each test, every number."""
    rows = sorted(rows, key=lambda row: (row.part, row.test))
    lacks = find_gaps(rows, machine[DEVICE], parts)
    counts = Counter(row.outcome for row in rows)
    skips = Counter(row.reason for row in rows if row.outcome == "skipped")
    lines = [
        "# Hardware report",
        "",
        f"**Partial.** {'; '.join(lacks)}." if lacks else "**Complete**: every test ran here and passed.",
        "",
        f"Tests: {', '.join(f'{counts[outcome]} {outcome}' for outcome in OUTCOMES)}.",
        "",
        *(f"* {count} skipped: {_cell(reason)}" for reason, count in skips.most_common()),
        "",
        "| machine | |",
        "| --- | --- |",
        *(row_of(name, value) for name, value in machine.items()),
    ]
    for part in dict.fromkeys(row.part for row in rows):
        lines += _part([row for row in rows if row.part == part])
    return "\n".join(lines) + "\n"


def _part(rows: Sequence[Row]) -> list[str]:
    lines = ["", f"## {rows[0].part.replace('_', ' ')}", ""]
    lines += ["| test | outcome | s | why |", "| --- | --- | ---: | --- |"]
    lines += [row_of(row.test, row.outcome, f"{row.duration_s:.1f}", row.reason) for row in rows]
    numbers = [pair for row in rows for pair in row.measured.items()]
    if numbers:
        lines += ["", "| measured | value |", "| --- | --- |"]
        lines += [row_of(name, value) for name, value in numbers]
    return lines


def row_of(*cells: str) -> str:
    """One line of a table, whatever a program said."""
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return " / ".join(text.strip().split("\n")).replace("|", "\\|")[:CELL_CHARS]


def suite_parts() -> list[str]:
    return [path.stem.removeprefix("test_") for path in sorted(Path(__file__).parent.glob("test_*.py"))]
