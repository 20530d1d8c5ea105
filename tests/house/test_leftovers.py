"""The check for processes that outlive their tests finds those that try to hide."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.processes import await_shown

SLEEP = ("sleep", "60")


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("leftovers", Path(__file__).parents[1] / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sign(tmp_path: Path) -> tuple[bytes]:
    return (f"{tmp_path}/".encode(),)


@pytest.fixture
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The same sleeper, bound to this test's folder by one thread only."""
    threads: dict[str, dict[str, Any]] = {
        "environment": {"env": {"STATE": f"{tmp_path}/state"}},
        "folder": {"env": {}, "cwd": tmp_path},
        "nothing": {"env": {}, "cwd": "/"},
    }
    with subprocess.Popen(SLEEP, start_new_session=True, **threads[request.param]) as started:
        await_shown(started.pid, *SLEEP)
        yield started
        started.kill()


@pytest.mark.parametrize("process", ["environment", "folder"], indirect=True)
def test_a_process_is_found(check: ModuleType, process: subprocess.Popen[bytes], sign: tuple[bytes]) -> None:
    assert check.leftovers(sign) == {process.pid}


@pytest.mark.parametrize("process", ["nothing"], indirect=True)
def test_a_strangers_process_is_left_alone(
    check: ModuleType, process: subprocess.Popen[bytes], sign: tuple[bytes]
) -> None:
    assert check.leftovers(sign) == set()


def test_the_children_of_one_that_is_found_are_found(
    check: ModuleType, tmp_path: Path, sign: tuple[bytes]
) -> None:
    script = f"sleep 60 & echo $!; wait; : {tmp_path}/state"
    with subprocess.Popen(
        ("/bin/sh", "-c", script), env={}, cwd="/", stdout=subprocess.PIPE, start_new_session=True
    ) as shell:
        assert shell.stdout is not None
        child = int(shell.stdout.readline())
        assert check.leftovers(sign) == {shell.pid, child}
        check.end(child)
        check.end(shell.pid)


@pytest.mark.parametrize("process", ["folder"], indirect=True)
def test_one_that_has_ended_is_gone(
    check: ModuleType, process: subprocess.Popen[bytes], sign: tuple[bytes]
) -> None:
    process.kill()
    assert check.outlasting({process.pid}) == set()
    assert check.leftovers(sign) == set(), "a zombie is no leftover"
