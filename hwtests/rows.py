"""What became of each test, kept on disk as it ends: `pytest hwtests --keep FILE.jsonl`.

Rule: a line when a test begins and one when it ends, so that a run which is killed loses the test that it
was in and no other. Started with the same file, pytest runs what has not ended. A test that was cut off comes
last then; one that was cut off twice counts as failed, or it would cost every run its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import pytest

OUTCOMES: Final = ("passed", "skipped", "failed", "cut off")
CUT_OFF_MAX: Final = 2
CUT_OFF: Final = "it had not ended when its slice was stopped, or ended its process"
NOT_BEGUN: Final = "failed on setup"
"""How the reason begins of a test whose fixtures failed: it says nothing about what the test asks."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One test. `cut off`: it has begun and not ended."""

    part: str
    test: str
    outcome: Literal["passed", "skipped", "failed", "cut off"]
    reason: str = ""
    """Of a skip or a failure, one line."""
    duration_s: float = 0.0
    measured: dict[str, str] = {}
    """What it found out, by name, as text with unit."""


def row_of(nodeid: str, **values: Any) -> Row:
    """`hwtests/test_mps.py::test_words[a]` is `test_words[a]` of the part `mps`."""
    file, _, test = nodeid.partition("::")
    return Row(part=Path(file).stem.removeprefix("test_"), test=test, **values)


def read(path: Path) -> list[Row]:
    """The last of each test. A last line that a crash cut in two is left out."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    rows = [msgspec.json.decode(line, type=Row) for line in lines if line.endswith(b"\n")]
    begun = Counter((row.part, row.test) for row in rows if row.outcome == "cut off")
    last = {(row.part, row.test): row for row in rows}
    return [
        msgspec.structs.replace(row, outcome="failed", reason=CUT_OFF)
        if row.outcome == "cut off" and begun[key] >= CUT_OFF_MAX
        else row
        for key, row in last.items()
    ]


class Keeper:
    """The plugin behind `--keep`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reports: list[pytest.TestReport] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            whole = path.read_bytes()
            path.write_bytes(whole[: whole.rfind(b"\n") + 1])

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = {(row.part, row.test): row.outcome for row in read(self._path)}
        before = {item.nodeid: kept.get(_key(item.nodeid)) for item in items}
        over = [item for item in items if before[item.nodeid] not in (None, "cut off")]
        items[:] = [item for item in items if item not in over]
        items.sort(key=lambda item: before[item.nodeid] == "cut off")
        config.hook.pytest_deselected(items=over)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._reports = []
        self._append(row_of(nodeid, outcome="cut off"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)
        if report.when == "teardown":
            self._append(_judge(self._reports))

    def _append(self, row: Row) -> None:
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")


def _key(nodeid: str) -> tuple[str, str]:
    row = row_of(nodeid, outcome="passed")
    return row.part, row.test


def _judge(reports: list[pytest.TestReport]) -> Row:
    """Of the reports on set-up, call and tear-down of one test."""
    worst = next((each for each in reports if each.failed), None)
    worst = worst or next((each for each in reports if each.skipped), reports[-1])
    measured: Mapping[str, Any] = dict(reports[-1].user_properties)
    return row_of(
        reports[-1].nodeid,
        outcome=worst.outcome,
        reason=_reason(worst),
        duration_s=round(sum(each.duration for each in reports), 1),
        measured={name: str(text) for name, text in measured.items()},
    )


def _reason(report: pytest.TestReport) -> str:
    """One line; empty where the test passed."""
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ").partition("\n")[0]
    crash = getattr(report.longrepr, "reprcrash", None)
    words = str(crash.message if crash is not None else report.longreprtext).strip().partition("\n")[0]
    return words if report.when == "call" else f"{NOT_BEGUN if report.when == 'setup' else 'failed'}: {words}"
