"""Copies of a folder in which a command is tried, and what it has left there.

Rule: small files are copied and folders made anew; what is too large to copy (a data set) is linked, and that
is said. All copies of one trial are made in one place, one after the other: a path that the command writes
into a file is the same each time.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from cotenant.controller.cli.jobs.contents import parts_of

COPIED_MIB_MAX: Final = 1024
ENTRIES_MAX: Final = 1000
"""A folder with more is linked as a whole."""
LINKED: Final = frozenset((".git", ".venv", "venv", "node_modules", "__pycache__"))
"""Folders that hold no results of the command."""
FilesLeft = dict[str, dict[str, str]]
"""Each file's path, with the values in it as `parts_of` has them."""
_DIGITS: Final = re.compile(r"[0-9]+")


class Scratch:
    """Makes copies of a folder; each call of `make` gives a fresh one, and puts the one before away."""

    def __init__(self, source: Path, place: Path, copied_mib_max: int = COPIED_MIB_MAX) -> None:
        self._source = source.resolve()
        self._place = place
        self._copied_bytes_max = copied_mib_max << 20
        self.linked: list[str] = []
        """What is linked, not copied: writing there changes the original."""

    def make(self) -> Path:
        """Makes a fresh copy of the folder; what lies beside the original (`../data`) is linked beside it."""
        above = self._place / "here"
        shutil.rmtree(above, ignore_errors=True)
        above.mkdir()
        source = self._source
        for entry in _entries(source.parent):
            if entry.name != source.name:
                (above / entry.name).symlink_to(entry.path)
        self.linked = []
        self._left_bytes = self._copied_bytes_max
        self._copy = above / (source.name or "here")
        self._mirror(source, self._copy)
        return self._copy

    def files_left(self) -> FilesLeft:
        """What a command has made or changed in the newest copy."""
        found = {}
        for path in sorted(_files_in(self._copy)):
            name = path.relative_to(self._copy)
            if not _is_as_in(self._source / name, path):
                found[str(name)] = parts_of(path)
        return found

    def _mirror(self, source: Path, target: Path) -> None:
        target.mkdir()
        for entry in sorted(_entries(source), key=lambda entry: entry.name):
            self._one(entry, target / entry.name)

    def _one(self, entry: os.DirEntry[str], target: Path) -> None:
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False) and entry.name not in LINKED and _is_small(path):
            self._mirror(path, target)
            return
        size = entry.stat(follow_symlinks=False).st_size
        if entry.is_file(follow_symlinks=False) and size <= self._left_bytes:
            self._left_bytes -= size
            shutil.copy2(path, target)
            return
        target.symlink_to(path.resolve())
        if entry.name not in LINKED and not entry.is_symlink():
            self.linked.append(str(path.relative_to(self._source)))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """None of one that may not be read, or has too many."""
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:
        return []
    return entries if len(entries) <= ENTRIES_MAX else []


def _is_small(folder: Path) -> bool:
    try:
        with os.scandir(folder) as found:
            return sum(1 for _ in found) <= ENTRIES_MAX
    except OSError:
        return False


def _files_in(folder: Path) -> Iterator[Path]:
    """No links, and nothing that Python has compiled."""
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False) and entry.name not in LINKED:
            yield from _files_in(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            yield Path(entry.path)


def _is_as_in(source: Path, copy: Path) -> bool:
    """Whether a copied file was not written since."""
    try:
        then, now = source.stat(), copy.stat()
    except OSError:
        return False
    return (then.st_size, then.st_mtime_ns) == (now.st_size, now.st_mtime_ns)


def unequal(left: FilesLeft, right: FilesLeft) -> list[str]:
    """The files that only one of two runs has left, or that differ."""
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


def is_alike_any(name: str, names: Collection[str]) -> bool:
    """Whether a file is one of these, or is called like one but for its numbers (the time, a process)."""
    return _DIGITS.sub("0", name) in {_DIGITS.sub("0", each) for each in names}
