"""A rank's output: raw bytes, bounded on disk, addressed by their place in the whole stream.

Rule: an offset counts the bytes that the rank ever wrote, also those that were cut, so a reader that
follows never needs to know how the log is kept. The first half of the limit is kept for good; of the
rest the newest part, in segments that are named by the offset of their first byte:

    rank-0.log                      from 0, at most half of the limit
    rank-0.log.0000000033554432     the two newest segments, at most a quarter of the limit each

A reader that asks for something in between gets a marker that says how much is missing.

Where standard error is kept apart, `rank-0.errors` has the start and end of each of its spans in the
stream, so readers that do not ask for it see one log as ever.
"""

from __future__ import annotations

import errno
import os
import sys
from array import array
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

TAIL_SEGMENTS: Final = 2
_OFFSET_DIGITS: Final = 16
SPANS_MAX: Final = 65_536
"""Of standard error, in one log. What is written after them counts as output."""
_SPAN_BYTES: Final = 16


def log_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


def errors_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.errors"


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a log. `next_offset` need not be offset + len(data): a marker stands for what was cut."""

    data: bytes
    next_offset: int
    end: int
    """The offset after the last byte that is there now."""
    is_error: bool = False
    """It was written to standard error. Said only to those who ask."""


class LogWriter:
    """Writes one rank's log. Creates the files for their owner (mode 0600) and keeps to the limit."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        bytes_max: int,
        owner: tuple[int, int] | None = None,
        *,
        spans_max: int = SPANS_MAX,
    ) -> None:
        self._path = log_path(folder, rank)
        self._head_max = max(1, bytes_max // 2)
        self._segment_max = max(1, bytes_max // (2 * TAIL_SEGMENTS))
        self._errors_path = errors_path(folder, rank)
        self._errors = -1
        self._spans, self._spans_max = 0, spans_max
        self._span = (0, 0)
        self._owner = owner
        self._end = 0
        self._room = self._head_max
        self._segments: list[Path] = []
        self._file = self._create(self._path)
        self.lost_bytes = 0
        """Of those written, what the disk refused."""

    @property
    def end(self) -> int:
        """Bytes written so far, in all."""
        return self._end

    def write(self, data: bytes, *, is_error: bool = False) -> None:
        """Appends data to the log.

        Raises:
            OSError: the disk is full; the bytes are lost, but they are counted, so a reader sees the gap.
        """
        if is_error:
            with suppress(OSError):  # Then it counts as output: that is no reason to lose it.
                self._mark_errors(self._end, self._end + len(data))
        view, end = memoryview(data), self._end + len(data)
        try:
            while view:
                if self._room == 0:
                    self._next_segment()
                view = view[self._write_piece(view[: self._room]) :]
        except OSError:
            self.lost_bytes += len(view)
            self._end = end
            self._room = 0  # What comes next starts a file of its own, whose name says where it belongs.
            self._remove_empty_segment()
            raise

    def _mark_errors(self, start: int, end: int) -> None:
        """Standard error is in this part of the stream: another span, or more of the one before."""
        if self._errors < 0:
            self._errors = self._create(self._errors_path)
        if self._spans and self._span[1] == start:
            start = self._span[0]
        elif self._spans == self._spans_max:
            return
        else:
            self._spans += 1
        self._span = (start, end)
        os.pwrite(self._errors, array("Q", self._span).tobytes(), (self._spans - 1) * _SPAN_BYTES)

    def close(self) -> None:
        os.close(self._file)
        if self._errors >= 0:
            os.close(self._errors)

    def _write_piece(self, piece: memoryview) -> int:
        """How much of it is written: a disk that fills takes a part, and the next part not at all."""
        written = os.write(self._file, piece)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._room -= written
        self._end += written
        return written

    def _remove_empty_segment(self) -> None:
        """What a full disk leaves of a new segment must not push out older ones."""
        with suppress(OSError):
            found = os.fstat(self._file)
            if self._segments and found.st_size == 0 and found.st_nlink:
                self._segments.pop().unlink()

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
        appends = os.O_APPEND if path != self._errors_path else 0
        file = os.open(path, os.O_WRONLY | os.O_CREAT | appends | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if self._owner is not None:
            os.fchown(file, *self._owner)
        return file


def read_log(
    folder: Path, rank: int, offset: int, limit: int, *, errors_apart: bool = False
) -> LogPiece | None:
    """Returns at most `limit` bytes from `offset` on (negative: counted from the end); None if there is no
    log.

    A gap (cut bytes) is answered by its marker alone, and the next call goes on behind it. `errors_apart`: a
    piece has standard error or output, never both.
    """
    if errors_apart:
        is_error, until = _span_at(errors_path(folder, rank), offset)
        piece = read_log(folder, rank, offset, min(limit, until - offset))
        return None if piece is None else msgspec.structs.replace(piece, is_error=is_error)
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


def _span_at(path: Path, offset: int) -> tuple[bool, int]:
    """Whether standard error is at this offset of the stream, and where that changes."""
    bounds = array("Q")
    try:
        with open(path, "rb") as file:
            data = file.read(SPANS_MAX * _SPAN_BYTES)
    except FileNotFoundError:
        data = b""
    bounds.frombytes(data[: len(data) // _SPAN_BYTES * _SPAN_BYTES])
    passed = bisect_right(bounds, offset)
    return passed % 2 == 1, bounds[passed] if passed < len(bounds) else sys.maxsize


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
    """What a reader sees in place of bytes that are gone. Those that a disk refused are told at the log's end
    as well."""
    why = b"cut to keep the log within its limit, or lost while its disk was full"
    return b"\n[cotenant: %d bytes of output are missing here: %b]\n" % (missing, why)
