"""The way of a rank's output from its pipe into its bounded log.

Rule: a pipe is emptied at most `1 / PAUSE_S` times a second. So a job that prints line after line costs a
few wake-ups, and one that floods is slowed down by its own output (the pipe's size times the rate), not
by us: neither can make a supervisor busy or fill a disk.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from cotenant.agent.supervisor.core.exit_classifier import TAIL_BYTES
from cotenant.agent.supervisor.processes.logs import LogWriter

PAUSE_S: Final = 0.05
PIPE_BYTES: Final = 256 * 1024
EXTRA_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Of the user's own output file: their disk, but not without end."""


class Output:
    """One rank's. `readable` when the pipe may be polled; the caller polls it from `resume_s` on."""

    def __init__(self, log: LogWriter, extra: int | None) -> None:
        self._log = log
        self._extra = extra
        self._extra_room = EXTRA_BYTES_MAX
        self._tail = b""
        self.problem = ""
        """The first thing that went wrong with writing; the job goes on."""
        self.resume_s = 0.0
        self.fd, self.rank_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.fd, False)
        with suppress(OSError):  # Over the user's limit for pipes: the usual size will do.
            fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def is_open(self) -> bool:
        return self.fd >= 0

    @property
    def bytes_seen(self) -> int:
        return self._log.end

    @property
    def tail(self) -> str:
        return self._tail.decode(errors="replace")

    def hand_over(self) -> None:
        """The rank has its end now."""
        os.close(self.rank_end)

    def drain(self, now_s: float) -> None:
        """Take what is there; closes itself when every writer is gone."""
        self.resume_s = now_s + PAUSE_S
        try:
            data = os.read(self.fd, 4 * PIPE_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        try:
            self._log.write(data)
        except OSError as error:
            self.problem = self.problem or f"log: {error.strerror}"
        self._write_extra(data)

    def close(self) -> None:
        if not self.is_open:
            return
        os.close(self.fd)
        self.fd = -1
        self._log.close()
        if self._extra is not None:
            os.close(self._extra)
            self._extra = None

    def _write_extra(self, data: bytes) -> None:
        if self._extra is None or self._extra_room <= 0:
            return
        self._extra_room -= len(data)
        if self._extra_room <= 0:
            data = b"\n[cotenant: this file is full; the end is in `cotenant logs`]\n"
        try:
            os.write(self._extra, data)
        except OSError as error:
            self.problem = self.problem or f"output file: {error.strerror}"
            os.close(self._extra)
            self._extra = None


def output_path(pattern: str, workdir: str, job_id: str, attempt: int, rank: int) -> Path:
    """`--output` with %j, %a and %r filled in; a relative one starts at the working directory."""
    words = {"%j": job_id, "%a": str(attempt), "%r": str(rank), "%%": "%"}
    filled, rest = "", pattern
    while rest:
        word = words.get(rest[:2])
        filled, rest = (filled + word, rest[2:]) if word is not None else (filled + rest[0], rest[1:])
    return Path(workdir) / filled
