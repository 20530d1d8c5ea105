"""One page from the JUnit files of one or more runs on a GPU host: `python -m hwtests.summary FILE.xml...`

Rule: the page says first what it lacks. It calls a run complete only if every test of every part ran on a
CUDA device and passed. A number stands there only if a test measured it. Runs belong on one page only if
machine, versions and commit are the same.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

OUTCOMES: Final = ("passed", "skipped", "failed")
CELL_CHARS: Final = 300
DEVICE: Final = "device"
"""The machine's property that tells a run on a GPU (`cuda`) from a dry run (`cpu`)."""


class Mismatch(Exception):
    """Runs that cannot share a page; the text says in what they differ."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of one test."""

    part: str
    test: str
    outcome: str
    reason: str
    """Of a skip or a failure, one line."""
    duration_s: float
    measured: Mapping[str, str]
    """What it found out, by name, as text with unit."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One JUnit file, or several of one machine."""

    machine: Mapping[str, str]
    rows: Mapping[tuple[str, str], Row]


def read(text: bytes) -> Run:
    """Raises ValueError: not a JUnit file of this suite."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"not a JUnit file: {error}") from None
    machine = _properties(root.find(".//testsuite/properties"))
    if DEVICE not in machine:
        raise ValueError("not a JUnit file of the hardware suite: it names no device")
    rows = [_row(case) for case in root.iter("testcase")]
    return Run(machine=machine, rows={(row.part, row.test): row for row in rows})


def _row(case: ElementTree.Element) -> Row:
    verdicts = (("failure", "failed"), ("error", "failed"), ("skipped", "skipped"))
    found = [(case.find(tag), outcome) for tag, outcome in verdicts]
    said, outcome = next(((node, what) for node, what in found if node is not None), (None, "passed"))
    return Row(
        part=case.get("classname", "").rpartition(".")[2].removeprefix("test_"),
        test=case.get("name", ""),
        outcome=outcome,
        reason="" if said is None else (said.get("message") or "").strip().partition("\n")[0],
        duration_s=float(case.get("time", 0)),
        measured=_properties(case.find("properties")),
    )


def _properties(parent: ElementTree.Element | None) -> dict[str, str]:
    return {} if parent is None else {each.get("name", ""): each.get("value", "") for each in parent}


def join(runs: Iterable[Run]) -> Run:
    """One run of several; a test that ran again counts as it ran last, unless it only skipped then.

    Raises:
        Mismatch: they ran on different machines, versions or commits.
    """
    first, *others = runs
    rows = dict(first.rows)
    for run in others:
        apart = [
            f"{name} ({first.machine.get(name, '')} and {value})"
            for name, value in run.machine.items()
            if first.machine.get(name, "") != value
        ]
        if apart:
            raise Mismatch(f"these runs are of different machines or states: {', '.join(apart)}")
        for key, row in run.rows.items():
            if row.outcome != "skipped" or rows.get(key, row).outcome == "skipped":
                rows[key] = row
    return Run(machine=first.machine, rows=rows)


def gaps(run: Run, parts: Iterable[str]) -> list[str]:
    """Why the run is not complete, most important first. `parts`: every part of the suite."""
    rows = list(run.rows.values())
    found = []
    if run.machine[DEVICE] != "cuda":
        found.append(
            f"a dry run on {run.machine[DEVICE]}: it shows that the suite works, and nothing about a GPU"
        )
    for outcome, words in (("failed", "failed"), ("skipped", "were skipped")):
        count = sum(row.outcome == outcome for row in rows)
        if count:
            found.append(f"{count} of {len(rows)} tests {words}")
    missing = sorted(set(parts) - {row.part for row in rows})
    if missing:
        found.append(f"these parts did not run: {', '.join(missing)}")
    return found if rows else [*found, "no test ran"]


def page(run: Run, parts: Sequence[str]) -> str:
    """What it lacks, the machine, a line for each test, every number."""
    rows = sorted(run.rows.values(), key=lambda row: (row.part, row.test))
    lacks = gaps(run, parts)
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
        *(f"| {_cell(name)} | {_cell(value)} |" for name, value in run.machine.items()),
    ]
    for part in dict.fromkeys(row.part for row in rows):
        lines += _part([row for row in rows if row.part == part])
    return "\n".join(lines) + "\n"


def _part(rows: Sequence[Row]) -> list[str]:
    lines = ["", f"## {rows[0].part.replace('_', ' ')}", ""]
    lines += ["| test | outcome | s | why |", "| --- | --- | ---: | --- |"]
    lines += [
        f"| {_cell(row.test)} | {row.outcome} | {row.duration_s:.1f} | {_cell(row.reason)} |" for row in rows
    ]
    numbers = [pair for row in rows for pair in row.measured.items()]
    if numbers:
        lines += ["", "| measured | value |", "| --- | --- |"]
        lines += [f"| {_cell(name)} | {_cell(value)} |" for name, value in numbers]
    return lines


def _cell(text: str) -> str:
    """One line of a table, whatever a program said."""
    return " / ".join(text.split("\n")).replace("|", "\\|").strip()[:CELL_CHARS]


def suite_parts() -> list[str]:
    return [path.stem.removeprefix("test_") for path in sorted(Path(__file__).parent.glob("test_*.py"))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hwtests.summary", description="One page of JUnit files.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.xml", help="written by --junitxml")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE.md", help="default: standard output")
    options = parser.parse_args()
    try:
        text = page(join(read(path.read_bytes()) for path in options.files), suite_parts())
    except (OSError, ValueError, Mismatch) as problem:
        print(f"{parser.prog}: {problem}", file=sys.stderr)
        return 1
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
