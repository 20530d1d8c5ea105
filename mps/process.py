"""Which process a daemon or a server is, safe against reuse of its pid.

Rule: a pid alone never identifies a process. Before a signal we open a pidfd and then compare start time and
boot; a zombie counts as gone. The agent has the same rule for supervisors
(`agent/host/facts.py`); this package stands alone, so that a user's own tools can use it without an agent.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cotenant.mps.environment import PIPE_DIRECTORY

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
OWNER_MARK = "COTENANT_MPS_OWNER"
"""In the environment of every daemon we start, and inherited by its servers: whose they are, even where the
record of it was lost."""
DRIVER_MARK = "COTENANT_MPS_DRIVER"
"""Beside it: the version of the driver that the daemon was started with."""
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
AS_DAEMON = ("-d", "-f", "--daemon", "--foreground")
_PROC = Path("/proc")
_KILLED_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsProcessIdentity:
    """The identity of a process. `start_ticks` is field 22 of /proc/PID/stat, in clock ticks since boot."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundProcess:
    """A control daemon or a server that runs now."""

    identity: MpsProcessIdentity
    uid: int
    pipe_directory: str | None
    """From its environment; None: another user's, whose environment we may not read."""
    owner: str = ""
    """Its owner mark; empty: not started by an agent of ours, or not readable."""
    devices: tuple[str, ...] = ()
    """That it was told to serve, in the order in which it numbers them."""
    driver: str = ""
    """The version of the driver that it was started with, as its owner noted it."""

    def __str__(self) -> str:
        return f"pid {self.identity.pid} of uid {self.uid}"


def identity_of(pid: int) -> MpsProcessIdentity | None:
    """The identity of a process; None: there is no such process, or only a zombie of it."""
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return MpsProcessIdentity(pid=pid, start_ticks=int(fields[19]), boot_id=boot_id())


def boot_id() -> str:
    """Changes with every boot, so that a record from before never matches."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def driver_version() -> str:
    """Of the kernel's NVIDIA driver; empty where none is loaded."""
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return ""


def is_alive(identity: MpsProcessIdentity) -> bool:
    return identity_of(identity.pid) == identity


def end(identity: MpsProcessIdentity, timeout_s: float, number: int = signal.SIGKILL) -> bool:
    """Signal exactly this process and wait for it to go; False: it would not (in time), or we may not.
    `number`: 0 sends nothing, and only waits.

    A stopped process takes SIGKILL too. We reap our own dead child: where we are process 1, nobody else
    does."""
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


def lock_holders(file: int) -> str:
    """Who has locked an open file with `flock`, as the kernel lists them, for a person."""
    inode, text = f":{os.fstat(file).st_ino}", ""
    with suppress(OSError):  # A kernel that does not list locks.
        text = (_PROC / "locks").read_text()
    lines = [line.split() for line in text.splitlines()]
    pids = sorted({fields[4] for fields in lines if fields[1] == "FLOCK" and fields[5].endswith(inode)})
    return f"by pid {', '.join(pids)}" if pids else "by an unknown process"


def names_inside(pid: int) -> tuple[int, ...]:
    """The pids that a process has in its namespaces, outermost (ours) first."""
    return tuple(dict.fromkeys((pid, *_status(pid, "NSpid"))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The MPS processes of this machine that we can see, at one moment."""

    daemons: tuple[FoundProcess, ...] = ()
    servers: tuple[FoundProcess, ...] = ()


def look_around() -> Running:
    """Reads the arguments of every process of this machine: not to be done all the time."""
    daemons: list[FoundProcess] = []
    servers: list[FoundProcess] = []
    for pid in map(int, filter(str.isdigit, os.listdir(_PROC))):
        arguments = (_read(pid, "cmdline") or b"").decode(errors="replace").split("\0")  # Open to everybody.
        if _is(arguments, CONTROL, AS_DAEMON):  # Front ends have the same name, and neither.
            daemons += _find_process(pid)
        elif _is(arguments, SERVER, ()):
            servers += _find_process(pid)
    return Running(daemons=tuple(daemons), servers=tuple(servers))


def environment_of(pid: int) -> dict[str, str] | None:
    """The environment as it was when the process started; None: gone, or not ours to read."""
    if (data := _read(pid, "environ")) is None:
        return None
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def run(
    command: Sequence[str], environment: Mapping[str, str], *, text: str = "", timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a program and read what it says; it is killed when the time is over.

    Returns in time even where the kernel does not let go of it; such a process is reaped later. It
    starts in the root folder: a daemon keeps that for its whole life, and with it a file system.

    Raises:
        OSError: it cannot be started.
        TimeoutError: it did not end in time.
    """
    process = subprocess.Popen(
        command,
        env=dict(environment),
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        output, errors = process.communicate(text, max(0.05, timeout_s))
        return subprocess.CompletedProcess(command, process.returncode, output, errors)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_KILLED_S)
        raise TimeoutError(f"{command[0]} did not end within {timeout_s:.1f} s") from None
    finally:
        for stream in filter(None, (process.stdin, process.stdout, process.stderr)):
            with suppress(OSError):
                stream.close()


def _find_process(pid: int) -> list[FoundProcess]:
    """The process with what is known of it, or nothing where it has ended since."""
    readable, identity = environment_of(pid), identity_of(pid)
    environment = readable or {}
    # Not the owner of /proc/PID, which is root for any process that wants that.
    uids = _status(pid, "Uid")
    if identity is None or not uids:
        return []
    return [
        FoundProcess(
            identity=identity,
            uid=uids[0],
            pipe_directory=None if readable is None else environment.get(PIPE_DIRECTORY, ""),
            owner=environment.get(OWNER_MARK, ""),
            devices=tuple(filter(None, environment.get(VISIBLE_DEVICES, "").split(","))),
            driver=environment.get(DRIVER_MARK, ""),
        )
    ]


def _read(pid: int, name: str) -> bytes | None:
    """A file of /proc/PID; None: the process is gone, or the file is not ours to read."""
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:
        return None


def _status(pid: int, name: str) -> list[int]:
    """The numbers of a line of /proc/PID/status; empty where there is none. Lines end with a line feed alone:
    a process may name itself with any other byte."""
    lines = (_read(pid, "status") or b"").split(b"\n")
    found = (line.split()[1:] for line in lines if line.startswith(f"{name}:\t".encode()))
    return [int(each) for each in next(found, [])]


def _is(arguments: Sequence[str], program: str, one_of: tuple[str, ...]) -> bool:
    """A script's name stands behind its interpreter's."""
    names = [argument.rpartition("/")[2] for argument in arguments[:4]]
    if program not in names:
        return False
    return not one_of or any(each in arguments[names.index(program) + 1 :] for each in one_of)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name, which may hold spaces and parentheses."""
    if (data := _read(pid, "stat")) is None:
        return None
    text = data.decode(errors="replace")
    return text[text.rfind(")") + 2 :].split()
