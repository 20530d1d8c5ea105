"""The outputs of all ranks, from their pipes into their bounded logs, in the supervisor's `select` loop.

Rule: a pipe that was just emptied is out of the selector until its pause is over, and
back in it then; nothing else decides when a rank's output is read, but its end.

A pipe is emptied at most `1 / PAUSE_S` times a second. So a job that prints line after line costs a few
wake-ups, and one that floods is slowed down by its own output (the pipe's size times the rate), not by us:
neither can make a supervisor busy or fill a disk.

Where standard error has a pipe of its own, the beginning of a line is held until the next look, so that what
the other stream says does not stand within it; a stream that has begun a line is read first.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import selectors
import time
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final

from cotenant.agent.ipc.records import LOGS, Order, RankOrder
from cotenant.agent.supervisor.core import exit_classifier, printed
from cotenant.agent.supervisor.processes.attempt_folder import open_output, owner_of
from cotenant.agent.supervisor.processes.logs import LogWriter
from cotenant.agent.supervisor.processes.terminal import Terminal

PAUSE_S: Final = 0.05
PIPE_BYTES: Final = 256 * 1024
_PLACEHOLDER: Final = re.compile(r"%(\d{0,2})([a-zA-Z%])")
EXTRA_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Of the user's own output file: their disk, but not without end."""


