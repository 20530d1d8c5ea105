"""Run the suite's models as jobs, one alone or two together, and keep what they said and when.

Rule: a job is a process that speaks the job-side protocol, as under the scheduler; its step times are its own
reports. Jobs end by themselves, at their last step. Only one that must be given up is killed.
"""

from __future__ import annotations

import json
import math
import select
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.wire.job import DATAGRAM_BYTES_MAX
from cotenant.profiler.ranks import RankCommand, Ranks, Seat
from cotenant.profiler.steps import FirstStepTaken, JobRefused, LibraryHello, StepReport, parse
from hwtests.device import Device
from hwtests.host import ROOT

POLL_S: Final = 0.05
MANY_STEPS: Final = 1_000_000_000


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One of `hwtests.models`."""

    model: str
    batch_size: int
    precision: str = "bf16"
    small: bool = False
    more: tuple[str, ...] = ()
    """Further words of its command."""

    def command(self, device: Device, steps: int) -> RankCommand:
        words = [sys.executable, "-m", "hwtests.models", self.model, "--device", device.kind]
        words += ["--steps", str(steps), "--batch-size", str(self.batch_size)]
        words += ["--precision", self.precision, *(["--small"] if self.small else []), *self.more]
        return RankCommand(argv=tuple(words), workdir=str(ROOT), env=device.environment())


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`count` steps, the last of them number `step`, took `elapsed_s` and were over at `at_s`."""

    at_s: float
    step: int
    count: int
    elapsed_s: float


class Life(msgspec.Struct, kw_only=True):
    """One run of a job. Times are seconds since the drive began; NaN: not reached."""

    name: str
    started_s: float = math.nan
    hello_s: float = math.nan
    first_step_s: float = math.nan
    ended_s: float = math.nan
    pid: int = 0
    reports: list[Report] = []
    memory_mib: float = math.nan
    """Its own peak, as torch's allocator says; NaN on a CPU."""
    complaints: list[str] = []

    @property
    def trains(self) -> bool:
        return not math.isnan(self.first_step_s) and math.isnan(self.ended_s)

    @property
    def over(self) -> bool:
        return not math.isnan(self.ended_s)


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A job, how many steps it makes, and when it starts."""

    job: Job
    steps: int = MANY_STEPS
    env: dict[str, str] = {}
    """On top of everything else, also of the job-side protocol's variables."""
    after: int | None = None
    """It starts when the one with this number has made its first step."""


class JobFailed(Exception):
    """A job did not do its steps; the text has its last words."""


def drive(
    starts: Sequence[Start],
    device: Device,
    folder: Path,
    *,
    deadline_s: float,
    enough: Callable[[Sequence[Life]], bool] = lambda _: False,
    watch: Callable[[Sequence[Life]], None] = lambda _: None,
) -> list[Life]:
    """Run until all have ended, or it is enough (what still runs is then killed).

    Raises:
        JobFailed: one ended with an error, or did not end before the deadline.
    """
    with ExitStack() as stack:
        return _Drive(starts, device, folder, stack).to_the_end(deadline_s, enough, watch)


class _Drive:
    def __init__(self, starts: Sequence[Start], device: Device, folder: Path, stack: ExitStack) -> None:
        self._starts, self._device, self._folder, self._stack = starts, device, folder, stack
        self._began_s = time.monotonic()
        self.lives = [Life(name=start.job.model) for start in starts]
        self._ranks: dict[int, Ranks] = {}

    def to_the_end(
        self,
        deadline_s: float,
        enough: Callable[[Sequence[Life]], bool],
        watch: Callable[[Sequence[Life]], None],
    ) -> list[Life]:
        while not all(life.over for life in self.lives):
            self._start_what_is_due()
            self._hear()
            watch(self.lives)
            if enough(self.lives):
                break
            if self._now_s() > deadline_s:
                late = ", ".join(life.name for life in self.lives if not life.over)
                raise JobFailed(f"{late}: no end after {deadline_s:.0f} s")
        return self.lives

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _start_what_is_due(self) -> None:
        for number, start in enumerate(self._starts):
            if number in self._ranks:
                continue
            before = None if start.after is None else self.lives[start.after]
            if before is not None and math.isnan(before.first_step_s):
                continue
            folder = self._folder / f"{len(list(self._folder.iterdir()))}"
            folder.mkdir()
            command = start.job.command(self._device, start.steps)
            self.lives[number].started_s = self._now_s()
            # In the seat: of the job-side protocol's own variables a command may bring none.
            seat = Seat(cores=self._device.cores, env=start.env)
            ranks = Ranks(command, [seat], folder, "0:1")
            self._ranks[number] = self._stack.enter_context(ranks)
            self.lives[number].pid = ranks.processes[0].pid

    def _hear(self) -> None:
        inboxes = [ranks.inbox for ranks in self._ranks.values()]
        select.select(inboxes, [], [], POLL_S)
        for number, ranks in self._ranks.items():
            life = self.lives[number]
            if life.over:
                continue
            code = ranks.exit_codes()[0]  # Before the last words are read: what comes after an end is none.
            while select.select([ranks.inbox], [], [], 0)[0]:
                self._take(life, ranks.inbox.recv(DATAGRAM_BYTES_MAX + 1))
            if code is not None:
                self._end(life, code, ranks)

    def _take(self, life: Life, datagram: bytes) -> None:
        now_s = self._now_s()
        match parse(datagram):
            case LibraryHello():
                life.hello_s = now_s if math.isnan(life.hello_s) else life.hello_s
            case FirstStepTaken():
                life.first_step_s = now_s
            case StepReport(step=step, count=count, elapsed_s=elapsed_s):
                life.reports.append(Report(at_s=now_s, step=step, count=count, elapsed_s=elapsed_s))
            case JobRefused(error=error):
                life.complaints.append(error)

    def _end(self, life: Life, code: int, ranks: Ranks) -> None:
        life.ended_s = self._now_s()
        last = ranks.last_line(0)
        if code != 0:
            raise JobFailed(f"{life.name}: exit {code}: {last}")
        try:
            memory = json.loads(last)["memory_mib"]
        except (ValueError, KeyError, TypeError):
            raise JobFailed(f"{life.name}: ended, and said {last[:200]!r} instead of its result") from None
        life.memory_mib = math.nan if memory is None else float(memory)
