"""Which process a daemon or a server is, safe against reuse of its pid.

Rule: a pid alone never identifies a process. What we signal was compared by start time and boot after a
pidfd was open; a zombie counts as gone. The agent has the same rule for supervisors (`agent/identity.py`);
this package stands alone, so that a user's own tools can use it without an agent.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cotenant.mps.environment import PIPE_DIRECTORY

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
OWNER_MARK = "COTENANT_MPS_OWNER"
"""In the environment of every daemon we start, and inherited by its servers: whose they are, even where the
record of it was lost."""
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A process. `start_ticks` is field 22 of /proc/PID/stat, in clock ticks since boot."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A control daemon or a server that runs now."""

    identity: Identity
    uid: int
    pipe_directory: str | None
    """From its environment; None: another user's, whose environment we may not read."""
    owner: str = ""
    """Its owner mark; empty: not started by an agent of ours, or not readable."""

    def __str__(self) -> str:
        return f"pid {self.identity.pid} of uid {self.uid}"


def identity_of(pid: int) -> Identity | None:
    """None: there is no such process, or only a zombie of it."""
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return Identity(pid=pid, start_ticks=int(fields[19]), boot_id=boot_id())


def boot_id() -> str:
    """Changes with every boot, so that a record from before never matches."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def is_alive(identity: Identity) -> bool:
    return identity_of(identity.pid) == identity


def end(identity: Identity, timeout_s: float, number: int = signal.SIGKILL) -> bool:
    """Signal exactly this process and wait for it to go; False: it would not (in time), or we may not.

    A stopped process takes SIGKILL too. Our own dead child is reaped: where we are the machine's first
    process, nobody else would.
    """
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return True
    try:
        if is_alive(identity):  # After opening: from here on the descriptor cannot mean another process.
            signal.pidfd_send_signal(descriptor, number)
            select.select([descriptor], [], [], timeout_s)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    finally:
        os.close(descriptor)
    reap(identity.pid)
    return not is_alive(identity)


def reap(pid: int) -> None:
    """Collect a dead child of ours, if it is one."""
    fields = _stat(pid)
    if fields is not None and fields[0] == "Z" and int(fields[1]) == os.getpid():
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return


def parent_of(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def children_of(pid: int) -> tuple[int, ...]:
    """Its child processes that are no zombies."""
    return tuple(each for each in _pids() if parent_of(each) == pid and identity_of(each) is not None)


def names_inside(pid: int) -> tuple[int, ...]:
    """The pids that a process has in its namespaces, outermost (ours) first."""
    try:
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return (pid,)
    inner = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return tuple(dict.fromkeys((pid, *map(int, inner))))


def daemons() -> Iterator[Found]:
    """Every control daemon of this machine that we can see. Front ends have the same name, and no `-d`."""
    return _running(CONTROL, ("-d", "-f"))


def servers() -> Iterator[Found]:
    """Every MPS server of this machine that we can see."""
    return _running(SERVER, ())


def environment_of(pid: int) -> dict[str, str] | None:
    """As it was when the process started; None: gone, or not ours to read."""
    try:
        data = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _running(program: str, one_of: tuple[str, ...]) -> Iterator[Found]:
    for pid in _pids():
        if not _is(pid, program, one_of):
            continue
        identity = identity_of(pid)
        environment: Mapping[str, str] | None = environment_of(pid)
        try:
            uid = os.stat(_PROC / str(pid)).st_uid
        except OSError:
            continue
        if identity is not None:
            known = environment or {}
            yield Found(
                identity=identity,
                uid=uid,
                pipe_directory=None if environment is None else known.get(PIPE_DIRECTORY, ""),
                owner=known.get(OWNER_MARK, ""),
            )


def _is(pid: int, program: str, one_of: tuple[str, ...]) -> bool:
    """By its arguments, which every user may read; a script's name stands behind its interpreter's."""
    try:
        arguments = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    names = [PurePosixPath(argument).name for argument in arguments[:4]]
    if program not in names:
        return False
    return not one_of or any(each in arguments[names.index(program) + 1 :] for each in one_of)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name, which may hold spaces and parentheses."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rfind(")") + 2 :].split()


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdigit())
