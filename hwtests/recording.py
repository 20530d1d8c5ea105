"""Listens to pytest while the suite runs and keeps the report on disk.

Rule: the file is written anew, whole, after every test, so a run that is killed leaves the report of what it
got to, and says that it was not over.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from hwtests import report
from hwtests.report import Machine, Measured, Record, Value

REASON_CHARS: Final = 1000


class Measure(Protocol):
    """What a test notes its numbers with. `otherwise`: why there is no value, where it is None or NaN."""

    def __call__(
        self, name: str, value: Value, unit: str = "", note: str = "", otherwise: str = ""
    ) -> None: ...


class Recorder:
    """One run. `path` is where the JSON goes; the page stands beside it."""

    def __init__(self, path: Path | None, machine: Machine, parts: Iterable[str], add: bool) -> None:
        """Raises report.Mismatch, ValueError: `add` was asked for, and what is there cannot be added to."""
        self._path = path
        self._machine = machine
        self._parts = tuple(parts)
        self._started = now()
        self._earlier: report.Report | None = None
        if add and path is not None and path.exists():
            self._earlier = report.from_json(path.read_bytes())
            report.joined(self._earlier, machine, ())
        self._records: dict[str, Record] = {}
        self._measured: dict[str, list[Measured]] = {}
        self._left_out = 0
        self._over = "the run is not over, or was killed"

    def note(
        self, test: str, name: str, value: Value, unit: str = "", note: str = "", otherwise: str = ""
    ) -> None:
        known = plain(value)
        if known is None:
            note = otherwise or "it could not be measured"
        self._measured.setdefault(test, []).append(Measured(name=name, value=known, unit=unit, note=note))

    def write(self) -> None:
        if self._path is None:
            return
        records = tuple(self._records.values())
        if self._earlier is not None:
            records = report.joined(self._earlier, self._machine, records)
        made = report.make(
            self._machine,
            records,
            started=self._earlier.started if self._earlier else self._started,
            parts=self._parts,
            left_out=0 if self._earlier else self._left_out,
            interrupted=self._over,
        )
        _replace(self._path, report.as_json(made))
        _replace(self._path.with_suffix(".md"), report.as_markdown(made))

    # What pytest says.

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self._left_out += len(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test is over with its teardown; what failed first is what is told."""
        test = short(report.nodeid)
        before = self._records.get(test)
        worst = before is not None and before.outcome != "passed"
        outcome = before.outcome if before is not None and worst else report.outcome
        reason = before.reason if before is not None and worst else why(report)
        duration_s = report.duration + (before.duration_s if before is not None else 0.0)
        self._records[test] = Record(
            test=test,
            outcome=outcome,
            reason=reason,
            duration_s=duration_s,
            measured=tuple(self._measured.get(test, ())),
            at=now(),
        )
        if report.when == "teardown":
            self.write()

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        stopped = exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
        self._over = "the run was interrupted" if stopped or session.shouldfail else ""
        self.write()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._path is not None:
            terminalreporter.write_line(f"report: {self._path} and {self._path.with_suffix('.md')}")


def short(nodeid: str) -> str:
    return nodeid.removeprefix("hwtests/")


def why(said: pytest.TestReport) -> str:
    """One line: of a skip its reason, of a failure the error."""
    if said.outcome == "skipped":
        text = said.longrepr[2] if isinstance(said.longrepr, tuple) else str(said.longrepr)
        return text.removeprefix("Skipped: ")
    if said.outcome == "failed":
        crash = getattr(said.longrepr, "reprcrash", None)
        text = str(crash.message if crash is not None else said.longrepr)
        return (text.strip().splitlines() or [f"failed in {said.when}"])[0][:REASON_CHARS]
    return ""


def plain(value: object) -> Value:
    """Numbers as floats, what is not finite as nothing, anything else in words."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return float(value) if math.isfinite(value) else None
    return str(value)


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _replace(path: Path, text: str) -> None:
    """Written beside and renamed: a reader sees a whole file or the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
