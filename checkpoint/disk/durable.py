"""Files that are really there: hashed while written, forced to disk, read back and compared.

Rule: a file is durable only when its bytes are flushed, it was loaded again as a resume loads it, and every
tensor in it equals the one in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch

from cotenant.checkpoint.disk import memory
from cotenant.checkpoint.disk.layout import CheckpointError, FileEntry

_FLUSH_BYTES: Final = 256 * 2**20
"""Start forcing data to disk while the rest is still being written."""
_PIECE_BYTES: Final = 4 * 2**20


class _HashedFile:
    """The file that torch.save writes into. One thread follows the writer and hashes what the file really
    holds, another begins to force it to disk; the writer waits for neither."""

    def __init__(self, path: Path, on_first_write: Callable[[], object]) -> None:
        self.size_bytes = 0
        self._on_first_write = on_first_write
        self._written = threading.Condition()
        self._complete = False
        self._flushed_bytes = 0
        self._flushing: Future[None] | None = None
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="cotenant-file")
        self._hashing = self._threads.submit(self._hash)

    def write(self, data: bytes | memoryview) -> int:
        if self.size_bytes == 0:
            self._on_first_write()
        piece = memoryview(data).cast("B")
        for start in range(0, len(piece), _PIECE_BYTES):
            self._write_all(piece[start : start + _PIECE_BYTES])
        return len(piece)

    def flush(self) -> None:
        """Does nothing, though torch.save calls it; `sync` is what forces the data to disk."""

    def sync(self) -> FileEntry:
        """Forces the file, which is all written, to disk and says what it is."""
        with self._written:
            self._complete = True
            self._written.notify()
        if self._flushing is not None:
            self._flushing.result()
        os.fsync(self._fd)
        return FileEntry(size_bytes=self.size_bytes, sha256=self._hashing.result())

    def close(self) -> None:
        with self._written:
            self._complete = True
            self._written.notify()
        self._threads.shutdown()
        os.close(self._fd)

    def _write_all(self, piece: memoryview) -> None:
        done = 0
        while done < len(piece):
            done += os.write(self._fd, piece[done:])
        with self._written:
            self.size_bytes += len(piece)
            self._written.notify()
        if self.size_bytes - self._flushed_bytes >= _FLUSH_BYTES:
            self._flush_ahead()

    def _flush_ahead(self) -> None:
        if self._flushing is not None and not self._flushing.done():
            return
        if self._flushing is not None:
            self._flushing.result()
        self._flushed_bytes = self.size_bytes
        self._flushing = self._threads.submit(os.fdatasync, self._fd)

    def _hash(self) -> str:
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(_PIECE_BYTES))
        position = 0
        while True:
            with self._written:
                while self.size_bytes == position and not self._complete:
                    self._written.wait()
                ahead = self.size_bytes - position
            if not ahead:
                return digest.hexdigest()
            count = os.preadv(self._fd, [buffer[: min(ahead, _PIECE_BYTES)]], position)
            if not count:
                return "the file is shorter than what was written"
            digest.update(buffer[:count])
            position += count


def write_tensors(path: Path, tree: Any) -> FileEntry:
    """torch.save, durable and verified. Raises OSError (disk full, ...) or CheckpointError."""
    with _disable_crc32() as restore:
        file = _HashedFile(path, on_first_write=restore)
        try:
            _save(tree, file)
            with ThreadPoolExecutor(1, thread_name_prefix="cotenant-sync") as pool:
                syncing = pool.submit(file.sync)
                try:
                    difference = first_difference(tree, load_tensors(path))
                finally:
                    entry = syncing.result()
        finally:
            file.close()
    if difference is not None:
        raise CheckpointError(f"{path} read back differs from memory at {difference}: suspect disk or memory")
    return entry


def _save(tree: Any, file: _HashedFile) -> None:
    try:
        torch.save(tree, file)  # type: ignore[arg-type]
    except RuntimeError as error:  # torch hides the OSError of a failed write behind its own
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


@contextlib.contextmanager
def _disable_crc32() -> Iterator[Callable[[], None]]:
    """Leave out torch's own checksums (a fifth of the time; sha256 does better).

    The option is global and read when torch.save begins, so it is put back with the first write: the
    script's own saves keep theirs.
    """
    swap = getattr(torch.serialization, "set_crc32_options", None)  # torch >= 2.6
    if swap is None or not torch.serialization.get_crc32_options():
        yield lambda: None
        return
    swap(False)
    try:
        yield lambda: swap(True)
    finally:
        swap(True)


def load_tensors(path: Path) -> Any:
    """The tree in a file written by `write_tensors`, tensors mapped from it. Runs no code from the file."""
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def write_bytes(path: Path, data: bytes) -> FileEntry:
    """A small file, complete or not there at all."""
    temporary = path.with_name(path.name + ".part")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        written = 0
        while written < len(data):
            written += os.write(fd, data[written:])
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    return FileEntry(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def write_json(path: Path, content: Any) -> FileEntry:
    return write_bytes(path, json.dumps(content, sort_keys=True).encode())


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def first_difference(left: Any, right: Any, path: str = "") -> str | None:
    """The path of the first place where two trees are not the same, bit for bit."""
    pending: list[tuple[str, Any, Any]] = [(path, left, right)]
    while pending:
        where, a, b = pending.pop()
        if isinstance(a, torch.Tensor):
            if not isinstance(b, torch.Tensor) or not _same_bits(a, b):
                return where
        elif isinstance(a, dict):
            if not isinstance(b, dict) or list(a) != list(b):
                return where
            pending.extend((f"{where}.{key}", a[key], b[key]) for key in a)
        elif isinstance(a, (list, tuple)):
            if not isinstance(b, (list, tuple)) or len(a) != len(b):
                return where
            pending.extend((f"{where}[{i}]", x, y) for i, (x, y) in enumerate(zip(a, b)))
        elif a != b and not (a != a and b != b):  # NaN equals NaN here
            return where
    return None


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = a.cpu().contiguous(), b.contiguous()
    size_bytes = a.numel() * a.element_size()
    return size_bytes == 0 or memory.compare(a.data_ptr(), b.data_ptr(), size_bytes) == 0
