"""One owner per device and machine.

Rule: an agent offers a device only while it holds the device's lock. Two files per thing (a GPU, a core of
a CPU slot, or a block of ports):

    NAME.agent   held by the agent (exclusive): a second agent, of any user, gets nothing
    NAME.jobs    held by every supervisor on it (shared, inherited): jobs that outlived their agent keep
                 it, so that another agent does not take a device that only looks unused

The kernel drops a lock with its last holder, so there is nothing to clean up after a crash. The files are
empty: who holds one is asked of the kernel (`lock_holders.py`).

Rule: root trusts nobody's files, and others trust root's. Accounts share a folder that all may write to, and
lock each other's files there. Root's agent has files of its own, which nobody else can open, in a folder of
its own in the shared one; a name that is there belongs to root's agents, also while none runs. In the shared
folder root's agent only looks, and only for an agent that lives: a process that merely holds a lock does not
keep it from a device. Each side first takes its own lock and then looks at the other's.

Rule: the shared folder may be of the user whose agent came first, so it is opened first and its files from
there, neither by a link. Root makes it its own: nobody can put another in its place then.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cotenant.agent.host.lock_holders import LockHolder, find_holder
from cotenant.controller.system.locks import is_free, try_lock, try_share

LOCK_DIR_ENV: Final = "COTENANT_LOCK_DIR"
"""Another folder for the locks: for tests, where the machine's own agent may be running."""
ROOTS: Final = "root"
"""The folder of root's agents, in the shared one."""
_SHARED_FOLDERS: Final = (Path("/run/lock"), Path("/tmp"))
_SHARE_ATTEMPTS: Final = 20
_PLANTED_MAX: Final = 20
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LockProblem(Exception):
    """The lock folder cannot be used; one line with what to do."""


class LockFolders(msgspec.Struct, frozen=True, kw_only=True):
    """Where the locks of this agent lie, and those of the other side: root's agents, or all others."""

    shared: Path
    is_root: bool

    @property
    def own(self) -> Path:
        return self.shared / ROOTS if self.is_root else self.shared


def lock_folders() -> LockFolders:
    """The folder that every user's agents agree on, and for root one in it that only root can change.

    Raises:
        LockProblem: it exists and is not a folder that all may write to.
    """
    named = os.environ.get(LOCK_DIR_ENV)
    folder = Path(named) if named else _shared_place() / "cotenant"
    is_root = os.geteuid() == 0
    try:
        if is_root:
            _put_aside(folder)
        made = _make_folder(folder)
        opened = os.open(folder, _FOLDER)
    except OSError as error:
        raise LockProblem(f"cannot make the lock folder {folder}: {error.strerror}") from None
    try:
        if is_root and os.fstat(opened).st_uid != 0:
            os.fchown(opened, 0, 0)
            made = True
        if made:
            os.fchmod(opened, 0o1777)  # The umask must not decide who may share this machine.
        status = os.fstat(opened)
        if not status.st_mode & stat.S_ISVTX or not status.st_mode & 0o002:
            raise LockProblem(
                f"{folder} (of uid {status.st_uid}) is not a folder that all users may write to: "
                f"ask root to remove it, it is made again"
            )
        if is_root:
            _make_roots(opened, folder)
    finally:
        os.close(opened)
    return LockFolders(shared=folder, is_root=is_root)


def _put_aside(folder: Path) -> None:
    """What another account put in the folder's place, and is none."""
    with suppress(FileNotFoundError):
        found = os.lstat(folder)
        if found.st_uid != 0 and not stat.S_ISDIR(found.st_mode):
            os.rename(folder, folder.with_name(f"planted-{os.urandom(6).hex()}"))


def _make_folder(folder: Path) -> bool:
    """Whether it was not there before."""
    try:
        os.mkdir(folder, 0o1777)
    except FileExistsError:
        return False
    return True


def _make_roots(shared: int, folder: Path) -> None:
    """Root's folder. What another account put in its place is renamed: no account can stop root's agent."""
    for _ in range(_PLANTED_MAX):
        with suppress(FileExistsError):
            os.mkdir(ROOTS, 0o755, dir_fd=shared)
        with suppress(FileNotFoundError):  # Whoever put it there may take it away.
            if _is_roots(os.stat(ROOTS, dir_fd=shared, follow_symlinks=False)):
                return
            os.rename(ROOTS, f"planted-{os.urandom(6).hex()}", src_dir_fd=shared, dst_dir_fd=shared)
    raise LockProblem(f"another account puts files at {folder / ROOTS} all the time: end its processes")


