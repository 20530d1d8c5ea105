"""Programs of experiments on a command line, in this process and in a folder of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from experiments.shared import program


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]
"""Runs a program with these words behind its name."""


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def runs(at_home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[Any, str], Run]:
    """A function for the program that does this by this name."""
    return lambda act, name: lambda *words: Result(program.run(act, name, words), *capsys.readouterr())
