"""Run the parts of the test suite, one after the other or two at a time, and say what each cost.

Rule: a failing part never hides another, so all chosen parts run; the exit code is 0 only if each
passed. Being over budget is printed and is no failure (machines are noisy), but no part may run for
ever: at five times its budget, and never before five minutes, its processes are killed (later where this
machine is slow: tests/building/limits.py).

A part that keeps one core busy runs beside another where there are two cores; what each says is kept and
printed whole when it ends, so that it reads as if it had run by itself. The long ones split their tests among
workers, one for each of two cores, and run alone.

The live part drives real processes on a machine that others may use, and runs alone; its modules mostly
wait, so it runs several of them at a time by itself. If a few of its tests fail, they are tried once more;
what passes only then is named in the summary, so that it stays in sight.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from tests.building.limits import within_s  # noqa: E402

PYTEST = (sys.executable, "-m", "pytest", "-q")
RUFF = (sys.executable, "-m", "ruff")
APART = ("simulation", "live")
REHEARSAL = "tests/live/test_gpu_study.py"
"""A part of its own: it keeps both cores busy for minutes, and others time what they do."""
"""Folders of tests that are parts of their own."""
WITH_PROCESSES = ("agent", "checkpoint", "gradaccum", "hwtests", "mps", "profiler", "unchanged")
"""Folders of unit tests, most of which start processes: a part of their own, beside all the others."""
FROM_THE_WHEEL = (
    "agent/daemon/test_spare_supervisor.py",
    "agent/host/test_host_folders.py",
    "controller/cli/test_frame.py",
    "gradaccum/test_launch.py",
    "mps/test_terminate.py",
)
"""Unit tests that find or start our programs by where we are installed: one for each way there is. They run
against the wheel, whose files are the source tree's; all others in the source tree."""
AT_ONCE = min(2, len(os.sched_getaffinity(0)))
SPLIT = (f"--numprocesses={AT_ONCE}", "--dist=worksteal") if AT_ONCE > 1 else ()
"""Of parts whose tests have nothing to do with each other."""
BY_MODULE = ("--dist=loadfile", "--no-loadscope-reorder")
"""In the order of their names: else what has few tests comes last, and the longest modules have few."""
SPLIT_BY_MODULE = (f"--numprocesses={AT_ONCE}", *BY_MODULE) if AT_ONCE > 1 else ()
"""Of parts whose modules start something that all their tests use."""
LIVE_AT_ONCE = 4
"""Modules of live tests side by side: each has its own folders, sockets and ports, and mostly waits."""
SIDE_BY_SIDE = (f"--numprocesses={LIVE_AT_ONCE}", *BY_MODULE)
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
    alone: bool = False
    """It starts when all before it have ended, and nothing starts beside it."""
    try_again: Callable[[], Sequence[str]] | None = None
    """The tests to try once more, alone, after a failure; none: the failure stands. Only with `alone`."""
    env: Mapping[str, str] = field(default_factory=dict)
    pytest: tuple[str, ...] = PYTEST
    """What tries tests again."""
    limit_s_min: float = 300.0
    stop_grace_s: float = within_s(20.0)

    def __post_init__(self) -> None:
        assert self.alone or self.try_again is None, f"{self.name}: a second try is beside nothing"

    @property
    def limit_s(self) -> float:
        return within_s(max(self.limit_s_min, 5 * self.budget_s))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    part: Part
    passed: bool
    wall_s: float
    cpu_s: float
    """Of the part's processes and of those below them that were waited for."""
    note: str = ""

    def line(self) -> str:
        verdict = "passed" if self.passed else "FAILED"
        cost = f"{self.wall_s:6.1f} s of {self.part.budget_s:.0f} s, {self.cpu_s:.0f} s of CPU"
        over = "" if self.wall_s <= self.part.budget_s else "  over budget"
        note = f"  {self.note}" if self.note else ""
        return f"{self.part.name:<11}{verdict}  {cost}{over}{note}"


@dataclass(frozen=True, kw_only=True)
class Running:
    part: Part
    process: subprocess.Popen[bytes]
    said: IO[bytes] | None
    """What it says, kept for its end; none: it says it to whoever is there."""
    began_s: float
    again: bool = False
    """It is a second try."""

    @property
    def ends_by_s(self) -> float:
        return self.began_s + self.part.limit_s


def unit_tests() -> list[str]:
    return ["tests", *(f"--ignore=tests/{each}" for each in (*APART, *WITH_PROCESSES, *FROM_THE_WHEEL))]


def process_tests() -> list[str]:
    return [
        *(f"tests/{folder}" for folder in WITH_PROCESSES),
        *(f"--ignore=tests/{each}" for each in FROM_THE_WHEEL),
    ]


def wheel_tests() -> list[str]:
    return [f"tests/{each}" for each in FROM_THE_WHEEL]


