"""One owner per pipe directory: it starts its daemon, knows it again, ends it and keeps its logs small.

Rule: only the holder of `<pipe directory>.owner` starts, configures or ends the daemon there. The kernel
drops the lock with its holder; the record in the file stays, so that the next owner of the same name knows
its own daemon again. A daemon that we started carries our mark in its environment, so it is known as ours
even where its start was interrupted before anything about it was written down.

Rule: the daemon appends to its logs for as long as it lives and never shortens them (each question is six
lines of control.log), so its owner does. They are open for appending: cutting them in place is safe.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from cotenant.mps import environment, process

RECORD_VERSION = 1
SUFFIX = ".owner"
_BYTES_MAX = 65_536


class Owned(Exception):
    """The error that another process owns this daemon, or that its file cannot be used. One line, for a
    person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipRecord:
    owner: str = ""
    """The owner's name, the same over its restarts."""
    holder: str = ""
    """Who that is, for a person: pid and user."""
    daemon: process.MpsProcessIdentity | None = None
    socket: tuple[int, int] | None = None
    """Device and inode of the control socket that the daemon made."""


class Ownership:
    """A claim on one pipe directory, for as long as it is not released."""

    def __init__(self, pipe_directory: PurePosixPath, owner: str) -> None:
        """Locks the daemon for this owner. Raises Owned."""
        self._owner = owner
        self._path = pipe_directory.parent / f"{pipe_directory.name}{SUFFIX}"
        try:
            _make_folder(Path(self._path.parent))
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise Owned(f"{self._path} cannot be used: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._read().holder
            os.close(self._file)
            raise Owned(
                f"the MPS daemon of {pipe_directory} belongs to {holder or 'another agent'}"
            ) from None
        self.record = self._read()

    def keep(self, **changes: Any) -> None:
        """Write the changed record durably; the caller acts on it only afterwards."""
        holder = f"pid {os.getpid()} of uid {os.getuid()}"
        self.record = replace(self.record, owner=self._owner, holder=holder, **changes)
        data = json.dumps({"version": RECORD_VERSION, **asdict(self.record)}).encode()
        os.pwrite(self._file, data, 0)
        os.ftruncate(self._file, len(data))
        os.fsync(self._file)

    def release(self) -> None:
        os.close(self._file)

    def _read(self) -> OwnershipRecord:
        """Empty where there is none, it is torn, of a newer version, or another owner's."""
        try:
            told = json.loads(os.pread(self._file, _BYTES_MAX, 0))
            if told["version"] > RECORD_VERSION:
                return OwnershipRecord()
            daemon, socket = told["daemon"], told["socket"]
            return OwnershipRecord(
                owner=str(told["owner"]),
                holder=str(told["holder"]),
                daemon=None if daemon is None else process.MpsProcessIdentity(**daemon),
                socket=None if socket is None else (int(socket[0]), int(socket[1])),
            )
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return OwnershipRecord()


LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"
START_S = 20.0
END_S = 5.0
SOCKET = "control"
VERSION_SPOKEN = "2"
"""Of the control interface, by `channel.py`: the default of every driver so far, and asked for explicitly."""


class NotStarted(Exception):
    """The error of a daemon that did not start. One line, for a person: what the daemon or the file system
    said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The description of one daemon: where, for which devices, whose, with which settings."""

    pipe_directory: PurePosixPath
    log_directory: PurePosixPath
    devices: tuple[str, ...]
    """UUIDs; all that its clients can see."""
    owner: str
    """The owner's name, the same over its restarts."""
    client_uid: int | None = None
    """For root's daemon: the one account whose processes are its clients. None: every account's."""
    percentage: float = 100.0
    """Cap on each client's share of the multiprocessors, in (0, 100]."""
    driver: str = ""
    """The version of the kernel's driver now; empty where there is none."""
    program: str = process.CONTROL

    def __post_init__(self) -> None:
        environment.check_directory(self.pipe_directory)
        if not self.devices or not self.owner:
            raise ValueError(f"{self.pipe_directory}: a daemon needs devices and an owner")


def daemons_at(spec: Spec, running: process.Running) -> Iterator[process.FoundProcess]:
    """Daemons that name its pipe directory, ours or not. Nobody but us and root can listen there: what a
    process of another account has in its environment says nothing."""
    return (
        found
        for found in running.daemons
        if found.pipe_directory == str(spec.pipe_directory) and found.uid in (0, os.getuid())
    )


def start(spec: Spec) -> tuple[process.FoundProcess, str]:
    """A daemon of ours, and what it warned of while it started. Blocks for up to START_S.

    Raises:
        NotStarted: none runs.
    """
    warning = _make_folders(spec)
    try:
        done = process.run((spec.program, "-d"), daemon_environment(spec), timeout_s=START_S)
    except TimeoutError:
        raise NotStarted(f"{spec.program} -d did not come back within {START_S:.0f} s") from None
    except OSError as error:
        raise NotStarted(f"cannot run {spec.program}: {error.strerror}") from None
    said = " / ".join((done.stdout + done.stderr).split("\n")).strip(" /")[:300]
    ours = [found for found in daemons_at(spec, process.look_around()) if found.owner == spec.owner]
    if not ours:
        why = said or last_lines(spec.log_directory) or f"exit status {done.returncode}, and no output"
        raise NotStarted(f"the MPS daemon of {spec.pipe_directory} did not start: {why}")
    return ours[0], "; ".join(part for part in (warning, said) if part)


def daemon_environment(spec: Spec) -> dict[str, str]:
    """The daemon's own environment, without the agent's variables for MPS and visible devices."""
    inherited = {
        name: value
        for name, value in environment.drop_mps_variables(os.environ).items()
        if name != process.VISIBLE_DEVICES
    }
    return {
        **inherited,
        environment.PIPE_DIRECTORY: str(spec.pipe_directory),
        LOG_DIRECTORY: str(spec.log_directory),
        process.VISIBLE_DEVICES: ",".join(spec.devices),
        environment.PROTOCOL_VERSION: VERSION_SPOKEN,
        process.OWNER_MARK: spec.owner,
        process.DRIVER_MARK: spec.driver,
    }


def end(found: Sequence[process.FoundProcess], timeout_s: float = END_S) -> list[str]:
    """End these processes, by identity; those that would not go, for a person."""
    deadline_s = time.monotonic() + timeout_s
    return [
        f"{each} cannot be ended"
        for each in found
        if not process.end(each.identity, max(0.1, deadline_s - time.monotonic()))
    ]


def socket_of(spec: Spec) -> tuple[int, int] | None:
    """Device and inode of the control socket that is in the pipe directory now."""
    try:
        found = os.lstat(Path(spec.pipe_directory) / SOCKET)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _make_folders(spec: Spec) -> str:
    """Clients of other users walk through the pipe directory where root owns it; they do not read the logs.
    Who can reach the control socket can set limits for all that come after, so it is for the clients' account
    alone where a daemon has one.

    A log folder that cannot be made, or is full, is a warning: the daemon starts without it.

    Raises:
        NotStarted: the pipe directory cannot be made, or not closed to others.
    """
    try:
        _make_folder(Path(spec.pipe_directory))
        if os.geteuid() == 0 and spec.client_uid is not None:
            _close_to_others(Path(spec.pipe_directory), spec.client_uid)
    except OSError as error:
        raise NotStarted(f"{spec.pipe_directory} cannot be made: {error.strerror}") from None
    try:
        Path(spec.log_directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        bound_logs(spec.log_directory)
    except OSError as error:
        return f"its logs cannot be kept in {spec.log_directory}: {error.strerror}"
    return ""


def _make_folder(path: Path) -> None:
    """Makes a folder and those above it that are missing; whatever the umask is, clients may enter root's."""
    mode = 0o755 if os.geteuid() == 0 else 0o700
    for each in (*reversed([each for each in path.parents if not each.exists()]), path):
        each.mkdir(0o700, exist_ok=True)
        each.chmod(mode)


def closed_folder(path: PurePath) -> str:
    """The first folder on the way that its owner alone may enter; empty: none. One that a group may enter
    counts as open: who is in the group is not known here."""
    for each in (*reversed(path.parents), path):
        if os.path.exists(each) and not os.stat(each).st_mode & 0o011:
            return str(each)
    return ""


def _close_to_others(folder: Path, uid: int) -> None:
    """Lets one account beside root into a folder. It stays root's: NVIDIA's program, run by root, writes
    through links that an owner of the folder could leave in it (seen with 535.261.03).

    Raises:
        NotStarted: it cannot be closed to others.
    """
    folder.chmod(0o700)
    if uid == 0:
        return
    if closed := closed_folder(folder.parent):
        raise NotStarted(f"{closed} is closed to uid {uid}: chmod o+x it, or set mps.runtime_dir")
    # Tag, rights, account: owner, the account, group, mask (what the account may have at most), others.
    none = 0xFFFF_FFFF
    entries = ((1, 7, none), (2, 5, uid), (4, 0, none), (16, 5, none), (32, 0, none))
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(folder, "system.posix_acl_access", packed)
    except OSError as error:
        why = f"{folder} takes no access control list for uid {uid} ({error.strerror})"
        raise NotStarted(f"{why}: set mps.runtime_dir to a folder on a tmpfs") from None


LOG_NAMES = ("control.log", "server.log")
LOG_BYTES_MAX = 8 * 1024 * 1024
LOG_KEPT_BYTES = 512 * 1024
LOG_TAIL_BYTES = 32_768


def bound_logs(directory: PurePosixPath, bytes_max: int = LOG_BYTES_MAX) -> None:
    """Cut a log that has grown too long; its last part goes to NAME.old.

    Raises:
        OSError: the disk refuses.
    """
    for name in LOG_NAMES:
        path = Path(directory) / name
        if not path.is_file() or path.stat().st_size <= bytes_max:
            continue
        (path.parent / f"{name}.old").write_bytes(_end_of(path, LOG_KEPT_BYTES))
        os.truncate(path, 0)


def last_lines(directory: PurePosixPath, count: int = 3) -> str:
    """The end of control.log, in one line: why a daemon did not start."""
    lines = log_end(directory, LOG_NAMES[0]).splitlines()
    return " / ".join(line.strip() for line in lines[-count:])


def log_end(directory: PurePosixPath, name: str) -> str:
    """The last lines of a log; empty where it cannot be read."""
    path = Path(directory) / name
    try:
        return _end_of(path, LOG_TAIL_BYTES).decode(errors="replace") if path.is_file() else ""
    except OSError:
        return ""


def _end_of(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read(size)
