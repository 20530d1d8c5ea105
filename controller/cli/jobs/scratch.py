"""A folder that looks like the present one, for trials of a command that may write into it.

Rule: what the command writes must not reach the original, nor what it finds there later. So it copies files
and makes folders anew. It links what is too large to copy (a data set), and says so.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

COPIED_MIB_MAX: Final = 1024
ENTRIES_MAX: Final = 1000
"""A folder with more is linked as a whole."""
LINKED: Final = frozenset((".git", ".venv", "venv", "node_modules", "__pycache__"))
"""Folders that hold no results of the command."""


class Scratch:
    """Makes copies of a folder; each call of `make` gives a fresh one."""

    def __init__(self, source: Path, place: Path, copied_mib_max: int = COPIED_MIB_MAX) -> None:
        self._source = source.resolve()
        self._place = place
        self._copied_bytes_max = copied_mib_max << 20
        self.linked: list[str] = []
        """What is linked, not copied: writing there changes the original."""

    def make(self, name: str) -> Path:
        """A fresh copy; what lies beside the original (`../data`) is linked beside it."""
        above = self._place / name
        above.mkdir()
        source = self._source
        for entry in _entries(source.parent):
            if entry.name != source.name:
                (above / entry.name).symlink_to(entry.path)
        self.linked = []
        self._left_bytes = self._copied_bytes_max
        target = above / (source.name or "here")
        self._mirror(source, target)
        return target

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
