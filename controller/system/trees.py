"""Packed trees (`--snapshot`) as files: those that a controller keeps for users, or that a host has fetched.

Rule: a tree belongs to the user who uploaded it, and is kept apart from an equal one of another user: to know
a SHA-256 gives nobody a tree. It counts once all of it has come, is what its SHA-256 says and is durable.

    <folder>/of-<user>/<sha256>        complete; its time is when it was last needed
    <folder>/of-<user>/<sha256>.part   what has come so far
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from cotenant.controller.system.files import put_in_place

PART: Final = ".part"
GRACE_S: Final = 600.0
"""A tree that was needed so lately may be about to be submitted."""
PART_KEPT_S: Final = 86_400.0
_SHA256: Final = re.compile("[0-9a-f]{64}")

TreeKey = tuple[str, str]
"""User and SHA-256."""


class KeptTree(NamedTuple):
    key: TreeKey
    bytes: int
    used_s: float
    path: Path

    @property
    def is_complete(self) -> bool:
        return self.path.suffix != PART


def list_surplus(
    kept: Iterable[KeptTree], needed: Collection[TreeKey], now_s: float, keep_s: float
) -> list[KeptTree]:
    """The trees that may go: no unended job names them, and none has for so long. Pure."""
    limits_s = ((each, keep_s if each.is_complete else PART_KEPT_S) for each in kept)
    return [each for each, most_s in limits_s if each.key not in needed and now_s - each.used_s > most_s]


def make_room(
    kept: Iterable[KeptTree], needed: Collection[TreeKey], now_s: float, over_bytes: int
) -> list[KeptTree]:
    """The trees that go so that all fit, the longest unused first; none that is needed, or was lately.
    `over_bytes`: what is to fit beside them, less the room for all. Pure."""
    kept = sorted(kept, key=lambda each: (each.used_s, each.key))
    over_bytes += sum(each.bytes for each in kept)
    gone = []
    for each in kept:
        if over_bytes > 0 and each.key not in needed and now_s - each.used_s > GRACE_S:
            gone.append(each)
            over_bytes -= each.bytes
    return gone


class TreeFiles:
    """A folder of packed trees, which need not be there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: TreeKey) -> Path:
        """Raises ValueError: not a SHA-256."""
        user, sha256 = key
        if not _SHA256.fullmatch(sha256):
            raise ValueError("a snapshot is named by its SHA-256")
        return self.folder / f"of-{quote(user, safe='')}" / sha256

    def find(self, key: TreeKey) -> tuple[int, bool]:
        """How many bytes have come, and whether the tree is complete, which notes its use."""
        path = self.path(key)
        with suppress(FileNotFoundError):
            os.utime(path)
            return path.stat().st_size, True
        with suppress(FileNotFoundError):
            return path.with_suffix(PART).stat().st_size, False
        return 0, False

    def append(self, key: TreeKey, offset: int, data: bytes) -> None:
        """Adds the part that begins where the others end. Raises OSError."""
        path = self.path(key).with_suffix(PART)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.seek(offset)
            file.write(data)

    def finish(self, key: TreeKey) -> None:
        """Checks what has come: from then on it is complete, or gone if it is not what it should be. Raises
        OSError."""
        path = self.path(key)
        part = path.with_suffix(PART)
        with part.open("rb") as file:
            is_right = hashlib.file_digest(file, "sha256").hexdigest() == key[1]
        if is_right:
            put_in_place(part, path)
        else:
            part.unlink()

    def read(self, key: TreeKey, offset: int, limit: int) -> bytes:
        """A part of a complete tree. Raises OSError: there is none."""
        with self.path(key).open("rb") as file:
            file.seek(offset)
            return file.read(limit)

    def list_kept(self, user: str | None = None) -> Iterator[KeptTree]:
        """All of one user, or of everybody."""
        for path in self.folder.glob(f"of-{'*' if user is None else quote(user, safe='')}/*"):
            with suppress(FileNotFoundError):
                found = path.stat()
                key = (unquote(path.parent.name.removeprefix("of-")), path.stem)
                yield KeptTree(key, found.st_size, found.st_mtime, path)
