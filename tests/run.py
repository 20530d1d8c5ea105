"""Run the parts of the test suite, one after the other, and say what each cost.

Rule: a failing part never hides another, so all chosen parts run; the exit code is 0 only if each
passed. Being over budget is printed and is no failure (machines are noisy), but no part may run for
ever: at five times its budget, and never before five minutes, its processes are killed.

The live part drives real processes on a machine that others may use. If a few of its tests fail, they are
tried once more, alone; what passes only then is named in the summary, so that it stays in sight.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTEST = (sys.executable, "-m", "pytest", "-q")
RUFF = (sys.executable, "-m", "ruff")
APART = ("simulation", "live")
"""Folders of tests that are parts of their own; everything else is the unit part."""
LIMIT_S_MIN = 300.0
STOP_GRACE_S = 20.0
LIVE_TEST_S_MAX = 450
"""A live test that hangs fails by itself, and not the whole part with it."""
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
TRIED_AGAIN_MAX = 3
"""More failures than this are no accident of timing."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One check with its time budget. `command` gets the parsed arguments."""

    name: str
    budget_s: float
    command: Callable[[argparse.Namespace], Sequence[str]]
    in_default: bool = True
    try_again: Callable[[], Sequence[str]] | None = None
    """The tests to try once more, alone, after a failure; none: the failure stands."""

    @property
    def limit_s(self) -> float:
        return max(LIMIT_S_MIN, 5 * self.budget_s)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    part: Part
    passed: bool
    wall_s: float
    note: str = ""

    def line(self) -> str:
        verdict = "passed" if self.passed else "FAILED"
        over = "" if self.wall_s <= self.part.budget_s else "  over budget"
        note = f"  {self.note}" if self.note else ""
        return (
            f"{self.part.name:<11}{verdict}  {self.wall_s:6.1f} s of {self.part.budget_s:.0f} s{over}{note}"
        )


def unit_tests() -> list[str]:
    return ["tests", *(f"--ignore=tests/{folder}" for folder in APART)]


def soak(options: argparse.Namespace) -> list[str]:
    seeds = [f"--seeds={options.seeds}", f"--first-seed={options.first_seed}"]
    return [*PYTEST, "--hypothesis-profile=soak", *seeds, "tests/simulation"]


def failed_live() -> list[str]:
    """The live tests that failed last, as pytest keeps them; none where it did not get to keep any."""
    try:
        kept = json.loads(LAST_FAILED.read_text())
    except (OSError, ValueError):
        return []
    return sorted(test for test in kept if test.startswith("tests/live/"))


PARTS = (
    Part(name="format", budget_s=10, command=lambda _: [*RUFF, "format", "--check", "."]),
    Part(name="lint", budget_s=10, command=lambda _: [*RUFF, "check", "."]),
    Part(name="types", budget_s=60, command=lambda _: [sys.executable, "-m", "mypy"]),
    Part(name="unit", budget_s=180, command=lambda _: [*PYTEST, "--cov", "--cov-report=term", *unit_tests()]),
    Part(name="simulation", budget_s=240, command=lambda _: [*PYTEST, "tests/simulation"]),
    Part(
        name="live",
        budget_s=480,
        command=lambda _: [*PYTEST, f"--timeout={LIVE_TEST_S_MAX}", "tests/live"],
        try_again=failed_live,
    ),
    Part(name="wheel", budget_s=180, command=lambda _: [sys.executable, "tests/wheel.py"]),
    Part(name="soak", budget_s=24 * 3600, command=soak, in_default=False),
)


def run(part: Part, options: argparse.Namespace) -> Outcome:
    print(f"\n== {part.name} (budget {part.budget_s:.0f} s)", flush=True)
    began = time.monotonic()
    passed, note = passes(part.command(options), part.limit_s)
    if not passed and not note and part.try_again is not None:
        passed, note = second_try(part, part.try_again())
    return Outcome(part=part, passed=passed, wall_s=time.monotonic() - began, note=note)


def second_try(part: Part, tests: Sequence[str]) -> tuple[bool, str]:
    if not 0 < len(tests) <= TRIED_AGAIN_MAX:
        return False, ""
    print(f"\n== {part.name}, once more, alone: {' '.join(tests)}", flush=True)
    passed, note = passes([*PYTEST, *tests], part.limit_s)
    return passed, note or f"{'only' if passed else 'not even'} at a second try: {' '.join(tests)}"


def passes(command: Sequence[str], limit_s: float) -> tuple[bool, str]:
    """Whether the command ends well within its limit, and a note if it had to be ended."""
    # A session of its own: what it leaves running on a time-out can be ended by group, never by name.
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        return process.wait(limit_s) == 0, ""
    except subprocess.TimeoutExpired:
        stop(process)
        return False, f"killed after {limit_s:.0f} s"
    except KeyboardInterrupt:
        stop(process)
        raise


def stop(process: subprocess.Popen[bytes]) -> int:
    """Interrupt first, so that pytest tears its fixtures down and names the test; then end the group."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    by_default = [part.name for part in PARTS if part.in_default]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(p.name for p in PARTS)}")
    parser.add_argument("--seeds", type=int, default=2000, help="soak: how many seeds")
    parser.add_argument("--first-seed", type=int, default=0, help="soak: the first seed")
    options = parser.parse_args(argv)
    names = [part.name for part in PARTS]
    unknown = sorted(set(options.parts) - set(names))
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(names)}")
    options.parts = options.parts or by_default
    return options


def main() -> int:
    # In the background of a script it is ignored, by all that tests start as well: deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = arguments()
    chosen = [part for part in PARTS if part.name in options.parts]
    outcomes = [run(part, options) for part in chosen]
    print("\n== summary")
    for outcome in outcomes:
        print(outcome.line())
    failed = [outcome.part.name for outcome in outcomes if not outcome.passed]
    wall_s = sum(outcome.wall_s for outcome in outcomes)
    if failed:
        print(f"FAILED: {', '.join(failed)} ({wall_s:.0f} s)")
        return 1
    print(f"all {len(outcomes)} parts passed in {wall_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
