"""The tutorial is followed to the letter: its script is written, its commands run in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.live.person import Person, at_home
from tests.processes import IMPORT_S

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def follows(person: Person, commands: str) -> str:
    """In one shell, as they stand there, and each of them must do."""
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=person.work,
        env={**person.env, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3 * IMPORT_S,
    )
    said = f"{commands}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, said
    return said


def test_each_command_does_what_the_page_says(tmp_path: Path) -> None:
    [script] = blocks("python")
    first, sharing, outcome, preemption, questions = blocks("bash")
    with at_home(
        tmp_path, agent__devices="cpu:2", launch__warm="true", controller__eta_share="0.1"
    ) as person:
        person.write("train.py", script)
        assert "epoch 7: loss" in follows(person, first)

        assert "shares with" in follows(person, sharing)
        told = follows(person, outcome)
        assert "BESIDE JOB" in told and "won" in told, told

        told = follows(person, preemption)
        attempts = person.show("5")["attempts"]
        assert [(each["outcome"], each["exact"]) for each in attempts] == [
            ("preempted", True),
            ("finished", True),
        ], told

        told = follows(person, questions)
        assert "srtf" in told, told
        person.until_state("6", "cancelled")
