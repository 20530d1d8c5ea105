"""The source for a job on CUDA devices: GPM's counters by way of a process of its own, and its host
processors.

Rule: asking is bounded. A process that does not answer in time is left behind, and what it would have said is
missing from then on. GPM counts a whole GPU, so the values are the job's only while it is alone there.
"""

from __future__ import annotations

import json
import math
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Final

from cotenant.profiler.cpu import CpuSource
from cotenant.profiler.gpm import RATES, SHARES, TOO_SOON
from cotenant.profiler.sources import Indicator, Reading, Sample, SourceName, missing

ANSWER_S_MAX: Final = 0.5
START_S_MAX: Final = 5.0
"""For the first answer: the driver is loaded."""
ANSWER_BYTES_MAX: Final = 16 * 1024
OF_THE_HOST: Final = (Indicator.CPU, Indicator.NETTX, Indicator.NETRX)


class _NoAnswer(Exception):
    """Why there will be no values."""


class GpuSource:
    """Castor's indicators for a job on CUDA devices, over the time since the sample before."""

    name: SourceName = "gpm"

    def __init__(self, uuids: Sequence[str], host: CpuSource, command: Sequence[str] = ()) -> None:
        """`command` answers like `profiler.gpm`; by default it is that."""
        self._host = host
        self._patience_s = START_S_MAX
        self._problem = ""
        self._process: subprocess.Popen[bytes] | None = None
        words = list(command) or [sys.executable, "-m", "cotenant.profiler.gpm", *uuids]
        try:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            )
        except OSError as error:
            self._problem = f"cannot start {words[0]}: {error.strerror}"

    def sample(self) -> Sample:
        host = self._host.sample()
        device = self._ask()
        return {**device, **{name: host[name] for name in OF_THE_HOST}}

    def _ask(self) -> dict[Indicator, Reading]:
        names = (*SHARES, *RATES)
        if not self._problem:
            try:
                known = self._answer()
                return {name: _reading(known, name) for name in names}
            except _NoAnswer as problem:
                self.close()
                self._problem = str(problem)
        return {name: missing("gpm", self._problem) for name in names}

    def _answer(self) -> dict[str, float | None]:
        """What the process says. Raises _NoAnswer: nothing sensible; there is no use in asking again."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        with suppress(OSError):  # It may have ended; then its last word says why.
            process.stdin.write(b"\n")
        line = self._line(process.stdout)
        self._patience_s = ANSWER_S_MAX
        try:
            said: dict[str, float | None] = dict(json.loads(line))
        except (ValueError, TypeError):
            raise _NoAnswer("NVML's process said something that makes no sense") from None
        if "problem" in said:
            raise _NoAnswer(str(said["problem"])[:300])
        return said

    def _line(self, stdout: IO[bytes]) -> bytes:
        """The next whole line; a pipe may hand it over in pieces. Raises _NoAnswer: too late or too long."""
        line, until_s = b"", time.monotonic() + self._patience_s
        while not line.endswith(b"\n"):
            left_s = until_s - time.monotonic()
            if left_s <= 0.0 or not select.select([stdout], [], [], left_s)[0]:
                raise _NoAnswer(f"NVML did not answer within {self._patience_s:g} s")
            more = stdout.read(ANSWER_BYTES_MAX)
            if not more:
                raise _NoAnswer("NVML's process has ended")
            line += more
            if len(line) > ANSWER_BYTES_MAX:
                raise _NoAnswer("NVML's process said something that makes no sense")
        return line

    def close(self) -> None:
        """End the process; one that hangs in the driver is not waited for."""
        self._problem = self._problem or "the source is closed"
        process, self._process = self._process, None
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


def _reading(known: dict[str, float | None], name: Indicator) -> Reading:
    if not known:
        return missing("gpm", TOO_SOON)
    value = known.get(name.value)
    if isinstance(value, (int, float)) and math.isfinite(value):
        return Reading(value=float(value), source="gpm")
    return missing("gpm", "this GPU or driver has no such counter")
