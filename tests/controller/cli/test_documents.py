"""What docs/cli.md and examples/jobs say is what the program does."""

from __future__ import annotations

import os
import re
from pathlib import Path
from signal import SIGTERM

import pytest

from cotenant.controller.cli.verbs import BY_NAME
from cotenant.controller.present.problem import CLOSED_PIPE, EXIT_CODES, INTERRUPTED, NEVER_STARTED
from cotenant.controller.slurm import sbatch
from cotenant.controller.submission.build import Submitter, submission
from cotenant.controller.submission.options import OPTIONS
from cotenant.controller.submission.recording import ALWAYS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "cli.md").read_text()
JOBS = sorted(path for path in (ROOT / "examples" / "jobs").iterdir() if path.name != "README.md")


def section(title: str) -> str:
    return PAGE.split(f"# {title}\n", 1)[1].split("\n## ", 1)[0]


def test_every_verb_is_documented() -> None:
    named = set(re.findall(r"`([a-z-]+)", section("Verbs")))
    assert set(BY_NAME) <= named


def test_every_option_is_documented() -> None:
    text = section("Options of a job")
    missing = [flag for option in OPTIONS for flag in option.flags if f"`{flag}" not in text]
    assert missing == []


def test_the_exit_codes_are_documented() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", section("Exit codes"), re.M)}
    assert listed == {0, *EXIT_CODES.values(), NEVER_STARTED, INTERRUPTED, CLOSED_PIPE, 128 + SIGTERM}


def test_the_recorded_variables_are_documented() -> None:
    assert ", ".join(ALWAYS) in PAGE


def test_slurms_flags_are_documented() -> None:
    text = section("Slurm scripts")
    long_flags = [flag for flag in (*sbatch.SAME, *sbatch.SlurmLines.TAKEN) if flag.startswith("--")]
    assert [flag for flag in long_flags if flag.removeprefix("--") not in text] == []


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.name)
def test_the_example_jobs_are_understood(path: Path) -> None:
    if path.name == "pipeline.sh":
        return  # Submits others: it is run, not submitted.
    where = Submitter(folder=ROOT, environ=os.environ, same_machine=False)
    made = submission([str(path)], {}, where)
    assert made.request.specs[0].name in ("digits", "sweep")
    script = ROOT / "examples" / "training" / "train_cotenant.py"
    assert str(script.relative_to(ROOT)) in path.read_text() and script.is_file()
