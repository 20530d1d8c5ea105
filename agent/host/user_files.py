"""Files in folders that other users can write to, handled by a process that may be root.

Rule: a path is followed once, down to a folder that only we (and root) can change; from there on every step
is taken from an open folder and follows no link, so a user who renames, links or replaces a part of it
meanwhile changes which of their own files are meant, never another's. What we do by a descriptor we do to
that file. And we remove what belongs to a user with that user's rights: a user may give a name to somebody
else's file, and gets no more removed by it than that user could remove alone.
"""

from __future__ import annotations

import ctypes
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

DEPTH_MAX: Final = 32
"""Of folders that are open at once while a tree is removed; deeper ones are moved up first."""
ROUNDS_MAX: Final = 1000
"""Over one folder: one for each folder that was moved up, and while a process goes on filling it."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


class _Rights(threading.local):
    uid = 0
    """Whose this thread has now, if it is root's; 0: its own."""


_rights = _Rights()


class OpenFolder:
    """A folder that is open. Everything is done in this one, wherever its path may lead by now."""

    def __init__(self, descriptor: int) -> None:
        self.fd = descriptor

    @classmethod
    def open_path(cls, path: Path) -> OpenFolder:
        """A folder of ours or the administrator's: links on the way count, as only they could have made
        them.

        Raises:
            OSError: it cannot be opened.
        """
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def below(self, *names: str) -> OpenFolder:
        """A folder in this one, in one of its folders, and so on: each is a folder and no link.

        Raises:
            OSError: one is something else (NotADirectoryError), or not there.
        """
        found = OpenFolder(os.dup(self.fd))
        for name in names:
            try:
                inner = OpenFolder(os.open(_check_name(name), _FOLDER, dir_fd=found.fd))
            finally:
                found.close()
            found = inner
        return found

    def make(self, name: str, mode: int, owner: tuple[int, int] | None = None) -> OpenFolder:
        """A folder in this one, made unless it is there, and given to `owner` if there is one.

        Raises:
            OSError: it cannot be made; something else has its name; it belongs to another user.
        """
        with suppress(FileExistsError):
            os.mkdir(_check_name(name), mode, dir_fd=self.fd)
        made = self.below(name)
        try:
            uid = os.fstat(made.fd).st_uid
            if os.geteuid() == 0 and uid not in (0, *(owner or ())[:1]):
                raise PermissionError(1, f"it belongs to uid {uid}", name)
            if owner is not None:
                os.fchown(made.fd, *owner)
        except OSError:
            made.close()
            raise
        return made

    def read(self, name: str, bytes_max: int) -> bytes:
        """The beginning of a plain file.

        Raises:
            OSError: there is none, or something else has its name.
        """
        file = os.open(_check_name(name), os.O_RDONLY | _FILE, dir_fd=self.fd)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(22, "not a plain file", name)
            return os.read(file, bytes_max)
        finally:
            os.close(file)

    def write(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """A small file with these bytes, made or overwritten.

        Raises:
            OSError: it cannot be written, or something else has its name.
        """
        file = os.open(_check_name(name), os.O_WRONLY | os.O_CREAT | _FILE, mode, dir_fd=self.fd)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise OSError(22, "not a plain file with one name", name)
            os.ftruncate(file, 0)
            os.write(file, data)
        finally:
            os.close(file)

    def link(self, name: str, new: str) -> None:
        """Makes another name for a file of ours. Raises OSError, FileExistsError if the name is taken."""
        os.link(name, _check_name(new), src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)

    def link_file(self, name: str, other: OpenFolder, new: str) -> None:
        """Gives a plain file of this folder another name, in another folder; what has that name is replaced.

        Raises:
            OSError: there is none, or something else has its name; the folders are on two file systems.
        """
        file = os.open(_check_name(name), os.O_RDONLY | _FILE, dir_fd=self.fd)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(22, "not a plain file", name)
            other.unlink(new)
            os.link(f"/proc/self/fd/{file}", new, dst_dir_fd=other.fd, follow_symlinks=True)
        finally:
            os.close(file)

    def create(self, name: str, mode: int) -> int:
        """A descriptor to write a new, empty file with; what has the name is replaced. Raises OSError."""
        self.unlink(name)
        file = os.open(_check_name(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=self.fd)
        os.fchmod(file, mode)
        return file

    def unlink(self, name: str) -> None:
        """Remove a name that is not a folder's, if it is there. Raises OSError."""
        with suppress(FileNotFoundError):
            os.unlink(_check_name(name), dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Remove what has this name, with all that is in it.

        Raises:
            OSError: some of it could not be removed, or a process goes on filling it.
        """
        _remove(self.fd, _check_name(name), -1, os.fstat(self.fd).st_dev, DEPTH_MAX)

    @contextmanager
    def socket(self, name: str, uid: int) -> Iterator[str]:
        """An address that reaches this user's socket and no other, however its name is used meanwhile.

        Raises:
            OSError: there is none, or it is no socket, or another user's.
        """
        found = os.open(_check_name(name), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            status = os.fstat(found)
            if not stat.S_ISSOCK(status.st_mode) or status.st_uid != uid:
                raise PermissionError(1, f"not a socket of uid {uid}", name)
            yield f"/proc/self/fd/{found}"
        finally:
            os.close(found)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def remove_tree(path: Path, trusted: Path | None = None) -> None:
    """Remove a folder with all that is in it, if it is there. `trusted` is on the way to it, and ours: from
    there on no link is followed; else that begins with the folder itself.

    Raises:
        OSError: some of it could not be removed.
    """
    base = path.parent if trusted is None else trusted
    *way, name = path.relative_to(base).parts
    with suppress(FileNotFoundError), OpenFolder.open_path(base) as top, top.below(*way) as parent:
        parent.remove(name)


def find_exposed(path: Path) -> Path | None:
    """Returns, for an agent that runs as root, the first folder on the way to `path`, `path` among them, in
    which another user could replace the next part. Folders that are not there yet count as safe."""
    if os.geteuid() != 0:
        return None
    for each in (*reversed(path.absolute().parents), path.absolute()):
        with suppress(FileNotFoundError):
            found = os.lstat(each)
            if stat.S_ISLNK(found.st_mode):
                if (there := find_exposed(each.resolve())) is not None:
                    return there
                continue
            others = found.st_mode & (stat.S_IWOTH | (stat.S_IWGRP if found.st_gid else 0))
            if found.st_uid != 0 or (others and not found.st_mode & stat.S_ISVTX):
                return each
    return None


# --- Removing ----------------------------------------------------------------------------------------


def _remove(parent: int, name: str, top: int, device: int, depth_left: int) -> None:
    """Removes a file or a folder with the rights that this thread has now. `top`: takes folders that are too
    deep, to be met again there."""
    try:
        os.unlink(name, dir_fd=parent)
        return
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):  # POSIX allows both for a folder.
        pass
    if depth_left == 0:
        os.rename(name, f".removed-{os.urandom(8).hex()}", src_dir_fd=parent, dst_dir_fd=top)
        return
    with suppress(FileNotFoundError):
        folder = _enter(parent, name)
        try:
            if os.fstat(folder).st_dev != device:
                raise OSError(18, "another file system is mounted there", name)
            with _rights_of_owner(folder) as is_changed:
                begins = is_changed or top < 0
                _empty(folder, folder if begins else top, device, DEPTH_MAX if begins else depth_left - 1)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=parent)


def _empty(folder: int, top: int, device: int, depth_left: int) -> None:
    """Remove what is in a folder. Raises OSError: something stayed; the first reason is told."""
    if os.fstat(folder).st_mode & 0o700 != 0o700:
        with suppress(OSError):
            os.fchmod(folder, 0o700)
    for _ in range(ROUNDS_MAX):  # A removal moves entries that the listing has not reached yet.
        removed, problem = 0, None
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    _remove(folder, entry.name, top, device, depth_left)
                    removed += 1
                except OSError as error:
                    problem = problem or error
        if not removed:
            if problem is not None:
                raise problem
            return
    raise OSError(16, "a process goes on filling it")


def _enter(parent: int, name: str) -> int:
    """Returns the descriptor of a folder, open; its owner may have closed it to himself."""
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        there = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        this_one = f"/proc/self/fd/{there}"
        os.chmod(this_one, 0o700)
        return os.open(this_one, _FOLDER & ~os.O_NOFOLLOW)
    finally:
        os.close(there)


@contextmanager
def _rights_of_owner(folder: int) -> Iterator[bool]:
    """Acts, as root, on files with the user id of a folder's owner; yields whether that changed anything.

    The user id changes for this thread alone, which is what the kernel's file system ids are for.
    """
    found = os.fstat(folder)
    if os.geteuid() != 0 or found.st_uid == 0 or _rights.uid:
        yield False
        return
    _rights.uid = found.st_uid
    try:
        _set_ids(found.st_uid, found.st_gid)
        yield True
    finally:
        _set_ids(0, 0)
        _rights.uid = 0


def _set_ids(uid: int, gid: int) -> None:
    for change, wanted in ((_libc.setfsgid, gid), (_libc.setfsuid, uid)):
        change(ctypes.c_uint(wanted))
        if (
            ctypes.c_uint(change(ctypes.c_uint(-1))).value != wanted
        ):  # It returns what is in force, not errors.
            raise PermissionError(1, f"cannot act as {wanted} on files")


def _check_name(name: str) -> str:
    """Checks that a text is one name, not a path: anything else is our own mistake."""
    assert name not in ("", ".", "..") and "/" not in name, f"not a name: {name!r}"
    return name
