"""The outputs of all ranks: from their pipes into their bounded logs, in the supervisor's `select` loop, and
read again from there.

Rule: a pipe that was just emptied is out of the selector until its pause is over, and
back in it then; nothing else decides when a rank's output is read, but its end.

A pipe is emptied at most `1 / PAUSE_S` times a second. So a job that prints line after line costs a few
wake-ups, and one that floods is slowed down by its own output (the pipe's size times the rate), not by us:
neither can make a supervisor busy or fill a disk.

A log is raw bytes, bounded on disk, addressed by their place in the whole stream: an offset counts the bytes
that the rank ever wrote, also those that were cut, so a reader that follows never needs to know how the log
is kept. The first half of the limit is kept for good; of the rest the newest part, in segments that are named
by the offset of their first byte:

    rank-0.log                      from 0, at most half of the limit
    rank-0.log.0000000033554432     the two newest segments, at most a quarter of the limit each

A reader that asks for something in between gets a marker that says how much is missing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cotenant.agent.ipc import LOGS, Order, RankOrder
from cotenant.agent.supervisor.core import TAIL_BYTES
from cotenant.agent.supervisor.processes.attempt_folder import open_output, owner_of
from cotenant.agent.supervisor.processes.slurm import job_number

PAUSE_S: Final = 0.05
PIPE_BYTES: Final = 256 * 1024
_PLACEHOLDER: Final = re.compile(r"%(\d{0,2})([a-zA-Z%])")
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


def output_path(order: Order, rank: int) -> Path:
    """`--output` with its placeholders filled in; a relative one starts at the working directory."""
    start, slurm = order.start, order.launch.slurm
    array, _, index = order.job_id.partition("_")
    words = {
        "j": job_number(order.job_id, slurm) if slurm else order.job_id,
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


class UnusableOutput(Exception):
    """The user's --output is no name that a file can have."""


class Outputs:
    def __init__(
        self, folder: Path, order: Order, selector: selectors.BaseSelector, note: Callable[[str], None]
    ) -> None:
        """`note` takes what does not work and ends nobody."""
        self._folder, self._order, self._selector, self._note = folder, order, selector, note
        self._by_rank: dict[int, Output] = {}

    def open(self, rank: RankOrder) -> Output:
        """The rank's pipe and log, and the file that its user wanted. Not read before `listen`.

        Raises:
            UnusableOutput: see there. A file that cannot be written now is a note.
        """
        order = self._order
        extra = None
        if order.launch.output:
            path = output_path(order, rank.rank)
            try:
                extra = open_output(path, order)
            except OSError as error:
                self._note(f"output: cannot write {path}: {error.strerror}")
            except ValueError as error:
                raise UnusableOutput(f"{order.launch.output!r}: {error}") from None
        log = LogWriter(self._folder / LOGS, rank.rank, order.log_bytes_max, owner_of(order))
        output = self._by_rank[rank.rank] = Output(log, extra)
        return output

    def listen(self, rank: int) -> None:
        """Read it whenever there is something."""
        fd = self._by_rank[rank].fd
        self._selector.register(fd, selectors.EVENT_READ, lambda: self.drain(rank))

    def drain(self, rank: int) -> None:
        """Read, and let the pipe fill for a moment before the next time."""
        output = self._by_rank[rank]
        if not output.is_open:
            return
        fd = output.fd
        output.drain(time.monotonic())
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def drain_all(self) -> None:
        for rank in self._by_rank:
            self.drain(rank)

    def listen_again(self, now_s: float) -> None:
        """To those whose pause is over."""
        for rank, output in self._paused():
            if now_s >= output.resume_s:
                self.listen(rank)

    @property
    def next_alarm_s(self) -> float:
        return min((output.resume_s for _, output in self._paused()), default=float("inf"))

    def _paused(self) -> Iterator[tuple[int, Output]]:
        watched = self._selector.get_map()
        for rank, output in self._by_rank.items():
            if output.is_open and output.fd not in watched:
                yield rank, output

    @property
    def bytes_seen(self) -> int:
        return sum(each.bytes_seen for each in self._by_rank.values())

    @property
    def tails(self) -> dict[int, str]:
        """The end of each rank's log."""
        return {rank: output.tail for rank, output in self._by_rank.items()}

    def close(self) -> None:
        for output in self._by_rank.values():
            output.close()


# --- Logs ------------------------------------------------------------------------------------------


TAIL_SEGMENTS: Final = 2
_OFFSET_DIGITS: Final = 16


