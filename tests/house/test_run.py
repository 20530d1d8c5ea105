"""The driver of `make test`: a failing part hides no other, and nothing runs for ever."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("driver", Path(__file__).parents[1] / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "driver", module)  # Its dataclasses look themselves up by name.
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LIMIT_S_MIN", 0.0)
    monkeypatch.setattr(module, "STOP_GRACE_S", 0.2)
    return module


def part(driver: ModuleType, name: str, script: str, budget_s: float = 60.0) -> object:
    return driver.Part(name=name, budget_s=budget_s, command=lambda _: ("/bin/sh", "-c", script))


def run(
    driver: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *parts: object
) -> tuple[int, list[str]]:
    monkeypatch.setattr(driver, "PARTS", parts)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    status: int = driver.main()
    return status, capfd.readouterr().out.splitlines()


def test_all_parts_run_although_one_fails(
    driver: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = [part(driver, "bad", "echo one; exit 3"), part(driver, "good", "echo two")]
    status, lines = run(driver, monkeypatch, capfd, *parts)
    assert status == 1
    assert {"one", "two"} <= set(lines)
    assert lines[-1].startswith("FAILED: bad (")


def test_success_is_the_last_word(
    driver: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    status, lines = run(driver, monkeypatch, capfd, part(driver, "good", "true"))
    assert status == 0
    assert lines[-1].startswith("all 1 parts passed in ")


def test_over_budget_is_said_and_is_no_failure(
    driver: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "LIMIT_S_MIN", 60.0)
    status, lines = run(driver, monkeypatch, capfd, part(driver, "slow", "true", budget_s=0.0))
    assert status == 0
    assert any("over budget" in line for line in lines)


def test_a_part_that_hangs_and_ignores_the_interrupt_is_killed(
    driver: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stubborn = part(driver, "stubborn", "trap '' INT; sleep 60 & wait; wait", budget_s=0.1)
    status, lines = run(driver, monkeypatch, capfd, stubborn)
    assert status == 1
    assert any("killed after" in line for line in lines)


@pytest.mark.parametrize(
    ("tests", "status", "says"),
    [
        (["PASSES"], 0, "only at a second try: "),
        (["PASSES", "FAILS"], 1, "not even at a second try: "),
        (["PASSES"] * 4, 1, "bad        FAILED"),
        ([], 1, "bad        FAILED"),
    ],
)
def test_a_few_failures_are_tried_once_more_and_named(
    driver: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tests: list[str],
    status: int,
    says: str,
) -> None:
    monkeypatch.setattr(driver, "PYTEST", ("/bin/sh", "-c", 'case "$*" in *FAILS*) exit 1;; esac', "sh"))
    bad = driver.Part(name="bad", budget_s=60.0, command=lambda _: ("/bin/false",), try_again=lambda: tests)
    found, lines = run(driver, monkeypatch, capfd, bad)
    assert found == status
    assert any(says in line for line in lines), lines


def test_the_live_part_knows_which_of_its_tests_failed(
    driver: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(driver, "LAST_FAILED", tmp_path / "lastfailed")
    assert driver.failed_live() == []
    (tmp_path / "lastfailed").write_text('{"tests/live/test_b.py::b": true, "tests/cli/test_a.py::a": true}')
    assert driver.failed_live() == ["tests/live/test_b.py::b"]
    (tmp_path / "lastfailed").write_text("{")
    assert driver.failed_live() == []


def test_every_part_that_is_promised_runs_by_default(driver: ModuleType) -> None:
    wanted = ["format", "lint", "types", "unit", "simulation", "live", "wheel"]
    assert driver.arguments([]).parts == wanted
    budgets = {part.name: part.budget_s for part in driver.PARTS}
    assert (budgets["unit"], budgets["simulation"], budgets["live"]) == (180, 240, 480)


def test_an_unknown_part_is_refused(driver: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        driver.arguments(["unti"])
    assert "no such part: unti; there are format, lint" in capsys.readouterr().err
