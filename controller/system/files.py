"""Files that are there whole or not at all: a reader, also one after a crash, never finds half of one.

Rule: written beside, then renamed. A file of ours (`write_whole`) replaces whatever has its name, a link
too, and survives a power cut. What a person named (`output`) may be a link, which stays one, or no ordinary
file (`/dev/stdout`, a pipe), which is written to and never replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_whole(
    path: Path,
    data: bytes,
    *,
    mode: int = 0o600,
    durable: bool = True,
    owner: tuple[int, int] | None = None,
) -> None:
    """Replace a file of ours in one step. Without `durable` it survives a crash of ours, not of the machine.
    `owner`: the uid and gid that root gives it to.

    Raises:
        OSError: the file is as it was, or (only on the way to the disk) as it should be.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if owner is not None:
                os.fchown(descriptor, *owner)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    if durable:
        sync_folder(path.parent)


def put_in_place(beside: Path, path: Path) -> None:
    """Gives a complete file its name, so that it survives a power cut. Raises OSError."""
    descriptor = os.open(beside, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(beside, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_output(path: Path, data: bytes) -> None:
    """Writes a file whole, or leaves it as it was. Raises OSError."""
    with output(path) as beside:
        beside.write_bytes(data)


@contextmanager
def output(path: Path) -> Iterator[Path]:
    """Where to write what is to become `path` at the end of the block; after an error it is gone.

    Raises:
        OSError: it cannot be written.
    """
    path = path.resolve()  # a link stays one
    if path.exists() and not path.is_file():
        yield path
        return
    beside = path.with_name(f".{path.stem[:100]}.{os.getpid()}{path.suffix}")  # the end may say the format
    try:
        yield beside
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