class Output:
    """The output of one rank: a pipe, one for each of its streams, or a terminal. The caller polls them from
    `resume_s` on."""

    def __init__(
        self,
        log: LogWriter,
        extra: int | None,
        *,
        extra_path: Path = Path(),
        errors_apart: bool = False,
        terminal: Terminal | None = None,
    ) -> None:
        self._log = log
        self._extra = extra
        self._extra_room = EXTRA_BYTES_MAX
        self._tail = b""
        self._read_to, self._metrics = 0, dict[str, float]()
        self.link = ""
        """The first that was recognised."""
        self._extra_path, self._extra_problem, self._log_problem = extra_path, "", ""
        """What first went wrong with writing; the job goes on."""
        self._resume_s = 0.0
        self._terminal = terminal
        self._pipes: dict[int, bool] = {}
        """Our ends of those that are open, and whether standard error alone comes through."""
        self._begun = dict[int, bytes]()
        """Lines that have begun and are held, by pipe."""
        if terminal is not None:
            self._pipes[terminal.ours] = False
            self.rank_end = self.errors_end = terminal.rank_end
            return
        self.rank_end = self._open_pipe(is_error=False)
        self.errors_end = self._open_pipe(is_error=True) if errors_apart else self.rank_end

    def _open_pipe(self, *, is_error: bool) -> int:
        """Opens a pipe and returns the rank's end."""
        ours, rank_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        with suppress(OSError):  # Over the user's limit for pipes: the usual size will do.
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._pipes[ours] = is_error
        return rank_end

    @property
    def resume_s(self) -> float:
        """When its pause is over; never, while a terminal's client has to read first."""
        waits = self._terminal is not None and not self._terminal.is_readable
        return inf if waits else self._resume_s

    @property
    def fds(self) -> tuple[int, ...]:
        return tuple(self._pipes)

    @property
    def bytes_seen(self) -> int:
        return self._log.end

    @property
    def lost(self) -> str:
        """What of the output could not be written, in a sentence; empty: nothing."""
        log = f"{self._log.lost_bytes} bytes of its output are missing in its log: {self._log_problem}"
        return "; ".join(filter(None, (self._extra_lost, log if self._log.lost_bytes else "")))

    @property
    def _extra_lost(self) -> str:
        problem = self._extra_problem
        return f"its output could not be written to {self._extra_path}: {problem}" if problem else ""

    @property
    def tail(self) -> str:
        return self._tail.decode(errors="replace")

    def hand_over(self) -> None:
        """The rank has its ends now. That of a terminal stays open: a rank may open its terminal anew."""
        if self._terminal is not None:
            return
        for each in {self.rank_end, self.errors_end}:
            os.close(each)

    def drain(self, now_s: float, *, final: bool = False) -> None:
        """Take what is there; closes itself when every writer is gone. `final`: nobody waits for a client."""
        is_asked_for = self._terminal is not None and self._terminal.stream.is_followed
        self._resume_s = now_s + (0.0 if is_asked_for else PAUSE_S)
        for fd in sorted(self._pipes, key=lambda each: each not in self._begun):
            try:
                if self._terminal is not None:
                    data = self._terminal.read(final=final)
                else:
                    data = os.read(fd, 4 * PIPE_BYTES) or None
            except BlockingIOError:
                self._keep_begun(fd)
                continue
            if data is not None:
                self._keep_lines(fd, data)
            else:
                self._close_pipe(fd)

    @property
    def has_begun_line(self) -> bool:
        """Whether it holds the beginning of a line, to be written at the next look."""
        return bool(self._begun)

    def _keep_lines(self, fd: int, data: bytes) -> None:
        """Keeps whole lines, and holds the rest if another stream may write before it goes on."""
        data = self._begun.pop(fd, b"") + data
        whole = len(data) if len(self._pipes) == 1 else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - whole > printed.LINE_BYTES:
            whole = len(data)
        if whole < len(data):
            self._begun[fd] = data[whole:]
        if whole:
            self._keep(data[:whole], self._pipes[fd])

    def _keep_begun(self, fd: int) -> None:
        if fd in self._begun:
            self._keep(self._begun.pop(fd), self._pipes[fd])

    def read_metrics(self, *, is_over: bool = False) -> dict[str, float]:
        """Reads the metrics in the end of the output, if that is another than last time."""
        if self._read_to != self.bytes_seen or is_over:
            is_cut = self.bytes_seen > len(self._tail)
            output = self.tail + "\n" * is_over
            self._read_to, self._metrics = self.bytes_seen, printed.metrics_in(output, is_cut=is_cut)
        return self._metrics

    def _keep(self, data: bytes, is_error: bool) -> None:
        if not self.link and printed.LINK_MARK in (lately := self._tail[-printed.LINE_BYTES :] + data):
            self.link = printed.link_in(lately)
        self._tail = (self._tail + data)[-exit_classifier.TAIL_BYTES :]
        try:
            self._log.write(data, is_error=is_error)
        except OSError as error:
            self._log_problem = self._log_problem or error.strerror or str(error)
        self._write_extra(data)

    def write_word(self, text: str) -> None:
        """Writes a line of ours into the log alone."""
        lost_before = self._log.lost_bytes
        with suppress(OSError):
            self._log.write(f"\n[cotenant: {text}]\n".encode(errors="replace"))
        self._log.lost_bytes = lost_before  # Of the job's output: this is ours.

    def close(self) -> None:
        for fd in self.fds:
            self._close_pipe(fd)
        self._log.close()

    def tell_loss(self) -> None:
        """Writes at the end of the log that a part of it is missing."""
        if self._log.lost_bytes:
            self.write_word(self.lost)

    def _close_pipe(self, fd: int) -> None:
        """The user's file is closed with the last."""
        self._keep_begun(fd)
        if self._terminal is not None:
            self._terminal.close()
        else:
            os.close(fd)
        del self._pipes[fd]
        if not self._pipes:
            self._close_extra()

    def lose_extra(self, error: OSError) -> None:
        """The user's file cannot be written. From now on the output is in the log alone."""
        self._extra_problem = self._extra_problem or error.strerror or str(error)
        self._close_extra()
        self.write_word(f"{self._extra_lost}; it is in this log")

    def _close_extra(self) -> None:
        """A network file system may say only now that it has not kept what was written."""
        file, self._extra = self._extra, None
        try:
            if file is not None:
                os.close(file)
        except OSError as error:
            self.lose_extra(error)

    def _write_extra(self, data: bytes) -> None:
        if self._extra is None or self._extra_room <= 0:
            return
        self._extra_room -= len(data)
        if self._extra_room <= 0:
            data = b"\n[cotenant: this file is full; the end is in `cotenant logs`]\n"
        try:
            while data:
                data = data[os.write(self._extra, data) :]
            if self._extra_room <= 0:
                raise OSError(errno.EFBIG, f"such a file has at most {EXTRA_BYTES_MAX >> 20} MiB")
        except OSError as error:
            self.lose_extra(error)


