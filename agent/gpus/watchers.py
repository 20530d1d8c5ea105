"""The children that watch the GPUs: started, listened to, killed when they hang, started again.

Rule: nothing in the agent's own process ever calls NVML, and nothing here waits for a child. We kill one that
hangs, leave behind one that even SIGKILL does not end (it is stuck in the kernel), and start no new one when
there are too many of those. A GPU that hangs or gives no answer gets a watcher of its
own, so that the others are watched on; that watcher lets go of a GPU that gives no answer, since one that is
held open cannot be reset.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Final

import msgspec

from cotenant.agent.gpus.probe_results import AnyWatchLine, ProbeBegins, ProbeFailed, ProbeResult
from cotenant.controller.wire import BadMessage, Json

STUCK_MAX: Final = 4
LINE_BYTES_MAX: Final = 1024 * 1024
_READ_BYTES: Final = 65_536

WatchLineCodec: Json[AnyWatchLine] = Json(AnyWatchLine)
RunsCommand = Callable[[Sequence[str]], list[str]]
"""The program that watches these GPUs, given by UUID."""


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
    """A child process that watches GPUs."""

    def __init__(
        self,
        command: list[str],
        *,
        timing: Timing,
        heard: Callable[[AnyWatchLine], None],
        over: Callable[[str, str | None], None],
    ) -> None:
        """`over(why, uuid)`: it hung at this GPU ("": at none in particular), or (None) ended by itself."""
        self.process = subprocess.Popen(
            command,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the agent, which then ends it.
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._input: IO[bytes] = self.process.stdin
        self._output: IO[bytes] = self.process.stdout
        self._timing = timing
        self._heard, self._over = heard, over
        self._asking = ""
        self._problem = ""
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(self._input.fileno(), False)
        os.set_blocking(self._output.fileno(), False)
        self._loop.add_reader(self._output.fileno(), self._read)
        self._alarm = self._loop.call_later(timing.start_s, self._silent)

    def probe_now(self) -> None:
        """Have it probe its GPUs at once. One that does not listen has enough to read already."""
        if not self._input.closed:
            with suppress(OSError):
                os.write(self._input.fileno(), b"\n")

    def close(self) -> None:
        """Kills the child process. The process may take its time to go, or never go."""
        self._alarm.cancel()
        if not self._output.closed:
            self._loop.remove_reader(self._output.fileno())
            self._output.close()
            self._input.close()
        with suppress(ProcessLookupError):
            self.process.kill()

    def _read(self) -> None:
        try:
            data = os.read(self._output.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._output.closed:  # An earlier line has closed us.
                return
            self._take(line)
        if not self._output.closed and (not data or len(self._rest) > LINE_BYTES_MAX):
            self._end(self._problem or "its watcher ended", None)

    def _take(self, data: bytes) -> None:
        timing = self._timing
        self._alarm.cancel()
        self._alarm = self._loop.call_later(timing.probe_s + timing.silent_s, self._silent)
        try:
            line = WatchLineCodec.decode(data)
        except BadMessage:
            self._end("its watcher talks nonsense", None)
            return
        if isinstance(line, ProbeBegins):
            self._asking = line.uuid
        elif isinstance(line, ProbeFailed):
            self._problem = line.problem
        else:
            self._heard(line)

    def _silent(self) -> None:
        self._end("NVML does not answer when it is asked about it", self._asking)

    def _end(self, why: str, asking: str | None) -> None:
        self.close()
        self._over(why, asking)


class WatchGroup:
    """GPUs that one child watches, now or at its next try."""

    def __init__(self, uuids: tuple[str, ...]) -> None:
        self.uuids = uuids
        self.watcher: GpuWatcher | None = None
        self.failures = 0
        self.retry: asyncio.TimerHandle | None = None


class Watchers:
    def __init__(
        self,
        command: RunsCommand,
        *,
        heard: Callable[[AnyWatchLine], None],
        unanswered: Callable[[tuple[str, ...], str], None],
        log: Callable[[str], None],
        timing: Timing | None = None,
    ) -> None:
        """`unanswered(uuids, why)`: a question about these was not answered."""
        self._command = command
        self._heard, self._unanswered, self._log = heard, unanswered, log
        self._timing = timing if timing is not None else Timing()
        self._groups: list[WatchGroup] = []
        self._leaving: list[subprocess.Popen[bytes]] = []
        """Killed, and perhaps not gone yet."""

    def start(self, uuids: tuple[str, ...]) -> None:
        self._groups.append(group := WatchGroup(uuids))
        self._start(group)

    def probe_now(self) -> None:
        """Do not wait for the next round of probes. A GPU without a watcher just now is probed later."""
        for group in self._groups:
            if group.watcher is not None:
                group.watcher.probe_now()

    def close(self) -> None:
        """Kills all children of the watch."""
        groups, self._groups = self._groups, []
        for group in groups:
            if group.retry is not None:
                group.retry.cancel()
            if group.watcher is not None:
                group.watcher.close()
                self._leaving.append(group.watcher.process)
        for process in self._leaving:
            with suppress(subprocess.TimeoutExpired):
                process.wait(self._timing.reap_s)

    @property
    def stuck(self) -> tuple[int, ...]:
        """Children that were killed and are not gone."""
        self._leaving = [process for process in self._leaving if process.poll() is None]
        return tuple(process.pid for process in self._leaving)

    # --- One group ---------------------------------------------------------------------------------

    def _start(self, group: WatchGroup) -> None:
        group.retry = None
        if len(self.stuck) >= STUCK_MAX:
            self._log(f"{len(self.stuck)} watchers of GPUs cannot be ended: no new one until they are gone")
            self._later(group)
            return
        try:
            group.watcher = GpuWatcher(
                self._command(group.uuids),
                timing=self._timing,
                heard=lambda line: self._hear(group, line),
                over=lambda why, asking: self._over(group, why, asking),
            )
        except OSError as error:
            self._log(f"cannot start a watcher of GPUs: {error.strerror}")
            self._unanswered(group.uuids, "no watcher could be started for it")
            self._later(group)

    def _hear(self, group: WatchGroup, line: AnyWatchLine) -> None:
        self._heard(line)
        if not isinstance(line, ProbeResult):
            return
        if not line.code:
            group.failures = 0
        elif len(group.uuids) > 1:
            self._stop(group)
            self._part(group, line.uuid)
        else:  # Let go of it, and ask again later in a new process: this one's handle may never recover.
            self._stop(group)
            self._later(group)

    def _over(self, group: WatchGroup, why: str, asking: str | None) -> None:
        """Takes note that the child of a group has hung or ended."""
        self._stop(group)
        if asking in group.uuids and len(group.uuids) > 1:
            assert asking is not None
            self._unanswered((asking,), why)
            self._log(f"{asking}: {why}; it gets a watcher of its own")
            self._part(group, asking)
            return
        self._unanswered(group.uuids, why)
        self._log(f"{', '.join(group.uuids)}: {why}")
        self._later(group)

    def _part(self, group: WatchGroup, uuid: str) -> None:
        """The others go on without this one."""
        self._groups.append(alone := WatchGroup((uuid,)))
        group.uuids = tuple(other for other in group.uuids if other != uuid)
        self._later(alone)
        self._start(group)

    def _stop(self, group: WatchGroup) -> None:
        assert group.watcher is not None
        group.watcher.close()
        self._leaving.append(group.watcher.process)
        group.watcher = None
        asyncio.get_running_loop().call_later(self._timing.reap_s, lambda: self.stuck)

    def _later(self, group: WatchGroup) -> None:
        wait_s = min(self._timing.retry_s * 2**group.failures, self._timing.retry_s_max)
        group.failures = min(group.failures + 1, 16)
        group.retry = asyncio.get_running_loop().call_later(wait_s, self._start, group)
