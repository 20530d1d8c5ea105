"""The driver of `make test`: a failing part hides no other, nothing runs for ever, two run side by side."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("driver", Path(__file__).parents[1] / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "driver", module)  # Its dataclasses look themselves up by name.
    spec.loader.exec_module(module)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield module
    for number, handler in before.items():  # `main` sets its own.
        signal.signal(number, handler)


def part(driver: ModuleType, name: str, script: str, **more: object) -> object:
    command = ("/bin/sh", "-c", script)
    plain: dict[str, object] = {"budget_s": 60.0, "limit_s_min": 0.0, "stop_grace_s": 0.2}
    return driver.Part(name=name, command=lambda _: command, **{**plain, **more})


def run(
    driver: ModuleType, capfd: pytest.CaptureFixture[str], *parts: object, at_once: int = 2
) -> tuple[int, list[str]]:
    status: int = driver.main([], parts, at_once)
    return status, capfd.readouterr().out.splitlines()


def test_all_parts_run_although_one_fails(driver: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    parts = [part(driver, "bad", "echo one; exit 3"), part(driver, "good", "echo two")]
    status, lines = run(driver, capfd, *parts)
    assert status == 1
    assert {"one", "two"} <= set(lines)
    assert lines[-1].startswith("FAILED: bad (")


def test_success_is_the_last_word(driver: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    status, lines = run(driver, capfd, part(driver, "good", "true"))
    assert status == 0
    assert lines[-1].startswith("all 1 parts passed in ")


def test_over_budget_is_said_and_is_no_failure(driver: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    slow = part(driver, "slow", "true", budget_s=0.0, limit_s_min=60.0)
    status, lines = run(driver, capfd, slow)
    assert status == 0
    assert any("over budget" in line for line in lines)


def test_a_part_that_hangs_and_ignores_the_interrupt_is_killed(
    driver: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    stubborn = part(driver, "stubborn", "trap '' INT; sleep 60 & wait; wait", budget_s=0.1)
    status, lines = run(driver, capfd, stubborn)
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
    capfd: pytest.CaptureFixture[str],
    tests: list[str],
    status: int,
    says: str,
) -> None:
    bad = driver.Part(
        name="bad",
        budget_s=60.0,
        command=lambda _: ("/bin/false",),
        alone=True,
        try_again=lambda: tests,
        pytest=("/bin/sh", "-c", 'case "$*" in *FAILS*) exit 1;; esac', "sh"),
    )
    found, lines = run(driver, capfd, bad)
    assert found == status
    assert any(says in line for line in lines), lines


def test_the_live_part_knows_which_of_its_tests_failed(driver: ModuleType, tmp_path: Path) -> None:
    known = tmp_path / "lastfailed"
    assert driver.failed_live(known) == []
    known.write_text('{"tests/live/test_b.py::b": true, "tests/controller/cli/test_a.py::a": true}')
    assert driver.failed_live(known) == ["tests/live/test_b.py::b"]
    known.write_text("{")
    assert driver.failed_live(known) == []


def test_every_part_that_is_promised_runs_by_default(driver: ModuleType) -> None:
    checks = {"format", "lint", "types", "wheel"}
    tests = {"unit", "processes", "unchanged", "simulation", "live", "rehearsal"}
    assert set(driver.arguments([]).parts) == checks | tests


def test_every_test_belongs_to_exactly_one_part(driver: ModuleType) -> None:
    """The unit part takes what no other has."""
    folders = [*driver.APART, *driver.WITH_PROCESSES]
    assert len(set(folders)) == len(folders)
    assert [folder for folder in folders if not any((ROOT / "tests" / folder).rglob("test_*.py"))] == []
    assert [file for file in driver.FROM_THE_WHEEL if not (ROOT / "tests" / file).is_file()] == []
    away = {f"--ignore=tests/{file}" for file in driver.FROM_THE_WHEEL}
    assert {f"--ignore=tests/{folder}" for folder in folders} | away == set(driver.unit_tests()[1:])
    assert {f"tests/{folder}" for folder in driver.WITH_PROCESSES} | away == set(driver.process_tests())
    assert [f"tests/{file}" for file in driver.FROM_THE_WHEEL] == driver.wheel_tests()


def test_the_unit_tests_keep_what_they_cover_apart_until_it_is_put_together(driver: ModuleType) -> None:
    kept = {part.env["COVERAGE_FILE"] for part in driver.PARTS if "COVERAGE_FILE" in part.env}
    names = [part.name for part in driver.PARTS]
    assert len(kept) == 3
    assert all(Path(name).name.startswith(".coverage.") for name in kept)
    assert names.index("coverage") > max(map(names.index, ("unit", "processes", "wheel")))
    assert next(part for part in driver.PARTS if part.name == "coverage").alone, "both have ended by then"


def test_two_parts_run_side_by_side_and_each_is_shown_whole(
    driver: ModuleType, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Either waits for the other through a pipe: one after the other they would never end."""
    os.mkfifo(tmp_path / "there")
    os.mkfifo(tmp_path / "back")
    first = f"cd {tmp_path}; echo a1; echo x >there; read x <back; echo a2 >&2; exit 3"
    second = f"cd {tmp_path}; echo b1; read x <there; echo b2; echo x >back; true"
    status, lines = run(driver, capfd, part(driver, "a", first), part(driver, "b", second))
    assert status == 1
    assert lines[lines.index("a1") + 1] == "a2"
    assert lines[lines.index("b1") + 1] == "b2"
    assert lines[-1].startswith("FAILED: a (")