def output_path(order: Order, rank: int) -> Path:
    """`--output` with its placeholders filled in; a relative one starts at the working directory."""
    start, slurm = order.start, order.launch.slurm
    array, _, index = order.job_id.partition("_")
    words = {
        "j": slurm.job_number(order.job_id) if slurm else order.job_id,
        "a": str(order.attempt),
        "r": str(rank),
        "x": start.name.replace("/", "_"),
        "N": order.host_id,
        "A": array,
        "i": index or "0",
        "u": start.user,
        "n": str(next(at for at, member in enumerate(order.gang) if member.host_id == order.host_id)),
        "%": "%",
    }

    def fill(match: re.Match[str]) -> str:
        text = words.get(match[2])
        return match[0] if text is None else text.zfill(int(match[1] or 0))

    return Path(order.launch.workdir) / _PLACEHOLDER.sub(fill, order.launch.output)


class Outputs:
    def __init__(self, folder: Path, order: Order, selector: selectors.BaseSelector) -> None:
        self._folder, self._order, self._selector = folder, order, selector
        self._by_rank: dict[int, Output] = {}
        self.terminal: Terminal | None = None
        """Of its one rank, if it has one."""

    def open(self, rank: RankOrder) -> Output:
        """The rank's pipe and log, and the file that its user wanted. Not read before `listen`.

        Raises:
            OSError: there is no terminal, pipe or log for it. A file that cannot be written ends nobody.
        """
        order = self._order
        extra = refused = None
        path = output_path(order, rank.rank)
        if order.launch.output:
            try:
                extra = open_output(path, order)
            except (OSError, ValueError) as error:  # Or no file can have such a name.
                refused = error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error))
        log = LogWriter(self._folder / LOGS, rank.rank, order.log_bytes_max, owner_of(order))
        if order.launch.terminal:
            self.terminal = Terminal(order)
        errors_apart = rank.rank == 0 and order.launch.errors_apart
        output = self._by_rank[rank.rank] = Output(
            log, extra, extra_path=path, errors_apart=errors_apart, terminal=self.terminal
        )
        if refused is not None:
            output.lose_extra(refused)
        return output

    def listen(self, rank: int) -> None:
        """Read it whenever there is something."""
        for fd in self._by_rank[rank].fds:
            self._selector.register(fd, selectors.EVENT_READ, lambda: self.drain(rank))

    def drain(self, rank: int, *, final: bool = False) -> None:
        """Read, and let the pipe fill for a moment before the next time."""
        output = self._by_rank[rank]
        watched = [fd for fd in output.fds if fd in self._selector.get_map()]
        output.drain(time.monotonic(), final=final)
        for fd in watched:
            self._selector.unregister(fd)

    def drain_all(self) -> None:
        for rank in self._by_rank:
            self.drain(rank, final=True)

    def listen_again(self, now_s: float) -> None:
        """Listens again to the ranks whose pause is over."""
        for rank, output in self._paused_outputs():
            if now_s >= output.resume_s:
                self.listen(rank)
                if output.has_begun_line:
                    self.drain(rank)

    @property
    def next_alarm_s(self) -> float:
        return min((output.resume_s for _, output in self._paused_outputs()), default=float("inf"))

    def _paused_outputs(self) -> Iterator[tuple[int, Output]]:
        watched = self._selector.get_map()
        for rank, output in self._by_rank.items():
            if output.fds and watched.keys().isdisjoint(output.fds):
                yield rank, output

    def write_word(self, text: str) -> None:
        """Writes a line of ours between those of the first rank here."""
        for rank in sorted(self._by_rank)[:1]:
            self._by_rank[rank].write_word(text)

    def tell_losses(self) -> None:
        """Says in each log what is missing in it. Nothing more comes of the ranks."""
        for output in self._by_rank.values():
            output.tell_loss()

    @property
    def bytes_seen(self) -> int:
        return sum(each.bytes_seen for each in self._by_rank.values())

    def read_printed(self, *, is_over: bool = False) -> printed.PrintedFacts:
        """What the lowest rank that has any has printed of its training. `is_over`: no rank prints more."""
        outputs = [self._by_rank[rank] for rank in sorted(self._by_rank)]
        metrics = next(filter(None, (each.read_metrics(is_over=is_over) for each in outputs)), {})
        link = next((each.link for each in outputs if each.link), "")
        lost = next((each.lost for each in outputs if each.lost), "")
        return printed.PrintedFacts(tuple(metrics.items()), link, lost)

    @property
    def tails(self) -> dict[int, str]:
        """The end of each rank's log."""
        return {rank: output.tail for rank, output in self._by_rank.items()}

    def close(self) -> None:
        for output in self._by_rank.values():
            output.close()
