"""One owner per device and machine.

Rule: an agent offers a device only while it holds the device's lock. Two files per thing (a GPU, or a
core of a CPU slot) in a folder that all users share:

    NAME.agent   held by the agent (exclusive): a second agent, of any user, gets nothing
    NAME.jobs    held by every supervisor on it (shared, inherited): jobs that outlived their agent keep
                 it, so that another agent does not take a device that only looks unused

The kernel drops a lock with its last holder, so there is nothing to clean up after a crash. The text in
a file says who holds it; it is for people and, by the owner's token, for an agent that comes back to its
own jobs. The folder is world-writable, and may be of the user whose agent came first, so it is opened first
and its files from there, neither by a link. Root makes it its own: nobody can put another in its place then.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.system.locks import try_lock, try_share
from cotenant.controller.wire import BadMessage, decode_json

LOCK_DIR_ENV: Final = "COTENANT_LOCK_DIR"
"""Another folder for the locks: for tests, where the machine's own agent may be running."""
_SHARED_FOLDERS: Final = (Path("/run/lock"), Path("/tmp"))
_SHARE_ATTEMPTS: Final = 20
_TEXT_BYTES_MAX: Final = 4096
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LockProblem(Exception):
    """The lock folder cannot be used; one line with what to do."""


class LockOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a lock, as the file says it."""

    pid: int
    uid: int
    user: str
    host: str
    since: str
    token: str
    """Random name of the agent's state folder."""

    def __str__(self) -> str:
        return f"the agent {self.host!r} of {self.user} (pid {self.pid}, since {self.since})"


def lock_folder() -> Path:
    """The folder that every user's agents agree on.

    Raises:
        LockProblem: it exists and is not a folder that all may write to.
    """
    named = os.environ.get(LOCK_DIR_ENV)
    folder = Path(named) if named else _shared_place() / "cotenant"
    try:
        made = _make_folder(folder)
        opened = os.open(folder, _FOLDER)
    except OSError as error:
        raise LockProblem(f"cannot make the lock folder {folder}: {error.strerror}") from None
    try:
        if made:
            os.fchmod(opened, 0o1777)  # The umask must not decide who may share this machine.
        status = os.fstat(opened)
        if not status.st_mode & stat.S_ISVTX or not status.st_mode & 0o002:
            raise LockProblem(
                f"{folder} (of uid {status.st_uid}) is not a folder that all users may write to: "
                f"ask root to remove it, it is made again"
            )
        if os.geteuid() == 0 and status.st_uid != 0:
            os.fchown(opened, 0, 0)
    finally:
        os.close(opened)
    return folder


def _make_folder(folder: Path) -> bool:
    """Whether it was not there before."""
    try:
        os.mkdir(folder, 0o1777)
    except FileExistsError:
        return False
    return True


def _shared_place() -> Path:
    """Returns the folder that is the same for every user of the machine: decided by the folder's mode, not by
    who asks."""
    for place in _SHARED_FOLDERS:
        if place.is_dir() and place.stat().st_mode & 0o1002 == 0o1002:
            return place
    return _SHARED_FOLDERS[-1]


class DeviceLocks:
    """The locks of one agent. Names are those of GPUs and cores, see `devices.py`."""

    def __init__(self, folder: Path, owner: LockOwner) -> None:
        self._folder = folder
        self._owner = owner
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
                file = _open(self._folder / f"{name}.jobs")
                opened.append(file)
                _share(file)
                _write(file, self._owner)
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
            file = _open(self._folder / f"{name}.agent")
        except OSError as error:
            return f"its lock {self._folder / name}.agent cannot be used: {error.strerror}"
        if not try_lock(file):
            holder = _read(file)
            os.close(file)
            return f"in use by {holder or 'another agent'}"
        why = self._jobs_of_others(name)
        if why:
            os.close(file)
            return why
        self._held[name] = file
        _write(file, self._owner)
        return ""

    def _jobs_of_others(self, name: str) -> str:
        """Jobs whose agent is gone; our own, from before our restart, are welcome."""
        try:
            file = _open(self._folder / f"{name}.jobs")
        except OSError as error:
            return f"its lock {self._folder / name}.jobs cannot be used: {error.strerror}"
        try:
            if try_lock(file):
                return ""
            holder = _read(file)
        finally:
            os.close(file)
        if holder is not None and holder.token == self._owner.token:
            return ""
        return f"jobs of {holder or 'another agent'} still run on it"


def _open(path: Path) -> int:
    """The lock file, whoever made it: a regular file with one name, never a link.

    Raises:
        OSError: there is none and none can be made, or it is something else.
    """
    folder = os.open(path.parent, _FOLDER)
    try:
        for _ in range(3):  # It may appear between the two attempts to open it.
            file = _opened_or_made(folder, path.name)
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


def _opened_or_made(folder: int, name: str) -> int | None:
    """Returns a descriptor of a file, opened or made. None: another process is making the file."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        # Not O_CREAT: in a sticky folder the kernel refuses that for another user's file.
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        try:
            file = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
        except FileExistsError:
            return None
    os.fchmod(file, 0o666)
    return file


def _share(file: int) -> None:
    """An agent that looks whether there are jobs holds the lock for a moment: try a few times."""
    for attempts_left in reversed(range(_SHARE_ATTEMPTS)):
        if try_share(file):
            return
        if attempts_left:
            time.sleep(0.005)
    raise BlockingIOError(errno.EAGAIN, "an agent holds it alone")


def _write(file: int, owner: LockOwner) -> None:
    data = msgspec.json.encode(owner) + b"\n"
    os.pwrite(file, data, 0)
    os.ftruncate(file, len(data))


def _read(file: int) -> LockOwner | None:
    try:
        holder: LockOwner = decode_json(os.pread(file, _TEXT_BYTES_MAX, 0), LockOwner)
    except (BadMessage, OSError):
        return None
    return holder
