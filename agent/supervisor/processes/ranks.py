"""Starting and ending the processes of an attempt, and having them write their stacks.

Rule: each process is forked from the main thread, gives up what it must not have (root, our signal
handling, our files) and only then executes the user's command; whatever fails before is reported with its
stage. It is killed when the supervisor dies (PR_SET_PDEATHSIG): a job without a supervisor could neither
be stopped at the end of a lease nor be kept from running twice. The kernel ties this to the thread that
forked, so nothing here may run in another thread than the main one. MPS clients have a reaper instead
(`reaper.py`).

Stacks go into the logs. The stacks signal goes only to a process that has taken it (the kernel knows:
`SigCgt`), since to any other it is death. Its handler writes in C, wherever the process is, and the process
goes on. SIGABRT, for those that cannot, is likewise only sent to a process that handles it, as Python does
under PYTHONFAULTHANDLER: it writes its stacks and dies.
"""

from __future__ import annotations

import os
import pwd
import select
import signal
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from cotenant.agent.host.cgroups import RANKS, AttemptCgroup
from cotenant.agent.host.process_identity import children_of, identity_of, open_pidfd
from cotenant.agent.host.rights import die_with, drop_to
from cotenant.agent.ipc.records import Order, RankOrder
from cotenant.agent.supervisor.core.exits import LaunchStage, StartProblem
from cotenant.agent.supervisor.processes.environment import STACKS_SIGNAL, Account
from cotenant.agent.supervisor.processes.launchers import NotLaunchable
from cotenant.agent.supervisor.processes.terminal import take_terminal
from cotenant.controller.domain import InputFile, Launch
from cotenant.controller.wire import BadMessage, decode_json

_EXEC_WAIT_S: Final = 30.0
_RESET: Final = ("SIGHUP", "SIGINT", "SIGTERM", "SIGPIPE", "SIGXFSZ", "SIGCHLD", "SIGUSR1", "SIGUSR2")

PROCESSES_MAX: Final = 64
"""A rank with hundreds of data loaders must not fill its log with them."""


class RankStartFailed(Exception):
    """A process could not be started; `problem` says at which stage."""

    def __init__(self, problem: StartProblem) -> None:
        super().__init__(problem.text)
        self.problem = problem


def keep_files_to_ourselves() -> None:
    """The locks that we inherited say that we live; a rank that held them would say so after our death."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with suppress(OSError):  # The listing's own.
                os.set_inheritable(int(name), False)


def account_of(uid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:  # Known to the submitter's host, not to this one.
        return Account()
    return Account(name=entry.pw_name, home=entry.pw_dir, shell=entry.pw_shell)


def cuda_indices(uuids: tuple[str, ...], *, alone: bool) -> tuple[int, ...]:
    """The indices of devices in PCI order, from the driver's own tool. `alone`: as a process counts them that
    sees no others.

    Raises:
        NotLaunchable: it does not say them.
    """
    import subprocess  # Rarely needed, and every attempt pays for what is imported above.

    if not uuids:
        return ()
    query = ["nvidia-smi", "--query-gpu=uuid,index", "--format=csv,noheader"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
        index = dict(line.split(", ") for line in text.splitlines() if ", " in line)
        found = tuple(int(index[uuid]) for uuid in uuids)
    except (OSError, subprocess.SubprocessError, KeyError) as error:
        why = f"nvidia-smi does not say the index of {', '.join(uuids)} ({error})"
        raise NotLaunchable(f"{why}: --devices-as uuid needs none") from None
    return tuple(map(sorted(found).index, found)) if alone else found


def start(
    order: Order,
    rank: RankOrder,
    argv: tuple[str, ...],
    env: Mapping[str, str],
    outputs: Sequence[int],
    cgroup: AttemptCgroup,
    *,
    dies_with_us: bool = True,
) -> int:
    """Start one process with stdout and stderr on `outputs`; returns its pid.

    Raises:
        StartFailed: it never came to execute the command.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(read_end)
        os.close(write_end)
        raise _start_failure(rank, "process", error) from None
    if pid == 0:
        _be_rank(order, rank, argv, env, outputs, cgroup, write_end, parent if dies_with_us else None)
    os.close(write_end)
    try:
        # A working directory on a file system that hangs must not hang us as well.
        ready, _, _ = select.select([read_end], [], [], _EXEC_WAIT_S)
        said = os.read(read_end, 4096) if ready else b""
    finally:
        os.close(read_end)
    if not said:
        return pid
    os.waitpid(pid, 0)
    try:
        problem: StartProblem = decode_json(said, StartProblem)
    except BadMessage:  # Somebody ended it while it reported.
        problem = StartProblem(rank=rank.rank, stage="process", code=0, text="it ended before it began")
    raise RankStartFailed(problem)


