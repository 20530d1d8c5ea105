"""A supervisor's side of a warm start: ask a fork server, and look after the nanny it forks.

Rule: until we say `run` no code of the user's has run, so for whatever goes wrong before we raise
`WarmRefused`, kill everything that was forked, and start the attempt cold. The kernel says who speaks (the
credentials of each message), never the message: a server is a process of the user's, and we may be root.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from cotenant.agent.host.cgroups import RANKS, AttemptCgroup
from cotenant.agent.host.process_identity import identity_of, open_pidfd
from cotenant.agent.ipc.channel import short_address
from cotenant.agent.ipc.records import Order, RankOrder
from cotenant.agent.warm.refusals import Program, WarmRefused
from cotenant.controller.wire import BadMessage, decode_json

ABANDONED_S: Final = 2.0
RANKS_MAX: Final = 64
WORD_BYTES_MAX: Final = 4096
WORDS_MAX: Final = 256
"""Taken in one go."""
_CREDENTIALS: Final = struct.Struct("3i")


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """What a server, a nanny or a rank says."""

    m: str
    rank: int = -1
    code: int | str = ""
    """Of an exit, negative for a signal; of a refusal."""
    detail: str = ""


class Exited(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    code: int
    """Negative for a signal."""


class Nanny:
    """The process that looks after an attempt's ranks, and those ranks."""

    def __init__(self, connection: socket.socket, uid: int) -> None:
        self._connection = connection
        self._uid = uid
        self.pid, self._pidfd = 0, -1
        self._rank_fds: dict[int, int] = {}
        self.pids: dict[int, int] = {}
        """Of ranks, by rank, as the kernel has told."""
        self.is_gone = False
        self._is_clearing = False
        self._is_fresh = False
        """The server has found its environment unchanged."""

    def fileno(self) -> int:
        return self._connection.fileno()

    # --- Starting ----------------------------------------------------------------------------------

    def bring_up(self, cgroup: AttemptCgroup, ranks: frozenset[int], until_s: float) -> None:
        """Brings up the nanny and the processes of its ranks. Raises WarmRefused, OSError."""
        pid = self._expect_word("nanny", until_s)[1]
        self.pid, self._pidfd = pid, self._open_pid(pid)
        cgroup.enter(RANKS, pid)  # What it forks is there from its first moment on.
        self._say({"m": "go"})
        while set(self.pids) != ranks:
            word, pid = self._expect_word("up", until_s)
            if word.rank not in ranks or word.rank in self.pids:
                raise WarmRefused("rank", "it said whom it is twice")
            self._rank_fds[word.rank] = self._open_pid(pid)
            if not cgroup.holds(RANKS, pid):
                cgroup.enter(RANKS, pid)
            self.pids[word.rank] = pid
        if not self._is_fresh:
            self._expect_word("fresh", until_s)
        self._say({"m": "run"})
        self._connection.setblocking(False)

    def _expect_word(self, kind: str, until_s: float) -> tuple[Word, int]:
        """The next word, and the process that said it, which is of the job's user."""
        self._connection.settimeout(max(0.001, until_s - time.monotonic()))
        try:
            heard = self._receive()
        except TimeoutError:
            raise WarmRefused("silent") from None
        if heard is None:
            raise WarmRefused("gone")
        word, pid, uid = heard
        if word.m in ("refused", "failed"):
            raise WarmRefused(str(word.code), word.detail)
        if word.m == "fresh" and not self._is_fresh:  # It looks while its nanny comes up.
            self._is_fresh = True
            return (word, pid) if kind == "fresh" else self._expect_word(kind, until_s)
        if word.m != kind or uid != self._uid or pid <= 0:
            raise WarmRefused("rank", f"an unexpected message: {word.m[:20]!r} of uid {uid}")
        return word, pid

    def _open_pid(self, pid: int) -> int:
        """Returns a descriptor of a process that waits for our next word, or for the gate: the process's
        number is its own until then."""
        identity = identity_of(pid)
        descriptor = open_pidfd(identity) if identity is not None else None
        if descriptor is None:
            raise WarmRefused("gone")
        if os.stat(f"/proc/{pid}").st_uid != self._uid:  # It has ended, and another process has its number.
            os.close(descriptor)
            raise WarmRefused("gone")
        return descriptor

    # --- Running -----------------------------------------------------------------------------------

    def read(self) -> list[Exited]:
        """Returns which ranks have ended; sets `is_gone` once the nanny has, by itself or killed."""
        found: list[Exited] = []
        for _ in range(WORDS_MAX):
            try:
                heard = self._receive()
            except BlockingIOError:
                return found
            if heard is None:
                self.is_gone = True
                return found
            word = heard[0]
            if word.m == "exit" and isinstance(word.code, int) and heard[2] == self._uid:
                found.append(Exited(rank=word.rank, code=word.code))
        return found

    def signal(self, number: int) -> None:
        """Sends a signal to each rank's process group. A kill goes to the ranks from here as well: it must
        not depend on a process that somebody may have stopped."""
        self._say({"m": "signal", "number": number})
        if number == signal.SIGKILL:
            for descriptor in self._rank_fds.values():
                _send(descriptor, number)

    def clear(self) -> None:
        """End what is left of them and go."""
        if not self._is_clearing:
            self._is_clearing = True
            self._say({"m": "clear"})

    def kill(self) -> None:
        """The kernel kills the ranks with it."""
        if self._pidfd >= 0:
            _send(self._pidfd, signal.SIGKILL)
        for descriptor in self._rank_fds.values():
            _send(descriptor, signal.SIGKILL)

    def handed_over(self) -> dict[int, int]:
        """Descriptors of its ranks' processes, by rank: the caller's from now on, who sees them end."""
        descriptors, self._rank_fds = self._rank_fds, {}
        return descriptors

    def close(self) -> None:
        self._connection.close()
        for descriptor in (self._pidfd, *self._rank_fds.values()):
            if descriptor >= 0:
                os.close(descriptor)
        self._pidfd, self._rank_fds = -1, {}

    def abandon(self) -> None:
        """Kill it before it was told to run, and wait a moment until its ranks are gone."""
        self.kill()
        for descriptor in (self._pidfd, *self._rank_fds.values()):
            if descriptor >= 0:
                select.select([descriptor], [], [], ABANDONED_S)
        self.close()

    # --- The socket --------------------------------------------------------------------------------

    def _say(self, message: Mapping[str, object]) -> None:
        with suppress(OSError):  # Its end is read, not written.
            self._connection.send(json.dumps(message).encode())

    def _receive(self) -> tuple[Word, int, int] | None:
        """A word with the pid and uid of its sender; None at the end. Raises BlockingIOError,
        TimeoutError."""
        space = socket.CMSG_SPACE(_CREDENTIALS.size)
        try:
            data, ancillary, _, _ = self._connection.recvmsg(WORD_BYTES_MAX, space)
        except ConnectionError:
            return None
        if not data:
            return None
        pid, uid = 0, -1
        for level, kind, said in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                pid, uid, _ = _CREDENTIALS.unpack(said[: _CREDENTIALS.size])
        try:
            word: Word = decode_json(data, Word)
        except BadMessage:
            word = Word(m="")
        return word, pid, uid


