"""Unpacks a tree (`--snapshot`) for a job, in a process of its own: `python -m` of this module with a
`TreeWork` as JSON, the packed tree as standard input, and an answer of one line.

Rule: a packed tree is somebody else's file, and what reads it may fail in any way or never end. So it is read
by nobody but this process, which has the rights of the job's user and limits of memory, time, names and
entries; whoever starts it (`agent/daemon/trees.py`) takes any end of it for the job's own failure. It is
unpacked in a folder that nobody else can enter, only as files, folders and links with names below it, and
nothing is written through a link. Nothing is made of a name before its length is known.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tarfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

from cotenant.agent.host.rights import die_with, drop_to

ENTRIES_MAX: Final = 100_000
FOLDERS_MAX: Final = 100_000
"""Made for entries that have none of their own."""
DEPTH_MAX: Final = 200
NAME_BYTES_MAX: Final = 255
PATH_BYTES_MAX: Final = 3000
MEMORY_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of the process, beside what it has when it begins."""
OPEN_FILES_MAX: Final = 64
WORDS_CHARS_MAX: Final = 400
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
        self._folders_left = FOLDERS_MAX
        self._is_folder: dict[str, bool] = {}

    def check(self, entry: tarfile.TarInfo) -> None:
        """Raises BadTree: the entry must not be unpacked."""
        if why := too_long(entry.name) or self._refusal(entry, entry.name.split("/")):
            raise BadTree(f"{entry.name[:80]!r} in the snapshot {why}")

    def _refusal(self, entry: tarfile.TarInfo, parts: list[str]) -> str:
        parents = ["/".join(parts[:at]) for at in range(1, len(parts))]
        self._bytes_left -= entry.size
        self._entries_left -= 1
        if entry.type not in _KINDS or entry.issparse():
            return "is no file, folder or link"
        if not {"", ".", ".."}.isdisjoint(parts) or "\0" in entry.name:
            return "has a name that leads elsewhere"
        if entry.size < 0 or self._bytes_left < 0:
            return "is more than was announced"
        if self._entries_left < 0:
            return f"is one entry more than a snapshot may have ({ENTRIES_MAX:,})"
        if not all(self._is_folder.get(each, True) for each in parents):
            return "lies below something that is no folder"
        if entry.name in self._is_folder and not (entry.isdir() and self._is_folder[entry.name]):
            return "is there twice"
        if entry.issym() and _leads_out(entry.name, entry.linkname):
            return f"is a link to {entry.linkname[:80]!r}, outside of the tree"
        self._folders_left -= sum(each not in self._is_folder for each in parents)
        if self._folders_left < 0:
            return f"needs more folders than a snapshot may have ({FOLDERS_MAX:,})"
        self._is_folder.update(dict.fromkeys(parents, True) | {entry.name: entry.isdir()})
        return ""


def too_long(name: str) -> str:
    """What of a path is more than a snapshot may have; empty: nothing. Takes no more time or memory for a
    longer one."""
    if len(name) > PATH_BYTES_MAX or len(os.fsencode(name)) > PATH_BYTES_MAX:
        return f"has a path of more than {PATH_BYTES_MAX:,} bytes"
    if name.count("/") >= DEPTH_MAX:
        return f"lies more than {DEPTH_MAX} folders deep"
    if any(len(os.fsencode(part)) > NAME_BYTES_MAX for part in name.split("/")):
        return f"has a name of more than {NAME_BYTES_MAX} bytes"
    return ""


def _leads_out(name: str, target: str) -> bool:
    """Whether a relative link leads out of the tree. An absolute one is a place on this host, as a path in a
    script is: we never follow it."""
    if not target or "\0" in target or len(target) > PATH_BYTES_MAX:
        return True
    inside = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return not os.path.isabs(target) and inside.split("/")[0] == ".."


def unpack(packed: IO[bytes], top: Path, bytes_max: int, subfolder: str = "") -> None:
    """Unpacks a tree into an empty folder. `subfolder`: made if the tree lacks it.

    Raises:
        BadTree: there is something in it that must not be.
        OSError: it cannot be written.
    """
    checks = EntryChecks(bytes_max)
    try:
        with tarfile.open(fileobj=packed, mode="r|gz", encoding="utf-8", errors="surrogateescape") as archive:
            for entry in archive:
                checks.check(entry)
                _write(archive, entry, top / entry.name)
    except (tarfile.TarError, EOFError, ValueError, LookupError, zlib.error) as error:
        raise BadTree(f"the snapshot is damaged: {str(error)[:WORDS_CHARS_MAX]}") from None
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


# --- The process -----------------------------------------------------------------------------------


class TreeWork(NamedTuple):
    """What the process is to do, as a list in JSON."""

    parent: int
    """The pid of who waits: it does not outlive that one."""
    top: str
    """The user's own empty folder."""
    bytes_max: int
    subfolder: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    wait_s: float


class TreeAnswer(NamedTuple):
    """What has come of it, likewise."""

    why: str
    """It failed; empty: it did not."""
    errno: int
    """Of the kernel, if that refused something; else 0."""


def _limit(wait_s: float, bytes_max: int) -> None:
    with open("/proc/self/statm", "rb") as file:
        now_bytes = int(file.read().split()[0]) * resource.getpagesize()
    for what, most in (
        (resource.RLIMIT_AS, now_bytes + MEMORY_BYTES_MAX),
        (resource.RLIMIT_CPU, int(wait_s) + 1),
        (resource.RLIMIT_FSIZE, min(bytes_max, 2**62)),
        (resource.RLIMIT_NOFILE, OPEN_FILES_MAX),
        (resource.RLIMIT_CORE, 0),
    ):
        before = resource.getrlimit(what)[1]
        most = most if before == resource.RLIM_INFINITY else min(most, before)
        resource.setrlimit(what, (most, most))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # If the host is short of memory, this goes before any job.


def _work(work: TreeWork) -> TreeAnswer:
    try:
        unpack(sys.stdin.buffer, Path(), work.bytes_max, work.subfolder)
    except BadTree as error:
        return TreeAnswer(str(error), 0)
    except OSError as error:
        what = repr(str(error.filename or ""))[:WORDS_CHARS_MAX]
        return TreeAnswer(f"the snapshot cannot be unpacked: {error.strerror}: {what}", error.errno or 0)
    except RecursionError:
        return TreeAnswer("the snapshot is damaged: its headers are nested too deep", 0)
    except MemoryError:
        mib = MEMORY_BYTES_MAX // (1024 * 1024)
        return TreeAnswer(f"the snapshot takes more than {mib} MiB of memory to unpack", 0)
    return TreeAnswer("", 0)


def main() -> None:
    """Everything is imported before rights are given up: the user may not be able to read our packages."""
    work = TreeWork(*json.loads(sys.argv[1]))
    os.chdir(work.top)
    os.umask(0o022)
    _limit(work.wait_s, work.bytes_max)
    drop_to(work.uid, work.gid, tuple(work.groups))
    die_with(work.parent)
    os.write(1, json.dumps(_work(work)).encode())


if __name__ == "__main__":
    main()