def in_source_tree(
    tests: Callable[[], list[str]], split: Sequence[str]
) -> Callable[[argparse.Namespace], Sequence[str]]:
    def command(options: argparse.Namespace) -> Sequence[str]:
        measured = ("--cov", "--cov-report=") if covers(options) else ()
        return [*PYTEST, *split, *measured, *tests()]

    return command


def wheel(options: argparse.Namespace) -> Sequence[str]:
    measured = ("--cov",) if covers(options) else ()
    return [sys.executable, "tests/wheel.py", *measured, *wheel_tests()]


def covers(options: argparse.Namespace) -> bool:
    """Whether anybody asked what the unit tests cover: to trace them doubles what they take."""
    return "coverage" in options.parts


def coverage(_: argparse.Namespace) -> Sequence[str]:
    """What the unit tests covered together, wherever they ran."""
    tool = f"{sys.executable} -m coverage"
    return ["/bin/sh", "-c", f"{tool} combine -q && {tool} report"]


def soak(options: argparse.Namespace) -> list[str]:
    seeds = [f"--seeds={options.seeds}", f"--first-seed={options.first_seed}"]
    return [*PYTEST, "--hypothesis-profile=soak", *seeds, "tests/simulation"]


def failed_live(known: Path = LAST_FAILED) -> list[str]:
    """The live tests that failed last, as pytest keeps them; none where it did not get to keep any."""
    try:
        kept = json.loads(known.read_text())
    except (OSError, ValueError):
        return []
    return sorted(test for test in kept if test.startswith("tests/live/"))


PARTS = (
    Part(name="format", budget_s=10, command=lambda _: [*RUFF, "format", "--check", "."]),
    Part(name="lint", budget_s=10, command=lambda _: [*RUFF, "check", "."]),
    Part(
        name="wheel",
        budget_s=120,
        command=wheel,
        env={"COVERAGE_FILE": str(ROOT / ".coverage.wheel")},
    ),
    Part(name="types", budget_s=60, command=lambda _: [sys.executable, "-m", "mypy"]),
    Part(
        name="processes",
        budget_s=330,
        command=in_source_tree(process_tests, SPLIT_BY_MODULE),
        alone=True,
        env={"COVERAGE_FILE": str(ROOT / ".coverage.processes")},
    ),
    Part(
        name="unit",
        budget_s=240,
        command=in_source_tree(unit_tests, SPLIT),
        alone=True,
        env={"COVERAGE_FILE": str(ROOT / ".coverage.unit")},
    ),
    Part(
        name="unchanged",
        budget_s=120,
        command=lambda _: [sys.executable, "-m", "tests.unchanged", "--quick"],
        alone=True,
    ),
    Part(
        name="simulation",
        budget_s=90,
        command=lambda _: [*PYTEST, *SPLIT, "tests/simulation"],
        alone=True,
    ),
    Part(name="coverage", budget_s=30, command=coverage, alone=True, in_default=False),
    Part(
        name="live",
        budget_s=330,
        command=lambda _: [*PYTEST, *SIDE_BY_SIDE, "tests/live", f"--ignore={REHEARSAL}"],
        alone=True,
        try_again=failed_live,
    ),
    Part(name="rehearsal", budget_s=180, command=lambda _: [*PYTEST, REHEARSAL], alone=True),
    Part(name="soak", budget_s=24 * 3600, command=soak, in_default=False, alone=True),
)


def run(parts: Sequence[Part], options: argparse.Namespace, at_once: int) -> list[Outcome]:
    """All of them, in the order in which they end."""
    waiting, running, outcomes = deque(parts), list[Running](), list[Outcome]()
    at_once = at_once if len(parts) > 1 else 1
    try:
        while waiting or running:
            while waiting and may_start(waiting[0], running, at_once):
                part = waiting.popleft()
                with later_interrupts():
                    running.append(start(part, part.command(options), apart=at_once > 1 and not part.alone))
            for each in await_any(running):
                running.remove(each)
                outcomes.append(conclude(each))
    except KeyboardInterrupt:
        for each in running:
            stop(each)
            show(each)
        raise
    return outcomes


@contextmanager
def later_interrupts() -> Iterator[None]:
    """One that comes while a part starts is raised when the part is known, or nobody would end it."""
    caught: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: caught.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if caught:
        raise KeyboardInterrupt


def may_start(part: Part, running: Sequence[Running], at_once: int) -> bool:
    if part.alone or any(each.part.alone for each in running):
        return not running
    return len(running) < at_once


def start(part: Part, command: Sequence[str], *, apart: bool = False, again: bool = False) -> Running:
    what = f" (budget {part.budget_s:.0f} s)"
    if again:
        what = f", once more, alone: {' '.join(command[len(part.pytest) :])}"
    print(f"\n== {part.name}{what}", "begins" if apart else "", flush=True)
    kept = tempfile.TemporaryFile() if apart else None  # noqa: SIM115
    # A session of its own: what it leaves running on a time-out can be ended by group, never by name.
    process = subprocess.Popen(
        command, cwd=ROOT, env={**environment(), **part.env}, stdout=kept, stderr=kept, start_new_session=True
    )
    return Running(part=part, process=process, said=kept, began_s=time.monotonic(), again=again)


