"""Bringing a control daemon to life and finding it again.

Rule: a daemon that we started carries our mark in its environment, so it is known as ours even where its
start was interrupted before anything about it was written down.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cotenant.mps import logs, process
from cotenant.mps.environment import PIPE_DIRECTORY, PROTOCOL_VERSION, without_mps
from cotenant.mps.paths import checked
from cotenant.mps.process import CONTROL, OWNER_MARK, FoundProcess, Running, look_around

LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
START_S = 20.0
END_S = 5.0
SOCKET = "control"
VERSION_SPOKEN = "2"
"""Of the control interface, by `channel.py`: the default of every driver so far, and asked for explicitly."""


class NotStarted(Exception):
    """One line, for a person: what the daemon or the file system said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One daemon: where, for which devices, whose, with which settings."""

    pipe_directory: PurePosixPath
    log_directory: PurePosixPath
    devices: tuple[str, ...]
    """UUIDs; all that its clients can see."""
    owner: str
    """The owner's name, the same over its restarts."""
    percentage: float = 100.0
    """Cap on each client's share of the multiprocessors, in (0, 100]."""
    program: str = CONTROL

    def __post_init__(self) -> None:
        checked(self.pipe_directory)
        if not self.devices or not self.owner:
            raise ValueError(f"{self.pipe_directory}: a daemon needs devices and an owner")


def daemons_at(spec: Spec, running: Running) -> Iterator[FoundProcess]:
    """Daemons that name its pipe directory, ours or not."""
    return (found for found in running.daemons if found.pipe_directory == str(spec.pipe_directory))


def start(spec: Spec) -> tuple[FoundProcess, str]:
    """A daemon of ours, and what it warned of while it started. Blocks for up to START_S.

    Raises:
        NotStarted: none runs.
    """
    warning = _make_folders(spec)
    try:
        done = process.run((spec.program, "-d"), environment(spec), timeout_s=START_S)
    except TimeoutError:
        raise NotStarted(f"{spec.program} -d did not come back within {START_S:.0f} s") from None
    except OSError as error:
        raise NotStarted(f"cannot run {spec.program}: {error.strerror}") from None
    said = " / ".join((done.output + done.errors).split("\n")).strip(" /")[:300]
    ours = [found for found in daemons_at(spec, look_around()) if found.owner == spec.owner]
    if not ours:
        why = said or logs.last_lines(spec.log_directory) or f"exit status {done.status}, and no word"
        raise NotStarted(f"the MPS daemon of {spec.pipe_directory} did not start: {why}")
    return ours[0], "; ".join(part for part in (warning, said) if part)


def environment(spec: Spec) -> dict[str, str]:
    """The daemon's own; nothing of MPS or of visible devices that the agent was started with gets into it."""
    inherited = {name: value for name, value in without_mps(os.environ).items() if name != VISIBLE_DEVICES}
    return {
        **inherited,
        PIPE_DIRECTORY: str(spec.pipe_directory),
        LOG_DIRECTORY: str(spec.log_directory),
        VISIBLE_DEVICES: ",".join(spec.devices),
        PROTOCOL_VERSION: VERSION_SPOKEN,
        OWNER_MARK: spec.owner,
    }


def end(found: Sequence[FoundProcess], timeout_s: float = END_S) -> list[str]:
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
    """Clients of other users walk through the pipe directory where root owns it; nobody reads the logs.

    A log folder that cannot be made, or is full, is a warning: the daemon starts without it.

    Raises:
        NotStarted: the pipe directory cannot be made.
    """
    mode = 0o755 if os.geteuid() == 0 else 0o700
    try:
        Path(spec.pipe_directory).mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise NotStarted(f"{spec.pipe_directory} cannot be made: {error.strerror}") from None
    try:
        Path(spec.log_directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        logs.bound(spec.log_directory)
    except OSError as error:
        return f"its logs cannot be kept in {spec.log_directory}: {error.strerror}"
    return ""
