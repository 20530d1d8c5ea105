"""Files into which old entries of a journal go: their format.

Rule: a file appears whole, and only after it was read back from the disk. Readers check every entry of it,
and that none is missing.
"""

from __future__ import annotations

import lzma
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.store.database import JournalDamaged, checksum
from cotenant.controller.system.files import put_in_place
from cotenant.controller.wire import BadMessage, unpack_struct

ARCHIVED: Final = "archived"
"""Key in `meta`: the last entry that has left the journal, and the folder of the files."""
PRESET: Final = 2
FRAME_BYTES_MAX: Final = 1 << 30
_FORMAT: Final = "cotenant journal 1"
_NAME: Final = re.compile(r"journal-(\d+)-(\d+)\.xz")
UNFINISHED: Final = ".journal-archive.new"


class ArchivedEntry(NamedTuple):
    """An entry as its row in the journal is."""

    seq: int
    now_s: float
    wall_s: float
    event: bytes
    decision: bytes
    commands: bytes
    crc: int


class Archive(NamedTuple):
    """A file with the entries from one number to another."""

    path: Path
    first_seq: int
    last_seq: int


class _Head(msgspec.Struct, array_like=True):
    format: str
    journal: str
    """The journal's name."""
    first_seq: int


class _Tail(msgspec.Struct, array_like=True):
    last_seq: int
    crc: int
    """Over the checksums of all entries."""


# --- Files -----------------------------------------------------------------------------------------


def list_archives(folder: Path) -> list[Archive]:
    """The finished files in a folder, by their first entry."""
    found = [(each, _NAME.fullmatch(each.name)) for each in folder.glob("journal-*.xz")]
    return sorted(
        (Archive(path, int(match[1]), int(match[2])) for path, match in found if match),
        key=lambda archive: (archive.first_seq, archive.last_seq),
    )


def find_archive(folders: Sequence[Path], seq: int) -> Archive | None:
    """The file with an entry, in one of these folders; None: there is none."""
    files = (archive for folder in folders for archive in list_archives(folder))
    return next((each for each in files if each.first_seq <= seq <= each.last_seq), None)


def write_archive(folder: Path, journal: str, entries: Iterable[ArchivedEntry]) -> Archive:
    """Writes a file of these entries, of which there is at least one; it appears whole or not at all.

    Raises:
        OSError: the disk is full, for example.
    """
    fresh, first_seq, last_seq, crc = folder / UNFINISHED, 0, 0, 0
    encode = msgspec.msgpack.Encoder().encode
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    with lzma.open(fresh, "wb", preset=PRESET) as file:
        for entry in entries:
            if not first_seq:
                first_seq = entry.seq
                _put(file, encode(_Head(_FORMAT, journal, first_seq)))
            _put(file, encode(entry))
            last_seq, crc = entry.seq, zlib.crc32(entry.crc.to_bytes(4), crc)
        _put(file, b"")
        _put(file, encode(_Tail(last_seq, crc)))
    archive = Archive(folder / f"journal-{first_seq:010}-{last_seq:010}.xz", first_seq, last_seq)
    for _ in read_archive(archive, journal, path=fresh):
        pass
    put_in_place(fresh, archive.path)
    return archive


def read_archive(
    archive: Archive, journal: str, *, after: int = 0, path: Path | None = None
) -> Iterator[ArchivedEntry]:
    """The entries of a file whose numbers are above `after`; every one of the file is checked on the way.

    Raises:
        JournalDamaged: it is of another journal, cut short, or was changed; the text names the entry.
    """
    expected, crc = archive.first_seq, 0
    try:
        with lzma.open(path or archive.path, "rb") as file:
            head = unpack_struct(_take(file), _Head)
            if (head.format, head.journal, head.first_seq) != (_FORMAT, journal, expected):
                raise _damage(archive, f"it is of another journal ({head.journal}), or of another version")
            while frame := _take(file):
                entry = unpack_struct(frame, ArchivedEntry)
                sum_ = checksum(entry.now_s, entry.event, entry.decision, entry.commands)
                if entry.seq != expected or sum_ != entry.crc:
                    raise _damage(archive, f"entry {expected} is missing or was changed")
                expected, crc = expected + 1, zlib.crc32(entry.crc.to_bytes(4), crc)
                if entry.seq > after:
                    yield entry
            tail = unpack_struct(_take(file), _Tail)
            if file.read(1):  # It looks at the end of the file, too.
                raise EOFError("something follows the end")
    except (lzma.LZMAError, EOFError, BadMessage, OSError) as error:
        raise _damage(archive, f"entry {expected} cannot be read: {error}") from None
    if (tail.last_seq, tail.crc) != (archive.last_seq, crc) or expected != archive.last_seq + 1:
        raise _damage(archive, f"it ends with entry {expected - 1}")


def _put(file: lzma.LZMAFile, data: bytes) -> None:
    file.write(len(data).to_bytes(4))
    file.write(data)


def _take(file: lzma.LZMAFile) -> bytes:
    size = int.from_bytes(_read(file, 4))
    if size > FRAME_BYTES_MAX:
        raise EOFError("not an archive")
    return _read(file, size)


def _read(file: lzma.LZMAFile, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise EOFError("it is cut short")
    return data


def _damage(archive: Archive, what: str) -> JournalDamaged:
    return JournalDamaged(f"{archive.path}: {what}. Nothing was changed. Restore the file from a backup")