def environment() -> dict[str, str]:
    """Hundreds of processes import us from the source tree: if bytecode may not be kept, each compiles it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def await_any(running: Sequence[Running]) -> list[Running]:
    """Those that have ended or whose time is over; none if it is over in a moment."""
    descriptors = {os.pidfd_open(each.process.pid): each for each in running}
    try:
        left_s = min(each.ends_by_s for each in running) - time.monotonic()
        ended, _, _ = select.select(descriptors, [], [], max(0.0, left_s))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    now_s = time.monotonic()
    return [each for fd, each in descriptors.items() if fd in ended or each.ends_by_s <= now_s]


def conclude(each: Running) -> Outcome:
    """Shows what it said, and tries a few failures once more where the part wants that."""
    note = "" if ends_within(each.process, 0.0) else f"killed after {each.part.limit_s:.0f} s"
    status, cpu_s = stop(each) if note else reap(each.process)
    outcome = Outcome(
        part=each.part,
        passed=status == 0 and not note,
        wall_s=time.monotonic() - each.began_s,
        cpu_s=cpu_s,
        note=note,
    )
    show(each, outcome)
    if outcome.passed or note or each.again or each.part.try_again is None:
        return outcome
    tests = each.part.try_again()
    return second_try(outcome, tests) if 0 < len(tests) <= TRIED_AGAIN_MAX else outcome


def second_try(first: Outcome, tests: Sequence[str]) -> Outcome:
    again = start(first.part, [*first.part.pytest, *tests], again=True)
    try:
        while not await_any([again]):
            pass
    except KeyboardInterrupt:
        stop(again)
        raise
    second = conclude(again)
    said = f"{'only' if second.passed else 'not even'} at a second try: {' '.join(tests)}"
    wall_s, cpu_s = first.wall_s + second.wall_s, first.cpu_s + second.cpu_s
    return replace(second, wall_s=wall_s, cpu_s=cpu_s, note=second.note or said)


def show(each: Running, outcome: Outcome | None = None) -> None:
    """What it said while another ran beside it; for an interrupted one so far."""
    if each.said is None:
        return
    print(f"\n== {outcome.line() if outcome else f'{each.part.name}: interrupted'}", flush=True)
    each.said.seek(0)
    shutil.copyfileobj(each.said, sys.stdout.buffer)
    sys.stdout.flush()
    each.said.close()


def ends_within(process: subprocess.Popen[bytes], wait_s: float) -> bool:
    descriptor = os.pidfd_open(process.pid)
    try:
        return bool(select.select([descriptor], [], [], wait_s)[0])
    finally:
        os.close(descriptor)


def stop(each: Running) -> tuple[int, float]:
    """Interrupt first, so that pytest tears its fixtures down and names the test; then end the group."""
    process = each.process
    process.send_signal(signal.SIGINT)
    if not ends_within(process, each.part.stop_grace_s):
        os.killpg(process.pid, signal.SIGKILL)
    return reap(process)


def reap(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Its exit code, and the CPU time of it and all below it."""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


def arguments(argv: Sequence[str] | None = None, parts: Sequence[Part] = PARTS) -> argparse.Namespace:
    by_default = [part.name for part in parts if part.in_default]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(p.name for p in parts)}")
    parser.add_argument("--seeds", type=int, default=2000, help="soak: how many seeds")
    parser.add_argument("--first-seed", type=int, default=0, help="soak: the first seed")
    options = parser.parse_args(argv)
    names = [part.name for part in parts]
    unknown = sorted(set(options.parts) - set(names))
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(names)}")
    options.parts = options.parts or by_default
    return options


def main(argv: Sequence[str] | None = None, parts: Sequence[Part] = PARTS, at_once: int = AT_ONCE) -> int:
    # In the background of a script it is ignored, by all that tests start as well: deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # What cancels a CI run ends the parts, too.
    options = arguments(argv, parts)
    chosen = [part for part in parts if part.name in options.parts]
    began_s = time.monotonic()
    outcomes = sorted(run(chosen, options, at_once), key=lambda outcome: chosen.index(outcome.part))
    wall_s, cpu_s = time.monotonic() - began_s, sum(outcome.cpu_s for outcome in outcomes)
    print("\n== summary")
    for outcome in outcomes:
        print(outcome.line())
    failed = [outcome.part.name for outcome in outcomes if not outcome.passed]
    if failed:
        print(f"FAILED: {', '.join(failed)} ({wall_s:.0f} s, {cpu_s:.0f} s of CPU)")
        return 1
    print(f"all {len(outcomes)} parts passed in {wall_s:.0f} s, {cpu_s:.0f} s of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