def log_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a log. `next_offset` need not be offset + len(data): a marker stands for what was cut."""

    data: bytes
    next_offset: int
    end: int
    """The offset after the last byte that is there now."""


class LogWriter:
    """Writes one rank's log. Creates the files for their owner (mode 0600) and keeps to the limit."""

    def __init__(self, folder: Path, rank: int, bytes_max: int, owner: tuple[int, int] | None = None) -> None:
        self._path = log_path(folder, rank)
        self._head_max = max(1, bytes_max // 2)
        self._segment_max = max(1, bytes_max // (2 * TAIL_SEGMENTS))
        self._owner = owner
        self._end = 0
        self._room = self._head_max
        self._segments: list[Path] = []
        self._file = self._create(self._path)

    @property
    def end(self) -> int:
        """Bytes written so far, in all."""
        return self._end

    def write(self, data: bytes) -> None:
        """Append.

        Raises:
            OSError: the disk is full; the bytes are lost, but they are counted, so a reader sees the gap.
        """
        view = memoryview(data)
        while view:
            if self._room == 0:
                self._next_segment()
            piece = view[: self._room]
            view = view[len(piece) :]
            self._room -= len(piece)
            self._end += len(piece)
            self._write_piece(piece)

    def close(self) -> None:
        os.close(self._file)

    def _write_piece(self, piece: memoryview) -> None:
        try:
            written = os.write(self._file, piece)
        except OSError:
            self._room = (
                0  # What comes next starts a file of its own, so that its name says where it belongs.
            )
            raise
        if written < len(piece):
            self._room = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def _next_segment(self) -> None:
        path = self._path.with_name(f"{self._path.name}.{self._end:0{_OFFSET_DIGITS}d}")
        file = self._create(path)
        os.close(self._file)
        self._file = file
        self._room = self._segment_max
        self._segments.append(path)
        while len(self._segments) > TAIL_SEGMENTS:
            self._segments.pop(0).unlink(missing_ok=True)

    def _create(self, path: Path) -> int:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if self._owner is not None:
            os.fchown(file, *self._owner)
        return file


def read_log(folder: Path, rank: int, offset: int, limit: int) -> LogPiece | None:
    """At most `limit` bytes from `offset` on (negative: counted from the end); None if there is no log.

    A gap (cut bytes) is answered by its marker alone, and the next call goes on behind it.
    """
    for _ in range(3):  # A segment may be cut away between looking and opening.
        segments = _segments(folder, rank)
        if not segments:
            return None
        end = segments[-1].start + segments[-1].size
        start = max(0, end + offset) if offset < 0 else offset
        try:
            return _read_at(segments, start, limit, end)
        except FileNotFoundError:
            continue
    return LogPiece(data=b"", next_offset=max(0, offset), end=max(0, offset))


def log_end(folder: Path, rank: int) -> int:
    """The offset after the last byte; 0 if there is no log (yet). Cheap enough to poll."""
    segments = _segments(folder, rank)
    return segments[-1].start + segments[-1].size if segments else 0


class _Segment(msgspec.Struct, frozen=True, kw_only=True, order=True):
    start: int
    size: int
    path: str


def _segments(folder: Path, rank: int) -> list[_Segment]:
    name = log_path(folder, rank).name
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                suffix = entry.name[len(name) + 1 :]
                if entry.name == name or (entry.name.startswith(f"{name}.") and suffix.isdigit()):
                    size = entry.stat(follow_symlinks=False).st_size
                    found.append(_Segment(start=int(suffix or 0), size=size, path=entry.path))
    except FileNotFoundError:
        return []
    return sorted(found)


def _read_at(segments: list[_Segment], offset: int, limit: int, end: int) -> LogPiece:
    for segment in segments:
        if offset < segment.start:
            return LogPiece(data=cut_marker(segment.start - offset), next_offset=segment.start, end=end)
        if offset < segment.start + segment.size:
            with open(segment.path, "rb") as file:
                file.seek(offset - segment.start)
                data = file.read(max(0, min(limit, segment.start + segment.size - offset)))
            return LogPiece(data=data, next_offset=offset + len(data), end=end)
    return LogPiece(data=b"", next_offset=min(offset, end), end=end)


def cut_marker(missing: int) -> bytes:
    """What a reader sees in place of bytes that are gone."""
    return b"\n[cotenant: %d bytes of output were cut here to keep the log within its limit]\n" % missing
