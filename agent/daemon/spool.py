"""The agent's memory on disk: an append-only file of notes that survives whatever kills the agent.

Rule: a note counts once `append` has returned: it is written and flushed. Reading back never fails on a
damaged file: each record carries a checksum, a torn end is cut off, a damaged record in the middle is
skipped and counted. The file is rewritten from the memory when it has grown to twice what it needs.

    header   8 bytes   b"ctspool" and the version
    record   12 bytes  b"\\xc7\\x0e", two zero bytes, length, crc32 of length and body; then the body
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from cotenant.agent.daemon.core.notes import AnyNote
from cotenant.agent.ipc.files import put_aside
from cotenant.controller.system.files import sync_folder, write_whole
from cotenant.controller.wire import BadMessage, pack, unpack

SPOOL_VERSION: Final = 1
NOTE_BYTES_MAX: Final = 1024 * 1024
COMPACT_ABOVE: Final = 1024 * 1024

_HEADER: Final = b"ctspool" + bytes([SPOOL_VERSION])
_MARK: Final = b"\xc7\x0e\x00\x00"
_HEAD: Final = struct.Struct("!4sII")


class SpoolProblem(Exception):
    """A spool that this program must not touch; one line with what to do."""


class Spool:
    """The file of one agent's notes. The caller holds the lock of the state folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        """Places in the file that could not be read."""
        self._file = -1
        self._size = 0
        self._base = COMPACT_ABOVE // 2
        """Size right after the last compaction."""

    def load(self) -> list[AnyNote]:
        """Every note that can be read, and the file open for more.

        Raises:
            SpoolProblem: written by a newer version, or not a spool.
            OSError: the file cannot be read or written.
        """
        data = self.path.read_bytes() if self.path.exists() else b""
        notes, good_end = self._parse(data)
        if self.damaged:  # Kept for a person to look at; the new file holds what could be read.
            put_aside(self.path)
            self.compact(notes)
            return notes
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if good_end < len(_HEADER):
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, _HEADER, 0)
            good_end = len(_HEADER)
        os.ftruncate(self._file, good_end)  # A torn end: the write that a crash interrupted.
        os.fsync(self._file)
        sync_folder(self.path.parent)
        self._size = good_end
        return notes

    def append(self, notes: Iterable[AnyNote]) -> None:
        """Writes and flushes notes; all of them or none.

        Raises:
            OSError: the disk is full or broken. The file is as before, and the same notes may be tried again.
        """
        data = b"".join(map(_record, notes))
        if not data:
            return
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._size + written)
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    @property
    def is_bloated(self) -> bool:
        return self._size > max(COMPACT_ABOVE, 2 * self._base)

    def compact(self, notes: Iterable[AnyNote]) -> None:
        """Replace the file by these notes, in one step.

        Raises:
            OSError: the disk is full or broken; the old file still counts.
        """
        data = _HEADER + b"".join(map(_record, notes))
        write_whole(self.path, data)
        fresh = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self.close()
        self._file, self._size, self._base = fresh, len(data), len(data)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _parse(self, data: bytes) -> tuple[list[AnyNote], int]:
        """The notes, and where the last good one ends."""
        if len(data) < len(_HEADER):
            return [], 0  # A crash while it was made.
        if data[:7] != _HEADER[:7]:  # Damaged, if what follows is ours.
            if len(data) > len(_HEADER) and next(_records(data), None) is None:
                raise SpoolProblem(
                    f"{self.path} is not an agent's spool: move it away, or use another --state-dir"
                )
            self.damaged += 1
        elif data[7] != SPOOL_VERSION:
            raise SpoolProblem(
                f"{self.path} has version {data[7]}, this cotenant reads {SPOOL_VERSION}: upgrade it here"
            )
        notes: list[AnyNote] = []
        good_end = len(_HEADER)
        for start, end, body in _records(data):
            self.damaged += start > good_end
            good_end = end
            try:
                notes.append(unpack(body, AnyNote))
            except BadMessage:  # Its checksum is right: a note of a version that knew more.
                self.damaged += 1
        return notes, good_end


def _record(note: AnyNote) -> bytes:
    body = pack(note)
    if len(body) > NOTE_BYTES_MAX:
        raise ValueError(f"a note of {len(body)} bytes is over the limit of {NOTE_BYTES_MAX}")
    return _HEAD.pack(_MARK, len(body), _checksum(body)) + body


def _checksum(body: bytes) -> int:
    return zlib.crc32(body, len(body))


def _records(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(start, end, body) of every record whose checksum is right."""
    at = len(_HEADER)
    while (at := data.find(_MARK, at)) >= 0 and at + _HEAD.size <= len(data):
        _, length, checksum = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + length
        body = data[at + _HEAD.size : end]
        if length <= NOTE_BYTES_MAX and end <= len(data) and _checksum(body) == checksum:
            yield at, end, body
            at = end
        else:
            at += 1
