"""Functions, their arguments and their results, as files: where they lie, and from where they may be
loaded.

Rule: to load a pickle is to run what is in it. So we load only an ordinary file of our own user that nobody
else can write, in folders of which the same holds, each opened from the one above without following a link. A
file is there whole or not at all. Standard library only: a job loads this as well."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, NamedTuple, cast

CALL_BYTES_MAX: Final = 1 << 30
"""A function, or the arguments of all its calls together."""
RESULT_BYTES_MAX: Final = 4 << 30
FUNCTION: Final = "function.pickle"
ARGUMENTS: Final = "arguments.pickle"
"""Of one call after the other."""
OFFSETS: Final = "offsets"
"""Where in it those of each call begin: eight bytes for each."""
OFFSET: Final = struct.Struct("<Q")
RESULT: Final = "result-{rank}.pickle"
ERROR: Final = "error-{rank}.pickle"
KEYED: Final = "key-"
VERSION: Final = 1
"""Of a result's file."""
KEPT_S: Final = 90 * 86_400.0
"""After a call's last result. What has none is kept for as long as a job may run, and half as long
again."""
UNFINISHED_S: Final = 550 * 86_400.0
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class CallPlace(NamedTuple):
    """The place where a call's results lie."""

    folder: Path
    each_rank: bool


ResultReference = tuple[str, CallPlace | None]
"""Stands for a job among the arguments of another: which it is, and its results; None: it is a command."""


class NotPrivate(OSError):
    """Somebody else could have written it: it is not loaded."""


class TooLarge(ValueError):
    """More than may be kept."""


def make(base: Path, payload: str = "") -> Path:
    """A fresh folder of one submission's, that nobody else can enter. Old ones go. `payload`: a hash of what
    will be in it, for `payload_in`."""
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_old(base, time.time())
    folder = base / (f"{KEYED}{secrets.token_hex(6)}{payload[:16]}" if payload else secrets.token_hex(16))
    folder.mkdir(mode=0o700)
    return folder


def payload_in(folder: Path) -> str:
    """Told by the name of a submission's folder; empty: it had no key."""
    return folder.name[-16:] if folder.name.startswith(KEYED) else ""


def remove_old(base: Path, now_s: float) -> None:
    """Removes the folders of calls whose last result is long past. Whatever stands in `base` that we did not
    make stays."""
    for folder in base.iterdir():
        if len(folder.name) == 32 and folder.is_dir() and not folder.is_symlink():
            with suppress(OSError):
                results = list(folder.glob("*/*.pickle"))
                last_s = max(each.stat().st_mtime for each in (folder, *results))
                if now_s - last_s > (KEPT_S if results else UNFINISHED_S):
                    shutil.rmtree(folder)


@contextmanager
def open_folder(path: Path | str, above: int | None = None) -> Iterator[int]:
    """Opens a folder and yields its descriptor. `above`: the open folder that it is in.

    Raises:
        NotPrivate: the folder is not one's own, or others can write in it.
        OSError: the folder is not there, or is a link.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(path, flags, dir_fd=above)
    try:
        _check(os.fstat(folder), str(path))
        yield folder
    finally:
        os.close(folder)


@contextmanager
def task_folder(path: Path, *, made: bool = False) -> Iterator[int]:
    """The folder of one call's results: `path` is in that of its submission, and we check both. `made`: make
    it if it is not there."""
    with open_folder(path.parent) as above:
        if made:
            with suppress(FileExistsError):
                os.mkdir(path.name, 0o700, dir_fd=above)
        with open_folder(path.name, above) as folder:
            yield folder


@contextmanager
def reading(folder: int, name: str, bytes_max: int) -> Iterator[IO[bytes]]:
    """Raises NotPrivate, TooLarge, OSError."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotPrivate(f"{name} is no ordinary file")
        _check(found, name)
        if found.st_size > bytes_max:
            raise TooLarge(f"{name} takes {found.st_size} bytes, and {bytes_max} are possible")
        yield file


@contextmanager
def writing(folder: int, name: str, bytes_max: int) -> Iterator[IO[bytes]]:
    """What is written becomes `name` at the end of the block, for this user alone; after an error, nothing.

    Raises:
        TooLarge: in the block, where it becomes too much.
        OSError: it cannot be written.
    """
    beside = f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield cast("IO[bytes]", _Bounded(file, name, bytes_max))
            file.flush()
            os.fsync(descriptor)
        os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        raise


class _Bounded:
    """A file that takes so many bytes."""

    def __init__(self, file: IO[bytes], name: str, bytes_max: int) -> None:
        self._file = file
        self._name = name
        self._bytes_max = bytes_max
        self._left = bytes_max
        self.tell = file.tell

    def write(self, data: bytes) -> int:
        size = memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            raise TooLarge(f"{self._name.partition('.')[0]} takes more than {self._bytes_max} bytes")
        self._file.write(data)
        return size


def _check(found: os.stat_result, name: str) -> None:
    if found.st_uid != os.getuid():
        raise NotPrivate(f"{name} belongs to uid {found.st_uid}, not to you: it is not loaded")
    if found.st_mode & _OTHERS:
        raise NotPrivate(f"{name} can be written by others: it is not loaded")
