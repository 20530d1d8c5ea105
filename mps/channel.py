"""The only way to ask a control daemon anything, and what one can ask, as functions with types.

Rule: one question at a time per pipe directory, for all processes together. The daemon loses answers under
parallel questions (sometimes with an empty answer and exit status 0), so askers take turns by a lock file
beside the directory: beside it, so that a recreated directory still has the same lock. Everything has a time
limit, because a wedged daemon blocks its front end for ever; the asker then kills the front end by its
handle.

Rule: a setting counts as set when it was read back. The daemon says nothing, or repeats the old value,
where it does not like the new one, and its exit status is always 0.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

from cotenant.mps import answers, process
from cotenant.mps.environment import PIPE_DIRECTORY, drop_mps_variables, percentage_text

ANSWER_S = 5.0
"""An answer takes milliseconds, tens of them on a loaded machine."""
LOCK_WAIT_S = 15.0
"""Longer than one asker may hold the lock."""
_FIRST_PAUSE_S = 0.005
_PAUSE_S_MAX = 0.02
PERCENTAGE_SHOWN_TO = 0.06
"""The daemon shows one decimal."""
_NO_DAEMON = "cannot find mps control daemon"
_NOT_NOW = "cannot send command"


class ChannelError(Exception):
    """There was no answer. One line, for a person."""


class NoDaemon(ChannelError):
    """No daemon listens in this pipe directory."""


class Wedged(ChannelError):
    """A daemon listens and does not answer in time."""


class LockBusy(ChannelError):
    """The error of a lock that could not be had: others asked all the time, or the lock file cannot be used:
    nothing is known about the daemon."""


@dataclass(slots=True, kw_only=True)
class ControlChannel:
    """Questions to the daemon of one pipe directory. Blocks for up to `lock_wait_s` + `answer_s`."""

    pipe_directory: PurePosixPath
    program: str = process.CONTROL
    answer_s: float = ANSWER_S
    lock_wait_s: float = LOCK_WAIT_S

    def ask(self, command: str) -> str:
        """The daemon's answer, complete; what it means is `health.py`'s business.

        Raises:
            NoDaemon, Wedged, LockBusy: no answer.
            Incomplete: the daemon lost answers again and again: another process asks without the lock.
        """
        with self._turn():
            return self._ask_until(command, time.monotonic() + self.answer_s)

    def quit(self, timeout_s: float) -> bool:
        """Ask the daemon to end, and its servers by force after `timeout_s`. True: all ended gracefully.

        It is sent alone: behind `quit` nothing is answered. The daemon has stopped listening then; the caller
        waits for its process to go, by its identity.

        Raises:
            NoDaemon, Wedged, LockBusy: the daemon did not hear it, or does not end.
            Rejected: it is not ours to end.
        """
        seconds = max(1, round(timeout_s))
        with self._turn():
            deadline_s = time.monotonic() + seconds + self.answer_s
            was_graceful: bool | None = None
            for _ in _pauses(deadline_s):
                try:
                    done = self._front_end(f"quit -t {seconds}\n", deadline_s)
                except NoDaemon:
                    if was_graceful is None:
                        raise
                    return was_graceful  # A moment ago it was still on its way out.
                if "privilege" in done.stdout.lower():
                    raise answers.Rejected(done.stdout.strip()[:200])
                if not (done.returncode and _NOT_NOW in done.stderr.lower()):
                    was_graceful = done.returncode == 0
                    if self._nobody_listens(deadline_s):
                        return was_graceful
                # Another front end, outside the lock, is connected: `quit` got lost.
        raise Wedged(f"the MPS daemon of {self.pipe_directory} was told to quit and still runs")

    def server_list(self) -> tuple[int, ...]:
        """The pids of a daemon's servers. Servers start with the first client; an old one and a new one may
        overlap."""
        return answers.pids(self.ask("get_server_list"))

    def server_status(self, server: int) -> answers.ServerState | None:
        """The state of one server; None: this daemon does not know the question (drivers up to 535)."""
        answer = self.ask(f"get_server_status {server}")
        return None if answers.unknown_command(answer) else answers.server_state(answer)

    def client_list(self, server: int) -> tuple[int, ...]:
        """Pids of its clients, as the daemon's own pid namespace has them."""
        return answers.pids(self.ask(f"get_client_list {server}"))

    def set_default_percentage(self, wanted: float) -> None:
        """Sets the percentage for the next server. Raises Rejected if another value stays in force."""
        echo = answers.percentage(self.ask(f"set_default_active_thread_percentage {percentage_text(wanted)}"))
        _check_percentage(wanted, echo)

    def default_memory_limits(self, devices: int) -> tuple[str, ...]:
        """The limits that the next server gives each client on the first so many devices, as `DEVICE=VALUE`.
        Drivers differ in how they say that there is none."""
        said = [self.ask(f"get_default_device_pinned_mem_limit {number}") for number in range(devices)]
        found = [re.fullmatch(r"\s*([0-9]+[GM])\s*", answer) for answer in said]
        return tuple(f"{number}={limit[1]}" for number, limit in enumerate(found) if limit)

    def server_percentage(self, server: int) -> float:
        return answers.percentage(self.ask(f"get_active_thread_percentage {server}"))

    def set_percentage(self, server: int, wanted: float) -> None:
        """Sets the percentage for later clients of a server that runs. Raises Rejected if another value
        stays in force."""
        self.ask(f"set_active_thread_percentage {server} {percentage_text(wanted)}")
        _check_percentage(wanted, self.server_percentage(server))

    def terminate_client(self, server: int, client: int) -> bool:
        """End a client's work on the GPU; False: the daemon says no. Its process lives on, without a usable
        CUDA context (error 810)."""
        return not answers.refuses_termination(self.ask(f"terminate_client {server} {client}"))

    def _nobody_listens(self, deadline_s: float) -> bool:
        try:
            self._front_end("get_server_list\n", deadline_s)
        except NoDaemon:
            return True
        return False

    def _ask_until(self, command: str, deadline_s: float) -> str:
        lost: answers.Incomplete | None = None
        for _ in _pauses(deadline_s):
            sentinel = f"end-of-answer-{secrets.token_hex(4)}"
            try:
                done = self._front_end(answers.query(command, sentinel), deadline_s)
                return answers.answer_before_sentinel(done.stdout, sentinel)
            except Wedged:
                if lost is not None:  # It did answer, just not in time again.
                    raise lost from None
                raise
            except answers.Incomplete as error:
                lost = error
        assert lost is not None
        raise lost

    def _front_end(self, text: str, deadline_s: float) -> subprocess.CompletedProcess[str]:
        environment = {**drop_mps_variables(os.environ), PIPE_DIRECTORY: str(self.pipe_directory)}
        left_s = deadline_s - time.monotonic()
        try:
            done = process.run((self.program,), environment, text=text, timeout_s=left_s)
        except TimeoutError:
            raise Wedged(f"the MPS daemon of {self.pipe_directory} does not answer") from None
        except OSError as error:
            raise NoDaemon(f"cannot run {self.program}: {error.strerror}") from None
        if done.returncode and _NO_DAEMON in done.stderr.lower():
            raise NoDaemon(f"no MPS daemon listens in {self.pipe_directory}")
        return done

    @contextmanager
    def _turn(self) -> Iterator[None]:
        path = lock_path(self.pipe_directory)
        try:
            file = _open(path)
        except OSError as error:
            raise LockBusy(f"the lock file {path} cannot be used: {error.strerror}") from None
        try:
            _lock(file, path, time.monotonic() + self.lock_wait_s)
            yield
        finally:
            os.close(file)


def lock_path(pipe_directory: PurePosixPath) -> PurePosixPath:
    return pipe_directory.parent / f"{pipe_directory.name}.lock"


def _open(path: PurePosixPath) -> int:
    """The lock file, made where it is not there; never a link. For this account alone: whoever can open it
    could keep us from asking.

    Raises:
        OSError: it cannot be made or opened, or is something else.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(0, "not a plain file", str(path))
    return file


def _lock(file: int, path: PurePosixPath, deadline_s: float) -> None:
    for _ in _pauses(deadline_s):
        with suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    raise LockBusy(f"{path} is held all the time ({process.lock_holders(file)})")


def _pauses(deadline_s: float) -> Iterator[None]:
    """Tries, the first at once, with a pause before each other while the deadline leaves room for it."""
    pause_s = _FIRST_PAUSE_S
    yield
    while time.monotonic() + pause_s < deadline_s:
        time.sleep(pause_s)
        yield
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)


def _check_percentage(wanted: float, in_force: float) -> None:
    if abs(wanted - in_force) > PERCENTAGE_SHOWN_TO:
        raise answers.Rejected(f"{percentage_text(wanted)} % was not taken: {in_force} % is in force")