def end_groups(pids: list[int], number: signal.Signals) -> None:
    """Signal started processes and their process groups. None of them may have been waited for yet."""
    for pid in pids:
        try:
            os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def kill_children() -> None:
    """SIGKILL all of them; their own children become ours and are found the next time."""
    for pid in children_of(os.getpid()):
        try:
            os.kill(pid, signal.SIGKILL)  # Safe: a child keeps its pid until we wait for it.
        except (ProcessLookupError, PermissionError):
            continue


def reap() -> list[tuple[int, int]]:
    """Wait for whatever has ended: pids and exit codes, negative for signals."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


# --- In the new process ----------------------------------------------------------------------------


def _be_rank(
    order: Order,
    rank: RankOrder,
    argv: tuple[str, ...],
    env: Mapping[str, str],
    outputs: Sequence[int],
    cgroup: AttemptCgroup,
    report: int,
    parent: int | None,
) -> NoReturn:
    """Becomes the rank and never returns: executes the command, or reports why not."""
    launch = order.launch
    stages: tuple[tuple[LaunchStage, Callable[[], object]], ...] = (
        ("process", lambda: _shed_signals_and_files(outputs, launch)),
        ("process", lambda: cgroup.enter(RANKS) if cgroup else None),
        ("process", lambda: _pin(rank.cores)),
        ("user", lambda: drop_to(launch.uid, launch.gid, launch.groups)),
        ("process", lambda: die_with(parent) if parent is not None else None),
        ("workdir", lambda: os.chdir(launch.workdir)),
        ("process", lambda: _read_from(launch.input) if launch.input is not None else None),
        ("command", lambda: os.execvpe(argv[0], list(argv), dict(env))),
    )
    try:
        for stage, act in stages:
            try:
                act()
            except OSError as error:
                os.write(report, msgspec.json.encode(_start_failure(rank, stage, error).problem))
                break
            except (ValueError, IndexError) as error:  # A zero byte in an argument; no command at all.
                problem = StartProblem(rank=rank.rank, stage="command", code=22, text=str(error))
                os.write(report, msgspec.json.encode(problem))
                break
    finally:
        os._exit(126)


def _start_failure(rank: RankOrder, stage: LaunchStage, error: OSError) -> RankStartFailed:
    text = os.strerror(error.errno) if error.errno else str(error)
    return RankStartFailed(StartProblem(rank=rank.rank, stage=stage, code=error.errno or 0, text=text))


def _shed_signals_and_files(outputs: Sequence[int], launch: Launch) -> None:
    signal.set_wakeup_fd(-1)
    for name in _RESET:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if launch.terminal:
        take_terminal(outputs[0])
    else:
        os.setpgid(0, 0)
    reading = outputs[0] if launch.terminal else os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((reading, *outputs)):
        os.dup2(source, target)  # Everything else is closed on exec.
    os.umask(launch.umask)


def _read_from(source: InputFile) -> None:
    """Standard input, opened as the job's user; nothing where that `run` is gone, or on another host."""
    with suppress(OSError):
        file = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        found = os.fstat(file)
        if (found.st_dev, found.st_ino) != (source.device, source.inode):
            return
        if stat.S_ISREG(found.st_mode):
            os.lseek(file, source.offset, os.SEEK_SET)
        os.set_blocking(file, True)
        os.dup2(file, 0)


def _pin(cores: tuple[int, ...]) -> None:
    if cores:
        os.sched_setaffinity(0, cores)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; False if it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    mask = next((line.split()[1] for line in text.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)


def dump(pids: Iterable[int]) -> list[int]:
    """Ask each for its stacks, once: two at a time in one process are not safe. Returns those asked."""
    return [pid for pid in [*dict.fromkeys(pids)][:PROCESSES_MAX] if _send_if_caught(pid, STACKS_SIGNAL)]


def interrupt(pids: Iterable[int]) -> None:
    """SIGINT to each that handles it, as Python does."""
    for pid in pids:
        _send_if_caught(pid, signal.SIGINT)


def abort_others(pids: Iterable[int]) -> list[int]:
    """Abort those that could not be asked and write their stacks when they are aborted; returns them."""
    others = [pid for pid in list(pids)[:PROCESSES_MAX] if not catches(pid, STACKS_SIGNAL)]
    return [pid for pid in others if _send_if_caught(pid, signal.SIGABRT)]


def _send_if_caught(pid: int, number: int) -> bool:
    identity = identity_of(pid)
    descriptor = open_pidfd(identity) if identity is not None else None
    if descriptor is None:
        return False
    try:
        if not catches(pid, number):
            return False
        with suppress(OSError):
            signal.pidfd_send_signal(descriptor, number)
            return True
        return False
    finally:
        os.close(descriptor)
