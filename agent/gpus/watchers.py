"""The children that watch the GPUs, one for each: started, listened to, killed when they hang, started again.

Rule: nothing in the agent's own process ever calls NVML, and nothing here waits for a child. We kill one that
hangs, and start no other for its GPU while even SIGKILL has not ended it (it is stuck in the kernel). A GPU
that gives no answer, is lost or makes NVML refuse everything costs its own watcher and no other. A watcher
lets go of a GPU that gives no answer, since one that is held open cannot be reset.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Final

import msgspec

from cotenant.agent.gpus.probe_results import AnyWatchLine, ProbeFailed, ProbeResult
from cotenant.controller.wire import BadMessage, Json

LINE_BYTES_MAX: Final = 1024 * 1024
SILENT: Final = "NVML does not answer when it is asked about it"
_READ_BYTES: Final = 65_536

WatchLineCodec: Json[AnyWatchLine] = Json(AnyWatchLine)


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    probe_s: float = 2.0
    """Between two probes of a GPU."""
    start_s: float = 180.0
    """The first call of NVML may start the driver."""
    silent_s: float = 30.0
    """A watcher that says nothing for so long after a probe is due hangs; it speaks at every probe."""
    retry_s: float = 5.0
    """Before a watcher is started again; doubled each time in a row up to `retry_s_max`."""
    retry_s_max: float = 300.0
    reap_s: float = 2.0
    """A killed child that is not gone after this is stuck."""


class GpuWatcher:
    """The watch over one GPU: a child process, now or at the next try."""

    def __init__(
        self,
        uuid: str,
        command: Callable[[str], list[str]],
        *,
        timing: Timing,
        heard: Callable[[AnyWatchLine], None],
        unanswered: Callable[[str, str], None],
    ) -> None:
        """`command(uuid)`: the program. `unanswered(uuid, why)`: a question about it was not answered."""
        self._uuid, self._command, self._timing = uuid, command, timing
        self._heard, self._unanswered = heard, unanswered
        self._loop = asyncio.get_running_loop()
        self._failures = 0
        self._problem = ""
        self._rest = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._pipes: tuple[IO[bytes], IO[bytes]] | None = None
        """To the child and from it, until it is killed."""
        self._alarm: asyncio.Handle = self._loop.call_soon(self._start)
        """Starts a child, or takes it for hung."""

    def probe_now(self) -> None:
        """Have it probe the GPU at once. One that does not listen has enough to read already."""
        if self._pipes is not None:
            with suppress(OSError):
                os.write(self._pipes[0].fileno(), b"\n")

    def close(self) -> None:
        """Kills the child. It may take its time to go, or never go."""
        self._alarm.cancel()
        if self._process is None or self._pipes is None:
            return
        self._loop.remove_reader(self._pipes[1].fileno())
        for pipe in self._pipes:
            pipe.close()
        self._pipes = None
        with suppress(ProcessLookupError):
            self._process.kill()

    def wait(self) -> None:
        """Waits a moment for a child that was killed."""
        with suppress(subprocess.TimeoutExpired):
            if self._process is not None:
                self._process.wait(self._timing.reap_s)

    @property
    def stuck(self) -> int | None:
        """The child, if it is not gone."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def _start(self) -> None:
        if self.stuck is not None:
            self._end(f"process {self.stuck}, which watched it, hangs in the kernel")
            return
        try:
            process = subprocess.Popen(
                self._command(self._uuid),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the agent, which then ends it.
            )
        except OSError as error:
            self._end(f"no watcher could be started for it: {error.strerror}")
            return
        assert process.stdin is not None and process.stdout is not None
        self._process, self._pipes = process, (process.stdin, process.stdout)
        self._problem, self._rest = "", b""
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
        self._loop.add_reader(process.stdout.fileno(), self._read, process.stdout.fileno())
        self._alarm = self._loop.call_later(self._timing.start_s, self._end, SILENT)

    def _read(self, output: int) -> None:
        try:
            data = os.read(output, _READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line)
            if self._pipes is None:  # The line has ended it.
                return
        if not data or len(self._rest) > LINE_BYTES_MAX:
            self._end(self._problem or "its watcher ended")

    def _take(self, data: bytes) -> None:
        self._alarm.cancel()
        self._alarm = self._loop.call_later(self._timing.probe_s + self._timing.silent_s, self._end, SILENT)
        try:
            line = WatchLineCodec.decode(data)
        except BadMessage:
            self._end("its watcher talks nonsense")
            return
        if isinstance(line, ProbeFailed):
            self._problem = line.problem
            return
        self._heard(line)
        if isinstance(line, ProbeResult) and not line.code:
            self._failures = 0
        elif isinstance(line, ProbeResult):  # Ask in a new process: this one's handle may never recover.
            self._start_later()

    def _end(self, why: str) -> None:
        self._start_later()
        self._unanswered(self._uuid, why)

    def _start_later(self) -> None:
        self.close()
        wait_s = min(self._timing.retry_s * 2**self._failures, self._timing.retry_s_max)
        self._failures = min(self._failures + 1, 16)
        self._alarm = self._loop.call_later(wait_s, self._start)
