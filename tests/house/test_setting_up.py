"""`make setup` says in a dozen lines how far it is; what pip says goes into a log that a failure names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOZEN = 12
PIP = """#!/usr/bin/env bash
# Stands in for the interpreter of a virtual environment that is there, with a pip that talks much.
case "$*" in
    *" install "*)
        for n in $(seq 100); do echo "Collecting package-$n"; echo "  Downloading package-$n"; done
        echo "Installing collected packages: many"
        {end} ;;
    *"m.version('torch')"*) exit 1 ;;
    *) exit 0 ;;
esac
"""


def set_up(folder: Path, end: str) -> subprocess.CompletedProcess[str]:
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PIP.replace("{end}", end))
    python.chmod(0o755)
    return subprocess.run(
        [ROOT / ".ci" / "venv", folder], env={**os.environ}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    folder = tmp_path / "venv"
    folder.mkdir()
    return folder


def test_setting_up_prints_a_dozen_lines(venv: Path) -> None:
    done = set_up(venv, "exit 0")
    assert done.returncode == 0, done.stderr
    assert len((done.stdout + done.stderr).splitlines()) <= DOZEN, done.stdout
    assert "installing them" in done.stdout, "it says how far it is"
    assert f"ready: {venv}/bin/cotenant" in done.stdout
    assert len((venv / "pip.log").read_text().splitlines()) == 201


def test_a_failure_shows_the_last_lines_and_names_the_log(venv: Path) -> None:
    failed = set_up(venv, 'echo "ERROR: no space left" >&2; exit 1')
    assert failed.returncode == 1
    assert "pip: ERROR: no space left" in failed.stderr
    assert f"all that it said is in {venv}/pip.log" in failed.stderr
    assert "attempt 2 of 3 failed" in failed.stdout
    assert "Collecting" not in failed.stdout