def test_a_part_that_wants_to_be_alone_has_nobody_beside_it(
    driver: ModuleType, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each looks for signs of life of the others; the lone one is neither begun early nor joined."""
    busy = f"cd {tmp_path}; touch busy-$$; test ! -e lone || echo JOINED; rm busy-$$"
    lone = f"cd {tmp_path}; touch lone; ls | grep busy && echo JOINED; rm lone; true"
    parts = [part(driver, "a", busy), part(driver, "lone", lone, alone=True), part(driver, "b", busy)]
    status, lines = run(driver, capfd, *parts)
    assert status == 0
    assert "JOINED" not in lines
    shown = [line for line in lines if line.startswith("== ")]
    assert [line.split()[1] for line in shown if "begins" in line or "lone" in line] == ["a", "lone", "b"]


@pytest.mark.parametrize("number", ["INT", "TERM"])
def test_an_interrupt_ends_all_that_run(
    driver: ModuleType,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    number: str,
) -> None:
    """The second part sends it to us once the first is there; the third never starts."""
    os.mkfifo(tmp_path / "there")
    here = f"cd {tmp_path}; echo $$ >pid-"
    first = f"{here}a; echo said; echo x >there; exec sleep 60"
    second = f"{here}b; read x <there; kill -{number} $PPID; exec sleep 60"
    parts = [part(driver, "a", first), part(driver, "b", second), part(driver, "c", f"{here}c")]
    with pytest.raises(KeyboardInterrupt):
        run(driver, capfd, *parts)
    pids = [int(file.read_text()) for file in tmp_path.glob("pid-*")]
    assert len(pids) == 2
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert "said" in capfd.readouterr().out.splitlines(), "what it had said by then is shown"


def test_what_a_part_cost_is_its_own_cpu_time(driver: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever it cost in wall time, a sleeper used next to nothing."""
    status, lines = run(driver, capfd, part(driver, "idle", "sleep 0.1"))
    assert status == 0
    assert any(line.startswith("idle") and ", 0 s of CPU" in line for line in lines), lines


def test_an_unknown_part_is_refused(driver: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        driver.arguments(["unti"])
    assert "no such part: unti; there are format, lint" in capsys.readouterr().err
