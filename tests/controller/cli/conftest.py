"""A home, a controller that a test answers for, and command lines in this process."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest.mock import patch

import pytest

from cotenant.controller.cli.main import main
from tests.building.stand_in import StandIn as StandIn


class Result(NamedTuple):
    code: int
    out: str
    err: str


Cotenant = Callable[..., Result]


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, a runtime folder and a current folder of the test's own; no settings from outside."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COTENANT_CONFIG", str(tmp_path / "cotenant.toml"))
    (tmp_path / "cotenant.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def controller(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    stand_in = StandIn(at_home / "c.sock")
    monkeypatch.setenv("COTENANT_CONTROLLER__ENDPOINT", stand_in.endpoint)
    yield stand_in
    stand_in.close()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes what is printed go to a terminal without colours, so many columns wide."""

    def wide(columns: int) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    return wide


@pytest.fixture
def stand_in() -> type[StandIn]:
    """For a test that lets controllers come and go."""
    return StandIn


@pytest.fixture
def cotenant(at_home: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Cotenant:
    """Runs a command line in this process, whose variables are as before when it ends."""

    def run(*words: str) -> Result:
        with patch.dict(os.environ):
            code = main(words)
        out, err = capsysbinary.readouterr()
        return Result(code, out.decode(), err.decode())

    return run


@pytest.fixture(scope="session")
def replies() -> ModuleType:
    """`replies.py` beside this file: tests have no packages to import it from."""
    spec = importlib.util.spec_from_file_location("cli_replies", Path(__file__).with_name("replies.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
