"""The parent of one attempt's ranks on this host: forks them, and says how each has ended.

Rule: it is the attempt's from its first moment (session leader, subreaper) and works for one supervisor
alone: when that is gone, everything below it is killed. Ranks die with it. It acts on the supervisor's words
and keeps no time: who takes too long is ended by the supervisor. Clients of an MPS daemon alone outlive both,
for somebody else ends them in their order.

No rank runs a line of the user's before all of them have said `up`, so until then the supervisor may end them
and start them cold. A rank says so itself, and the kernel tells the supervisor who it is.

Words to the supervisor: `nanny`, `up` (of a rank), `failed`, `exit`, `clear`. From it: `go` (fork them),
`run` (all are up), `signal`, `clear` (end what is left).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import time

from . import rank as ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_POLL_MS = 1000
_CLEAR_S = 0.01
_WORD_BYTES_MAX = 4096


def main(
    connection: socket.socket,
    request: dict[str, Any],
    outputs: list[int],
    forked: Any,
) -> Callable[[], None]:
    """Returns in a rank alone, with what is to be run; the nanny itself ends here."""
    run = None
    try:
        run = _Nanny(connection, request, outputs, forked).work()
    finally:
        if run is None:  # Never return into the server that we are a fork of, nor run its `atexit`.
            os._exit(0)
    return run


class _Nanny:
    def __init__(
        self, connection: socket.socket, request: dict[str, Any], outputs: list[int], forked: Any
    ) -> None:
        self._connection = connection
        self._request = request
        self._outputs = outputs
        self._forked = forked
        self._workers, self._asks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """A launcher (torchrun) may have its workers forked as well: by us, who have no threads."""
        self._answers: dict[int, socket.socket] = {}
        """Where it hears of each worker, by pid."""
        self._pidfds: dict[int, int] = {}
        """Readable when that process ends: ours, and no worker's."""
        self._ranks: dict[int, int] = {}
        """Those that have not ended, by pid."""
        self._outlive = bool(request.get("outlive"))
        """Ranks are not killed because supervisor or nanny are gone."""
        self._gate = -1
        """The end of a pipe: no rank runs the user's code before it has read a byte from it."""

    def work(self) -> Callable[[], None] | None:
        os.setsid()
        ranks.sign(self._forked.sign_address, self._request["ranks"][0]["env"].get(ranks.ENV_SIGN, ""))
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._say({"m": "nanny"})
        word = self._hear()
        if word is None or word.get("m") != "go":
            return None
        gate, self._gate = os.pipe()
        for wanted in self._request["ranks"]:
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                os.close(self._gate)
                out, err = (self._outputs[number] for number in wanted["outputs"])
                others = [each for each in self._outputs if each not in (out, err)]
                self._workers.close()
                place = ranks.RankPlace(
                    parent, (out, err), others, gate, self._forked.added, dies=not self._outlive
                )
                asks = self._asks if self._request["launches"] else None
                return ranks.prepare_rank(self._connection, self._request, wanted, place, asks)
            self._ranks[pid] = int(wanted["rank"])
        for each in (gate, *self._outputs):
            os.close(each)
        self._asks.close()
        return self._look_after_them()

    def _look_after_them(self) -> Callable[[], None] | None:
        waiting = select.poll()
        waiting.register(self._connection, select.POLLIN)
        waiting.register(self._workers, select.POLLIN)
        is_left = False
        while not is_left or self._ranks:
            for pid in {*self._ranks, *self._answers} - set(self._pidfds.values()):
                descriptor = os.pidfd_open(pid)
                self._pidfds[descriptor] = pid
                waiting.register(descriptor, select.POLLIN)
            ready = [fd for fd, _ in waiting.poll(_POLL_MS)]
            for fd in ready:
                if self._pidfds.pop(fd, None) is not None:
                    waiting.unregister(fd)
                    os.close(fd)
            self._reap()
            if self._connection.fileno() in ready:
                word = self._hear()
                if word is None and self._outlive and self._gate < 0:  # They run.
                    waiting.unregister(self._connection)
                    is_left = True
                elif not self._obey(word):
                    self._end_all()
                    return None
            if self._workers.fileno() in ready:
                try:
                    run = self._fork_worker()
                except (OSError, ValueError):  # Nobody asks any more, or nobody who can.
                    waiting.unregister(self._workers)
                    continue
                if run is not None:
                    return run
        return None

    def _fork_worker(self) -> Callable[[], None] | None:
        """Returns in the worker what is to be run. Raises OSError, ValueError: the launcher is gone."""
        _, descriptors, _, _ = socket.recv_fds(self._workers, 64, 5)
        if len(descriptors) != 5:
            for each in descriptors:
                os.close(each)
            raise ValueError("the launcher is gone")
        text, out, err, gate, said = descriptors
        try:
            request = dict(json.loads(os.pread(text, ranks.REQUEST_BYTES_MAX, 0)))
        except (ValueError, RecursionError):
            raise ValueError("the launcher does not speak our language") from None
        os.close(text)
        answer = socket.socket(fileno=said)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            for held in (self._connection, self._workers, *self._answers.values()):
                held.close()
            for descriptor in self._pidfds:
                os.close(descriptor)
            place = ranks.RankPlace(parent, (out, err), [], gate, self._forked.added, dies=True)
            return ranks.prepared_worker(answer, request, place, self._forked.serves(request["env"]))
        for each in (out, err, gate):
            os.close(each)
        self._answers[pid] = answer
        return None

    def _obey(self, word: dict[str, Any] | None) -> bool:
        """Does what the word says. False: the run is over."""
        if word is None:
            return False
        kind = word.get("m")
        if kind == "run" and self._gate >= 0:
            os.write(self._gate, b"." * len(self._ranks))
            os.close(self._gate)
            self._gate = -1
        elif kind == "signal":
            for pid in self._ranks:  # Not waited for: the numbers are theirs.
                _signal_group(pid, int(word["number"]))
        elif kind == "clear":
            self._end_all()
            self._say({"m": "clear"})
            return False
        return True

    def _reap(self) -> None:
        """Ranks, and orphans of theirs, which nobody has to hear of."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            rank = self._ranks.pop(pid, None)
            if rank is not None:
                self._say({"m": "exit", "rank": rank, "code": code})
            answer = self._answers.pop(pid, None)
            if answer is not None:
                with contextlib.suppress(OSError), answer:
                    answer.send(json.dumps({"m": "exit", "code": code}).encode())

    def _end_all(self) -> None:
        """Kill until nobody is left: an orphan is ours as soon as its parent is gone."""
        while True:
            for pid in list(self._ranks):
                _signal_group(pid, signal.SIGKILL)
            for pid in _children():
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            time.sleep(_CLEAR_S)

    def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # It is gone: the next reading says so.
            self._connection.send(json.dumps(message).encode())

    def _hear(self) -> dict[str, Any] | None:
        try:
            data = self._connection.recv(_WORD_BYTES_MAX)
            return dict(json.loads(data)) if data else None
        except (OSError, ValueError, RecursionError):
            return None


def _signal_group(pid: int, number: int) -> None:
    """Sends the signal once: the second of two may come when Python has put its handlers away."""
    try:
        os.killpg(pid, number)
    except OSError:  # It has not come to lead its group yet.
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _children() -> list[int]:
    try:
        with open("/proc/self/task/{}/children".format(os.getpid())) as file:
            return [int(each) for each in file.read().split()]
    except OSError:  # A kernel without that list.
        return [pid for pid in _all_pids() if _parent_of(pid) == os.getpid()]


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent_of(pid: int) -> int:
    try:
        with open("/proc/{}/stat".format(pid)) as file:
            text = file.read()
    except OSError:
        return 0
    return int(text[text.rfind(")") + 2 :].split()[1])
