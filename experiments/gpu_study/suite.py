"""Files of the hardware suite as units of the study: each runs in a pytest of its own; its report is kept.

Rule: a test that fails is a result, not a failure of the study. What fails the study is a suite that could
not run, or that left no report.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from experiments.gpu_study.parts import Study, Unit, Values
from hwtests import summary
from hwtests.host import ROOT

REPORTS: Final = "hwtests"
STOP_WITHIN_S: Final = 40.0
"""The suite ends its daemons and jobs, and writes its report, before it leaves."""
RAN: Final = (0, 1)
"""Exit codes of a pytest that ran its tests: all passed, some failed."""


def list_files(files: Mapping[str, str | None], study: Study) -> Mapping[str, Unit]:
    """`files`: the file's name without `test_` -> what a rehearsal selects of it, as pytest's `-k`; None: a
    rehearsal leaves it out."""
    return {
        name: partial(run_file, study, name, chosen or "")
        for name, chosen in files.items()
        if chosen is not None or not study.rehearse
    }


def run_file(study: Study, name: str, chosen: str) -> Values:
    folder = study.folder / REPORTS
    folder.mkdir(exist_ok=True)
    report = folder / f"{name}.xml"
    report.unlink(missing_ok=True)
    words = ["--device", study.device.kind, f"--junitxml={report}", "-p", "no:cacheprovider"]
    words += ["-k", chosen] if study.rehearse and chosen else []
    command = [sys.executable, "-m", "pytest", "-q", f"hwtests/test_{name}.py", *words]
    code = run_to_its_end(command, folder / f"{name}.log")
    if code not in RAN or not report.exists():
        raise ValueError(f"hwtests/test_{name}.py ended with {code}: see {folder / name}.log")
    return count(summary.read(report.read_bytes()))


def run_to_its_end(command: Sequence[str], log: Path) -> int:
    """The exit code; whatever goes wrong here, the suite is asked to end and, if it must be, killed."""
    with log.open("wb") as said:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise


def count(run: summary.Run) -> Values:
    rows = list(run.rows.values())
    counts = Counter(row.outcome for row in rows)
    return {
        **{outcome: counts[outcome] for outcome in summary.OUTCOMES},
        "failures": {row.test: row.reason for row in rows if row.outcome == "failed"},
        "skips": {row.test: row.reason for row in rows if row.outcome == "skipped"},
        "measured": {name: text for row in rows for name, text in row.measured.items()},
    }
