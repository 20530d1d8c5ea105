"""Unpacks a tree (`--snapshot`) for a job.

Rule: a packed tree is somebody else's file. It is unpacked in a folder that nobody but us can enter, only as
files, folders and links with names below it, and nothing is written through a link; then the whole is given
to the job's user and gets its name in one step.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import Final

ENTRIES_MAX: Final = 100_000
TREES: Final = "trees"
"""Beside the attempts, in the state folder: `packed/` as it came, `work/` with a copy for each job."""
STAGING: Final = ".unpacking-"
_KINDS: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE)


class BadTree(Exception):
    """A packed tree that cannot be unpacked; one line why."""


class EntryChecks:
    """What may be unpacked next, by what was unpacked before. Pure."""

    def __init__(self, bytes_max: int, entries_max: int = ENTRIES_MAX) -> None:
        self._bytes_left, self._entries_left = bytes_max, entries_max
        self._is_folder: dict[str, bool] = {}

    def check(self, entry: tarfile.TarInfo) -> None:
        """Raises BadTree: the entry must not be unpacked."""
        if why := self._refusal(entry, entry.name.split("/")):
            raise BadTree(f"{entry.name[:200]!r} in the snapshot {why}")

    def _refusal(self, entry: tarfile.TarInfo, parts: list[str]) -> str:
        parents = ["/".join(parts[:at]) for at in range(1, len(parts))]
        self._bytes_left -= entry.size
        self._entries_left -= 1
        if entry.type not in _KINDS or entry.issparse():
            return "is no file, folder or link"
        if not {"", ".", ".."}.isdisjoint(parts) or "\0" in entry.name:
            return "has a name that leads elsewhere"
        if entry.size < 0 or self._bytes_left < 0 or self._entries_left < 0:
            return "is more than was announced"
        if not all(self._is_folder.get(each, True) for each in parents):
            return "lies below something that is no folder"
        if entry.name in self._is_folder and not (entry.isdir() and self._is_folder[entry.name]):
            return "is there twice"
        if entry.issym() and _leads_out(entry.name, entry.linkname):
            return f"is a link to {entry.linkname[:200]!r}, outside of the tree"
        self._is_folder.update(dict.fromkeys(parents, True) | {entry.name: entry.isdir()})
        return ""


def _leads_out(name: str, target: str) -> bool:
    """Whether a relative link leads out of the tree. An absolute one is a place on this host, as a path in a
    script is: we never follow it."""
    if not target or "\0" in target:
        return True
    inside = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return not os.path.isabs(target) and inside.split("/")[0] == ".."


def unpack_tree(
    packed: Path, folder: Path, bytes_max: int, subfolder: str = "", owner: tuple[int, int] | None = None
) -> None:
    """Unpacks a tree; `folder` is there with all of it or not at all. `subfolder`: made if the tree lacks it.
    `owner`: uid and gid that root gives it to.

    Raises:
        BadTree: there is something in it that must not be.
        OSError: it cannot be written.
    """
    staging = folder.with_name(f"{STAGING}{os.urandom(6).hex()}")
    staging.mkdir(mode=0o700)
    top = staging / "tree"
    try:
        top.mkdir(mode=0o700)
        _unpack(packed, top, EntryChecks(bytes_max), subfolder)
        if owner is not None:
            for parent, folders, files in os.walk(top):
                for path in (parent, *(os.path.join(parent, name) for name in (*folders, *files))):
                    os.chown(path, *owner, follow_symlinks=False)
        os.rename(top, folder)
    except OSError:
        if not folder.is_dir():  # Else another attempt of the job was faster.
            raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _unpack(packed: Path, top: Path, checks: EntryChecks, subfolder: str) -> None:
    try:
        with tarfile.open(packed, "r|gz", encoding="utf-8", errors="surrogateescape") as archive:
            for entry in archive:
                checks.check(entry)
                _write(archive, entry, top / entry.name)
    except (tarfile.TarError, EOFError, ValueError, LookupError, zlib.error) as error:
        raise BadTree(f"the snapshot is damaged: {error}") from None
    if subfolder:
        folder = tarfile.TarInfo(subfolder)
        folder.type = tarfile.DIRTYPE
        checks.check(folder)
        (top / subfolder).mkdir(mode=0o700, parents=True, exist_ok=True)


def _write(archive: tarfile.TarFile, entry: tarfile.TarInfo, path: Path) -> None:
    """Writes a checked entry: what is on the way to it is a folder, or not there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = entry.mode & 0o777
    if entry.isdir():
        path.mkdir(mode=0o700, exist_ok=True)
        path.chmod(mode | 0o700)
    elif entry.issym():
        path.symlink_to(entry.linkname)
    else:
        content = archive.extractfile(entry)
        assert content is not None, entry
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with content, os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            shutil.copyfileobj(content, file)
            os.fchmod(file.fileno(), mode)
