"""Ending what is left of an attempt whose supervisor is gone: for an agent, or as the attempt's own reaper,
`python -m cotenant.agent.supervisor.processes.reaper FOLDER`.

Rule: kill only what is proven to be the attempt's. The proof is, in this order, membership of its
cgroup; its own socket path in the process's environment (unique on the machine, unlike the job's
number); or membership of the supervisor's session. Each is checked again after a pidfd is open, so a
pid that changed hands in between is left alone. Clients of an MPS daemon are taken back by it first, then
told with SIGTERM, and only then killed, as `core/stopping.py` says; no other process is. Where the daemon
does not help, the reaper leaves a file in the attempt's folder for whoever writes its result.

Why there is a reaper: ranks of other attempts are killed by the kernel in the moment their supervisor dies
(PR_SET_PDEATHSIG). A client of an MPS daemon must not die that way: killed with work under way it may take
its co-clients with it. So its ranks outlive the supervisor for the seconds that the reaper needs to do the
same in the right order. It notices the death by the end of a pipe, does nothing where a result was written,
and needs no agent.

It is no child of the supervisor, in no group of the attempt, and holds none of its locks: whoever ends the
attempt does not end the reaper, and an agent that finds the supervisor dead is not kept from cleaning up as
well.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from cotenant.agent.containers.processes import remove_containers
from cotenant.agent.host.cgroups import RANKS, SUPERVISOR, AttemptCgroup
from cotenant.agent.host.process_identity import boot_id, identity_of, open_pidfd, stat_of
from cotenant.agent.ipc import files, records
from cotenant.agent.ipc.records import SUPERVISOR as SUPERVISOR_FILE
from cotenant.agent.supervisor.core.stopping import TERMINATE_S, unclean
from cotenant.agent.supervisor.processes.attempt_folder import remove_short_folder
from cotenant.agent.supervisor.processes.termination import group_by_pipe, terminate
from cotenant.checkpoint.talk.protocol import ENV_SOCKET
from cotenant.controller.system.diagnostics import say, take_standard_error

_ROUNDS_MAX = 50
_LOOK_S = 0.05
TERM_GRACE_S = 2.0
"""Between SIGTERM and SIGKILL for an MPS client without a supervisor."""
REAPER_ROUNDS: Final = 6
"""Of ten seconds each: then it is for the agent, which tries for ever."""
DYING_S: Final = 10.0
"""From the end of its files to that of the supervisor."""
EXIT_USAGE: Final = 2


def end_leftovers(
    folder: Path, order: records.Order, supervisor: records.ProcessIdentity | None, timeout_s: float = 10.0
) -> list[int]:
    """SIGKILL every process of an attempt and wait until they are gone; returns those that would not go.

    To be called when the supervisor does not run (any more). Blocks for up to `timeout_s`, for MPS clients
    `TERMINATE_S` and `TERM_GRACE_S` longer.
    """
    attempt = _Attempt(folder, order, supervisor)
    if order.mps:
        attempt.take_back(order)
    deadline_s = time.monotonic() + timeout_s
    for _ in range(_ROUNDS_MAX):  # More than one: a process may fork while we look.
        attempt.cgroup.kill(RANKS)
        attempt.cgroup.kill(SUPERVISOR)
        found = attempt.find()
        if not found:
            break
        for pid in found:
            attempt.end(pid, deadline_s)
        if time.monotonic() > deadline_s:
            break
    left = attempt.find()
    if not left:
        remove_containers(order, folder)
        attempt.cgroup.remove()
        remove_short_folder(folder)
    return left


def end_others(folder: Path, order: records.Order) -> list[int]:
    """SIGKILL what is the attempt's by its group or by its environment, but for the supervisor, which calls
    this; returns who that was."""
    attempt = _Attempt(folder, order, None)
    found = attempt.find()
    for pid in found:
        attempt.end(pid, time.monotonic())
    return found


class _Attempt:
    def __init__(
        self, folder: Path, order: records.Order, supervisor: records.ProcessIdentity | None
    ) -> None:
        self.cgroup = AttemptCgroup(order, folder)
        self._folder = folder
        self._sign = f"{ENV_SOCKET}={records.job_socket(folder)}".encode()
        self._supervisor = supervisor
        self._uids = {os.geteuid(), order.launch.uid}

    def take_back(self, order: records.Order) -> None:
        """Have the daemons tear down what they hold for it, then ask the processes to go."""
        found = self.find()
        if not found:
            return
        if unclean(terminate(group_by_pipe(order, {}, found), TERMINATE_S), ""):
            with suppress(OSError):  # A full disk: then nobody hears of it.
                (self._folder / records.UNCLEAN).touch(mode=0o600)
        for pid in found:
            self.end(pid, 0.0, signal.SIGTERM)
        until_s = time.monotonic() + TERM_GRACE_S
        while self.find() and time.monotonic() < until_s:
            time.sleep(_LOOK_S)

    def find(self) -> list[int]:
        return [pid for pid in sorted({*_pids(), *self._members()}) if self._owns(pid)]

    def end(self, pid: int, deadline_s: float, number: signal.Signals = signal.SIGKILL) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if not self._owns(pid):
                return
            signal.pidfd_send_signal(descriptor, number)
            select.select([descriptor], [], [], max(0.0, deadline_s - time.monotonic()))
        except ProcessLookupError:
            return
        finally:
            os.close(descriptor)

    def _owns(self, pid: int) -> bool:
        stat = stat_of(pid)
        if stat is None or stat.state in "ZX" or pid == os.getpid():
            return False
        if pid in self._members():
            return True
        try:
            if self._sign in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return True
            return self._is_in_session(stat.session, stat.start_ticks) and (
                os.stat(f"/proc/{pid}").st_uid in self._uids
            )
        except OSError:  # Gone meanwhile, or another user's.
            return False

    def _members(self) -> list[int]:
        return [*self.cgroup.pids(RANKS), *self.cgroup.pids(SUPERVISOR)]

    def _is_in_session(self, session: int, start_ticks: int) -> bool:
        """Whether a process is in the session that the supervisor led. The kernel keeps the session's number
        while the session has members, so only when the number runs again as another process does it mean
        another session."""
        led = self._supervisor
        if led is None or led.boot_id != boot_id() or session != led.pid or start_ticks < led.start_ticks:
            return False
        now = identity_of(led.pid)
        return now is None or now == led


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def leave_to_reaper(folder: Path) -> int:
    """Start one for this process; returns the descriptor that must stay open, and with us alone, for our
    life.

    To be called before `become_subreaper`, or it would become our child. Raises OSError.
    """
    watched, ours = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            subprocess.Popen(  # Not waited for: the process in between ends, and init takes it over.
                [sys.executable, "-m", "cotenant.agent.supervisor.processes.reaper", str(folder)],
                stdin=watched,
                stdout=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
            code = 0
        finally:
            os._exit(code)
    os.close(watched)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        os.close(ours)
        raise OSError("cannot start the reaper")
    return ours


def inherit(folder: Path) -> None:
    """The supervisor is dead: if it has left no result, end what is left."""
    order = files.read_record(folder / records.ORDER, records.Order)
    if order is None or files.read_record(folder / records.RESULT, records.Result) is not None:
        return
    supervisor = files.read_record(folder / SUPERVISOR_FILE, records.ProcessIdentity)
    if supervisor is not None and not _has_died(supervisor):  # Its pipe alone is gone.
        return
    for _ in range(REAPER_ROUNDS):
        if not end_leftovers(folder, order, supervisor):
            return
        time.sleep(1.0)


def _has_died(supervisor: records.ProcessIdentity) -> bool:
    """A process that is killed closes its files first, and is alive for a moment longer."""
    descriptor = open_pidfd(supervisor)
    if descriptor is None:
        return True
    try:
        return bool(select.select([descriptor], [], [], DYING_S)[0])
    finally:
        os.close(descriptor)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        say("usage: python -m cotenant.agent.supervisor.processes.reaper ATTEMPT_FOLDER")
        return EXIT_USAGE
    while os.read(0, 1):
        pass
    try:
        inherit(Path(arguments[0]))
    except (files.BadRecord, OSError) as error:
        say(f"reaper: {error}")
        return 1
    return 0


if __name__ == "__main__":
    take_standard_error()
    sys.exit(main(sys.argv[1:]))
