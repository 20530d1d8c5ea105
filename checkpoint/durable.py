"""Files that are really there: hashed while written, forced to disk, read back and compared.

Rule: nothing is called durable before the bytes were flushed, the file was loaded again the way a resume
loads it, and every tensor in it was equal to the one in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch

from cotenant.checkpoint.fingerprint import bytes_of
from cotenant.checkpoint.layout import CheckpointError, FileEntry

_FLUSH_BYTES: Final = 256 * 2**20
"""Start forcing data to disk while the rest is still being written."""


class _HashingFile:
    """What torch.save writes into: one thread hashes a piece while another writes it."""

    def __init__(self, path: Path, on_first_write: Callable[[], object]) -> None:
        self.size_bytes = 0
        self._on_first_write = on_first_write
        self._sha256 = hashlib.sha256()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="cotenant-hash")
        self._flusher = ThreadPoolExecutor(1, thread_name_prefix="cotenant-flush")
        self._flushing: Future[None] | None = None
        self._flushed_bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        if self.size_bytes == 0:
            self._on_first_write()
        piece = memoryview(data).cast("B")
        # The memory belongs to the caller again when we return, so the hash must be done by then.
        hashing = self._hasher.submit(self._sha256.update, piece) if len(piece) > 2**16 else None
        if hashing is None:
            self._sha256.update(piece)
        try:
            written = 0
            while written < len(piece):
                written += os.write(self._fd, piece[written:])
        finally:
            if hashing is not None:
                hashing.result()
        self.size_bytes += len(piece)
        self._flush_ahead()
        return len(piece)

    def flush(self) -> None:
        """torch.save calls this; `finish` is what forces the data to disk."""

    def _flush_ahead(self) -> None:
        if self.size_bytes - self._flushed_bytes < _FLUSH_BYTES:
            return
        if self._flushing is None or self._flushing.done():
            self._flushed_bytes = self.size_bytes
            if self._flushing is not None:
                self._flushing.result()
            self._flushing = self._flusher.submit(os.fdatasync, self._fd)

    def sync(self) -> FileEntry:
        if self._flushing is not None:
            self._flushing.result()
        os.fsync(self._fd)
        return FileEntry(size_bytes=self.size_bytes, sha256=self._sha256.hexdigest())

    def close(self) -> None:
        self._flusher.shutdown()
        self._hasher.shutdown()
        os.close(self._fd)


def write_tensors(path: Path, tree: Any) -> FileEntry:
    """torch.save, durable and verified. Raises OSError (disk full, ...) or CheckpointError."""
    with _without_crc32() as restore:
        file = _HashingFile(path, on_first_write=restore)
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


def _save(tree: Any, file: _HashingFile) -> None:
    try:
        torch.save(tree, file)  # type: ignore[arg-type]
    except RuntimeError as error:  # torch hides the OSError of a failed write behind its own
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


@contextlib.contextmanager
def _without_crc32() -> Iterator[Callable[[], None]]:
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
    words = a.numel() * a.element_size() // 8
    whole = _words(a, words), _words(b, words)
    if words and not torch.equal(*whole):
        return False
    return bytes(bytes_of(a)[8 * words :]) == bytes(bytes_of(b)[8 * words :])


def _words(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` 8-byte words: comparing these is several times faster than comparing bytes."""
    if count == 0:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(bytes_of(tensor), dtype=torch.int64, count=count)