def start_warm(
    order: Order,
    program: Program,
    wanted: Sequence[tuple[RankOrder, Mapping[str, str], int, int]],
    cgroup: AttemptCgroup,
) -> Nanny:
    """All ranks of the order, each with its environment and the descriptors of its output and its errors,
    running.

    Raises:
        WarmRefused: none of them runs; the attempt is to be started cold.
    """
    if len(wanted) > RANKS_MAX:
        raise WarmRefused("ranks")
    uid = order.launch.uid if os.geteuid() == 0 else os.geteuid()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nanny = Nanny(connection, uid)
    try:
        until_s = time.monotonic() + order.warm.first_word_s
        connection.settimeout(order.warm.first_word_s)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with short_address(Path(order.warm.server)) as address:
            connection.connect(address)
        _ask(connection, order, program, wanted)
        nanny.bring_up(cgroup, frozenset(rank.rank for rank, *_ in wanted), until_s)
    except WarmRefused:
        nanny.abandon()
        raise
    except (OSError, ValueError) as error:
        nanny.abandon()
        code: Literal["silent", "gone"] = "silent" if isinstance(error, TimeoutError) else "gone"
        raise WarmRefused(code, str(error)) from None
    return nanny


def _ask(
    connection: socket.socket,
    order: Order,
    program: Program,
    wanted: Sequence[tuple[RankOrder, Mapping[str, str], int, int]],
) -> None:
    outputs = list(dict.fromkeys(output for _, _, *ends in wanted for output in ends))
    request = {
        "argv": order.launch.argv,
        "workdir": order.launch.workdir,
        "umask": order.launch.umask,
        "launches": order.launch.mode == "host",
        "outlive": bool(order.mps),
        "first_word_s": order.warm.first_word_s,
        "target": {
            "script": program.script,
            "module": program.module,
            "words": program.words,
            "is_on_path": program.is_on_path,
        },
        "input": order.launch.input and msgspec.structs.asdict(order.launch.input),
        "ranks": [
            {
                "rank": rank.rank,
                "cores": rank.cores,
                "env": dict(env),
                "outputs": [outputs.index(each) for each in ends],
            }
            for rank, env, *ends in wanted
        ],
    }
    text = os.memfd_create("request", os.MFD_CLOEXEC)
    try:
        os.write(text, json.dumps(request).encode())
        socket.send_fds(connection, [b"start"], [text, *outputs])
    finally:
        os.close(text)


def _send(descriptor: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(descriptor, number)
