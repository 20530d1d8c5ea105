"""Writing files that are either there as a whole or not at all.

Rule: temporary name, write, fsync, rename, fsync of the folder. What was renamed survives a power cut;
what was not is swept away by the next start. Records carry a version: this one and the one before are
read, a newer one is refused with what to upgrade.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from cotenant.agent.records import RECORD_VERSION

T = TypeVar("T")

RECORD_BYTES_MAX = 4 * 1024 * 1024


class BadRecord(ValueError):
    """A file that cannot be used; the text says which, why and what to do."""


def write_whole(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace a file in one step. Without `durable` it survives a crash of ours, not of the machine."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
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


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_record(path: Path, record: msgspec.Struct, *, mode: int = 0o600, durable: bool = True) -> None:
    """A record as JSON, readable for a person who looks into the folder."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(record)) + b"\n", mode=mode, durable=durable)


def read_record(path: Path, kind: type[T]) -> T | None:
    """The record in a file; None if there is no such file.

    Raises:
        BadRecord: damaged, too large, or written by a newer version.
    """
    try:
        with path.open("rb") as file:
            data = file.read(RECORD_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    if len(data) > RECORD_BYTES_MAX:
        raise BadRecord(f"{path}: larger than {RECORD_BYTES_MAX} bytes")
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if not RECORD_VERSION - 1 <= version <= RECORD_VERSION or version < 1:
            raise BadRecord(
                f"{path}: has version {version}, this cotenant reads {RECORD_VERSION}: upgrade it"
            )
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:  # Also its subclass ValidationError.
        raise BadRecord(f"{path}: not a valid {kind.__name__}: {error}") from None


class _Versioned(msgspec.Struct):
    version: int
