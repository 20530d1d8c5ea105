"""The asking side of `device_child.py`: which source the indicators of a host's GPUs come from, and why; then
one question, one line, and no wait beyond the limit.

Rule: the best source that works, tried in one order: GPM, DCGM, a dcgm-exporter, plain NVML. A source works
if it has shown a value, not if it could be opened. A driver may hang in the attempt, so a process of its own
makes it, and the caller waits for a bounded time.

Rule: a `DeviceProcess` gives up a process that is silent for too long, ends, or answers nonsense, notes the
reason, and never asks it again. It does not wait for one that hangs in the driver.
"""

from __future__ import annotations

import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, get_args

import msgspec

from cotenant.controller.wire import BadMessage, decode_json
from cotenant.profiler.driver.probe_client import DRIVER_S_MAX, NoProbeAnswer, ask
from cotenant.profiler.indicators.sources import (
    NOTHING_NEW,
    OF_DEVICES,
    Indicator,
    Reading,
    Sample,
    SourceName,
    Timed,
    Wanted,
    Wish,
    missing,
)

# --- Which source ----------------------------------------------------------------------------------


ORDER: Final[tuple[Wish, ...]] = get_args(Wish)[1:]
EXPLAIN_S_MAX: Final = 30.0
MIG_HAS_NONE: Final = "unknown: a MIG instance has no counters of its own"
CHILD: Final = "cotenant.profiler.indicators.device_child"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A source that was tried, or why it was not."""

    source: Wish
    usable: bool
    why: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All that were tried, in order; the first usable one was chosen."""

    findings: tuple[Finding, ...] = ()
    problem: str = ""
    """No source could be tried at all."""

    @property
    def chosen(self) -> Finding | None:
        return next((each for each in self.findings if each.usable), None)

    @property
    def why(self) -> str:
        """The explanation in one line: what is used, and what was passed over for which reason."""
        if self.problem:
            return self.problem
        passed_over = "; ".join(f"not {each.source}: {each.why}" for each in self.findings if not each.usable)
        if self.chosen is None:
            return passed_over or "no source was tried"
        return f"{self.chosen.source}: {self.chosen.why}" + (f" ({passed_over})" if passed_over else "")


def words_of(wanted: Wanted, uuids: Sequence[str]) -> list[str]:
    """The child's command line."""
    flags = (f"--{name.replace('_', '-')}={value}" for name, value in msgspec.structs.asdict(wanted).items())
    return [sys.executable, "-m", CHILD, *flags, *uuids]


def explain(
    uuids: Sequence[str], wanted: Wanted | None = None, timeout_s: float = EXPLAIN_S_MAX
) -> Explanation:
    """Try the sources for these GPUs and say how it went."""
    if not uuids:
        return Explanation(problem="no CUDA device: a CPU slot's indicators come from /proc and psutil")
    words = [*words_of(wanted if wanted is not None else Wanted(), uuids), "--explain"]
    try:
        return ask(words, Explanation, timeout_s, whom="the sources of indicators")
    except NoProbeAnswer as why:
        return Explanation(problem=str(why))


# --- The process -----------------------------------------------------------------------------------


START_S_MAX: Final = DRIVER_S_MAX
"""For the first answer: the driver is loaded, sources are tried."""
ANSWER_S_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
READ_BYTES: Final = 256 * 1024
REASON_CHARS: Final = 300


class DeviceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that `device_child.Reader.answer` gives."""

    source: SourceName
    why: str
    lacks: str
    offers: frozenset[str]
    gauges: frozenset[str]
    samples: tuple[tuple[float, float, float, tuple[dict[str, float], ...]], ...]
    """Since, at (monotonic clock), period, and per device what it has values of."""
    memory: tuple[tuple[float, float] | None, ...]
    """Per device: MiB used, MiB in all."""
    problems: tuple[str, ...]
    lost: int

    def timed(self, numbers: Sequence[int]) -> list[Timed]:
        """The samples of the devices with these numbers: the mean of each indicator over them."""
        return [
            Timed(since_s=since_s, at_s=at_s, period_s=period_s, values=self._means(numbers, devices))
            for since_s, at_s, period_s, devices in self.samples
            if at_s > since_s and period_s > 0.0 and max(numbers) < len(devices)
        ]

    def _means(self, numbers: Sequence[int], devices: Sequence[dict[str, float]]) -> Sample:
        readings = {
            name: [self._reading(number, devices[number], name) for number in numbers] for name in OF_DEVICES
        }
        # Missing where any of them is: a mean over some of the devices is not the job's.
        return {
            name: next((each for each in found if each.missing), None)
            or msgspec.structs.replace(found[0], value=math.fsum(r.value for r in found) / len(found))
            for name, found in readings.items()
        }

    def _reading(self, device: int, known: dict[str, float], name: Indicator) -> Reading:
        """The value of one indicator of one device in one sample."""
        if name.value in known:
            return Reading(value=known[name.value], source=self.source, gauge=name.value in self.gauges)
        if name.value not in self.offers:
            return missing(self.source, self.lacks)
        return missing(self.source, self.problems[device] or NOTHING_NEW)


class NoIndicators(Exception):
    """Why there will be none."""

    was_said = False
    """The process said so itself; else it hung, died or made no sense, and another source may do better."""


class DeviceProcess:
    """A child process that asks the driver, and what is on its way from it."""

    def __init__(self, words: Sequence[str], start_s_max: float = START_S_MAX) -> None:
        self._start_s_max = start_s_max
        self._problem = ""
        self._partial = b""
        self._started_s = self._asked_s = time.monotonic()
        self._is_asked = False
        self.has_answered = False
        self.process: subprocess.Popen[bytes] | None = None
        try:
            self.process = subprocess.Popen(
                list(words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        except OSError as error:
            self._problem = f"cannot start {words[0]}: {error.strerror}"

    def ask(self, wait_s: float) -> DeviceAnswer | None:
        """What happened since the last answer; None: not yet, ask again later.

        Raises:
            NoIndicators: and there never will be one.
        """
        if self._problem:
            raise NoIndicators(self._problem)
        try:
            line = self._line(wait_s)
            return None if line is None else self._parse_answer(line)
        except NoIndicators as problem:
            self.close(str(problem))
            raise

    def _line(self, wait_s: float) -> bytes | None:
        """The next whole line; a pipe may hand it over in pieces. Raises NoIndicators."""
        process = self.process
        assert process is not None and process.stdin is not None and process.stdout is not None
        if not self._is_asked:
            self._is_asked, self._asked_s = True, time.monotonic()
            with suppress(OSError):  # It may have ended; then its last word says why.
                process.stdin.write(b"\n")
        until_s = time.monotonic() + wait_s
        while b"\n" not in self._partial:
            left_s = max(0.0, until_s - time.monotonic())
            if not select.select([process.stdout], [], [], left_s)[0]:
                self._check_patience()
                return None
            more = os.read(process.stdout.fileno(), READ_BYTES)
            if not more:
                raise NoIndicators("the process that asks the driver has ended")
            self._partial += more
            if len(self._partial) > ANSWER_BYTES_MAX:
                raise NoIndicators("the process that asks the driver says something that makes no sense")
        line, _, self._partial = self._partial.partition(b"\n")
        self._is_asked = False
        return line

    def _check_patience(self) -> None:
        since_s, limit_s = (
            (self._asked_s, ANSWER_S_MAX) if self.has_answered else (self._started_s, self._start_s_max)
        )
        if time.monotonic() - since_s >= limit_s:
            raise NoIndicators(f"the driver did not answer within {limit_s:g} s")

    def _parse_answer(self, line: bytes) -> DeviceAnswer:
        """Reads an answer from a line of the child. Raises NoIndicators."""
        with suppress(BadMessage):
            trouble: Trouble = decode_json(line, Trouble)
            said = NoIndicators(trouble.problem[:REASON_CHARS])
            said.was_said = True
            raise said
        try:
            answer: DeviceAnswer = decode_json(line, DeviceAnswer)
        except BadMessage:
            raise NoIndicators(
                "the process that asks the driver says something that makes no sense"
            ) from None
        self.has_answered = True
        return answer

    def close(self, why: str = "the source is closed") -> None:
        """Ends the process; one that hangs in the driver is not waited for."""
        self._problem = self._problem or why
        process, self.process = self.process, None
        if process is None:
            return
        with suppress(OSError):
            process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """The child's last word."""

    problem: str