def _is_roots(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and found.st_uid == 0 and not found.st_mode & 0o022


def _shared_place() -> Path:
    """Returns the folder that is the same for every user of the machine: decided by the folder's mode, not by
    who asks."""
    for place in _SHARED_FOLDERS:
        if place.is_dir() and place.stat().st_mode & 0o1002 == 0o1002:
            return place
    return _SHARED_FOLDERS[-1]


class DeviceLocks:
    """The locks of one agent. Names are those of GPUs and cores, see `devices.py`."""

    def __init__(self, folders: LockFolders, left_behind: Mapping[str, Sequence[Path]] | None = None) -> None:
        """`left_behind`: by name the files that our own jobs of an earlier start keep locked: what they have
        is ours."""
        self._folders = folders
        self._left_behind = left_behind or {}
        self._held: dict[str, int] = {}

    def take(self, names: Iterable[str]) -> str:
        """Hold all of these; who is in the way, for a person, if that fails (then none is newly held)."""
        fresh: list[str] = []
        for name in names:
            if name in self._held:
                continue
            why = self._take_one(name)
            if why:
                for each in fresh:
                    os.close(self._held.pop(each))
                return why
            fresh.append(name)
        return ""

    def descriptors_for_supervisor(self, names: Iterable[str]) -> list[int]:
        """Descriptors that keep `NAME.jobs` locked for whoever inherits them. The caller closes its copies.

        Raises:
            OSError: a lock cannot be had; nothing is left open.
        """
        opened: list[int] = []
        try:
            for name in names:
                file = self._open(f"{name}.jobs")
                opened.append(file)
                _share(file)
        except OSError:
            for file in opened:
                os.close(file)
            raise
        return opened

    def release(self) -> None:
        for file in self._held.values():
            os.close(file)
        self._held.clear()

    def _take_one(self, name: str) -> str:
        try:
            file = self._open(f"{name}.agent")
        except OSError as error:
            return f"its lock {self._folders.own / name}.agent cannot be used: {error.strerror}"
        why = "" if try_lock(file) else f"in use by {find_holder(file) or 'another agent'}"
        why = why or self._jobs_of_others(name) or self._other_side(f"{name}.agent")
        if why:
            os.close(file)
        else:
            self._held[name] = file
        return why

    def _jobs_of_others(self, name: str) -> str:
        """Jobs whose agent is gone; our own, from before our restart, are welcome."""
        try:
            file = self._open(f"{name}.jobs")
        except OSError as error:
            return f"its lock {self._folders.own / name}.jobs cannot be used: {error.strerror}"
        try:
            if try_lock(file) or not all(map(is_free, self._left_behind.get(name, ()))):
                return ""
            holder = find_holder(file)
        finally:
            os.close(file)
        return f"in use by {holder}" if holder else "jobs of an agent that has ended still run on it"

    def _other_side(self, name: str) -> str:
        """What root's agents have; for root's agent what a living agent of another account has."""
        shared, is_root = self._folders.shared, self._folders.is_root
        path = (shared if is_root else shared / ROOTS) / name
        if (seen := _look(path)) is None:
            return ""
        folder, holder = seen
        if is_root:
            return f"in use by {holder}" if holder is not None and holder.is_agent else ""
        if not _is_roots(folder):
            return ""
        if holder is not None:
            return f"in use by {holder}"
        return f"it is of root's agent, which does not run now; root gives it back with: rm {path}"

    def _open(self, name: str) -> int:
        mode = 0o600 if self._folders.is_root else 0o644
        return _open(self._folders.own / name, mode)


def _look(path: Path) -> tuple[os.stat_result, LockHolder | None] | None:
    """The folder of a lock file that we may not open, and who holds it; None: there is no such file."""
    opened: list[int] = []
    try:
        opened.append(os.open(path.parent, _FOLDER))
        opened.append(os.open(path.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=opened[0]))
        return os.fstat(opened[0]), find_holder(opened[1])
    except OSError:
        return None
    finally:
        for file in opened:
            os.close(file)


def _open(path: Path, mode: int) -> int:
    """The lock file, whoever made it: a regular file with one name, never a link. Opened for reading, which
    is enough for a lock.

    Raises:
        OSError: there is none and none can be made, or it is something else.
    """
    folder = os.open(path.parent, _FOLDER)
    try:
        for _ in range(3):  # It may appear between the two attempts to open it.
            file = _opened_or_made(folder, path.name, mode)
            if file is None:
                continue
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                return file
            os.close(file)
            break
    finally:
        os.close(folder)
    raise OSError(0, "not a plain file", str(path))


def _opened_or_made(folder: int, name: str, mode: int) -> int | None:
    """Returns a descriptor of a file, opened or made. None: another process is making the file."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        # Not O_CREAT: in a sticky folder the kernel refuses that for another user's file.
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        try:
            file = os.open(name, flags | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder)
        except FileExistsError:
            return None
    os.fchmod(file, mode)  # The umask must not decide who may share this machine.
    return file


def _share(file: int) -> None:
    """An agent that looks whether there are jobs holds the lock for a moment: try a few times."""
    for attempts_left in reversed(range(_SHARE_ATTEMPTS)):
        if try_share(file):
            return
        if attempts_left:
            time.sleep(0.005)
    raise BlockingIOError(errno.EAGAIN, "an agent holds it alone")
