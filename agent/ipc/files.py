"""Records on disk: what daemon and supervisor write down for each other; and a job's secrets, which are never
there, but in memory that both have open.

Rule: a record is there whole or not at all, and carries a version: we refuse a record of another version
and say what to upgrade.

Rule: no disk of a host ever holds a secret. The supervisor keeps them in its memory and puts them into the
environment of the processes that it starts; they are gone with the last of these. An attempt starts once, so
nobody needs them again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cotenant.agent.ipc.records import RECORD_VERSION, Order
from cotenant.controller.system.files import write_whole
from cotenant.controller.wire import BadMessage, decode_json

T = TypeVar("T")

RECORD_BYTES_MAX = 4 * 1024 * 1024
ASIDE_MAX = 100
"""Damaged files of one name that are kept; from then on the last is replaced."""


class BadRecord(ValueError):
    """A file that cannot be used; the text says which, why and what to do."""


class DamagedRecord(BadRecord):
    """What is in it is no record of any version."""


def write_record(path: Path, record: msgspec.Struct, *, mode: int = 0o600, durable: bool = True) -> None:
    """A record as JSON, readable for a person who looks into the folder."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(record)) + b"\n", mode=mode, durable=durable)


def read_record(path: Path, kind: type[T]) -> T | None:
    """The record in a file; None if there is no such file.

    Raises:
        BadRecord: damaged, too large, or of another version.
    """
    try:
        with path.open("rb") as file:
            data = file.read(RECORD_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    if len(data) > RECORD_BYTES_MAX:
        raise DamagedRecord(f"{path}: larger than {RECORD_BYTES_MAX} bytes")
    try:
        versioned: _Versioned = decode_json(data, _Versioned)
        if versioned.version != RECORD_VERSION:
            raise BadRecord(
                f"{path}: has version {versioned.version}, this cotenant reads {RECORD_VERSION}: upgrade it"
            )
        record: T = decode_json(data, kind)
    except BadMessage as error:
        raise DamagedRecord(f"{path}: not a valid {kind.__name__}: {error}") from None
    return record


def read_or_put_aside(path: Path, kind: type[T], say: Callable[[str], None]) -> T | None:
    """The record in a file of ours; None if there is none that can be used, and `say` was told why.

    We put a damaged one aside under a name that says so: it does not stand in the way of a new one, and a
    person can look at it. One of another version stays: what wrote it can read it.
    """
    try:
        return read_record(path, kind)
    except DamagedRecord as error:
        aside = put_aside(path)
        say(f"{error}; it is {aside.name} now" if aside is not None else str(error))
    except (BadRecord, OSError) as error:
        say(f"cannot use {path}: {error}")
    return None


def put_aside(path: Path) -> Path | None:
    """The new name of a damaged file, `NAME.damaged-N` with the first N that is free; None: it cannot be
    renamed."""
    for number in range(1, ASIDE_MAX + 1):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if number < ASIDE_MAX and aside.exists():
            continue
        try:
            os.replace(path, aside)
        except OSError:
            return None
        return aside
    raise AssertionError("unreachable: the last name is used again")


class _Versioned(msgspec.Struct):
    version: int


# --- Secrets ---------------------------------------------------------------------------------------


BYTES_MAX: Final = 2 * 1024 * 1024
"""Escaped as JSON, they may be longer than what a submission may hold."""


def strip_secrets(order: Order) -> Order:
    """What may be written to disk."""
    return msgspec.structs.replace(order, secrets={})


def kept_in_memory(secrets: Mapping[str, str]) -> int:
    """A descriptor for a child to read them from. The caller closes its copy. Raises OSError."""
    file = os.memfd_create("secrets", os.MFD_CLOEXEC)
    try:
        os.pwrite(file, msgspec.json.encode(dict(secrets)), 0)
    except OSError:
        os.close(file)
        raise
    return file


def take_secrets(order: Order, file: int) -> Order:
    """The order with the secrets of this descriptor, which is closed.

    Raises:
        OSError: it is no descriptor of ours.
        BadMessage: what is in it is not ours.
    """
    try:
        data = os.pread(file, BYTES_MAX + 1, 0)
    finally:
        os.close(file)
    return msgspec.structs.replace(order, secrets=decode_json(data, dict[str, str], bytes_max=BYTES_MAX))
