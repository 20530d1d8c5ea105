"""The sockets of one rank: datagrams to the supervisor, a listener thread for its orders.

Rule: a supervisor that is slow, gone or talking nonsense never harms training. Sending does not block
longer than `URGENT_S`; progress reports are dropped when the queue is full.

The listener also says where the training thread is, a sign of life between steps: cheap, and without touching
the script. A thread that waits in a collective stands in one place for as long as it waits; one that
evaluates, loads data or saves is somewhere else a few looks later. One that holds the interpreter lock for
ever is not seen to move.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import os
import socket
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

from cotenant.checkpoint.late_log import LateLog
from cotenant.checkpoint.talk import protocol
from cotenant.checkpoint.talk.agreement import Agreement, Confirm, StepVerdict

FRAMES_MAX: Final = 64
"""From the innermost outwards: what moves is near."""


def place_of(thread: int) -> int:
    """A number for a thread's Python stack: code, and the instruction in each frame. 0 if it is gone."""
    frame = sys._current_frames().get(thread)
    place = 0
    for _ in range(FRAMES_MAX):
        if frame is None:
            break
        place = zlib.crc32(f"{id(frame.f_code)}:{frame.f_lasti}".encode(), place)
        frame = frame.f_back
    return place


URGENT_S: Final = 2.0
PATH_BYTES_MAX: Final = 107
"""Unix socket addresses are no longer than this."""

_RETRY_S: Final = 0.005
log = LateLog("cotenant.checkpoint")


class SupervisorChannel:
    """Owns the agreement's lock. Made for one rank; `close` ends the thread and removes the socket."""

    def __init__(
        self,
        supervisor: Path,
        rank: int,
        agreement: Agreement,
        on_room: Callable[[int | None], None] = lambda memory_mib: None,
        urgent_s: float = URGENT_S,
        decision_timeout_s: float = protocol.DECISION_TIMEOUT_S,
    ) -> None:
        """Makes a channel that is not yet open. on_room: the listener calls it with the memory limit that
        co-tenants leave, in MiB; must not raise."""
        self._urgent_s = urgent_s
        self._decision_timeout_s = decision_timeout_s
        self.dropped = 0
        self.bad = 0
        self._supervisor = str(supervisor)
        self._address = supervisor.parent / f"rank-{rank}.sock"
        self._rank = rank
        self._on_room = on_room
        self._training = threading.get_ident()
        """The thread that makes steps."""
        self._agreement = agreement
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._out.setblocking(False)
        self._in: socket.socket | None = None
        self._closing = threading.Event()

    def open(self) -> bool:
        """Binds the socket and listens; False, with a warning, where the address cannot be used."""
        if len(os.fsencode(self._address)) > PATH_BYTES_MAX:
            log.warning(
                "cannot listen on %s: the path is longer than %d bytes", self._address, PATH_BYTES_MAX
            )
            return False
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._address.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("cannot replace %s: %s", self._address, error)
        try:
            listening.bind(str(self._address))
        except OSError as error:
            listening.close()
            log.warning("cannot listen on %s: %s; running without a supervisor", self._address, error)
            return False
        self._in = listening
        # Not a `Thread`, which a script would find among its own.
        _thread.start_new_thread(self._listen, ())
        return True

    def report(self, message: str, /, **fields: Any) -> None:
        """Send if there is room, else drop: the next report says it again."""
        try:
            self._out.sendto(protocol.encode(message, self._rank, fields), self._supervisor)
        except OSError:
            self.dropped += 1

    def tell(self, message: str, /, **fields: Any) -> bool:
        """Send something that matters: wait for room, for at most `URGENT_S`."""
        data = protocol.encode(message, self._rank, fields)
        give_up_at_s = monotonic() + self._urgent_s
        while True:
            try:
                self._out.sendto(data, self._supervisor)
                return True
            except OSError as error:
                full = error.errno in (errno.EAGAIN, errno.ENOBUFS)
                if not full or monotonic() > give_up_at_s:
                    self.dropped += 1
                    return False
            sleep(_RETRY_S)

    def arrive(self, step: int) -> StepVerdict:
        """Comes to a step boundary: says what the supervisors have agreed for this step."""
        agreement = self._agreement
        self._training = threading.get_ident()
        with self._lock:
            agreement.completed = step
            if step < agreement.attention_step:
                return StepVerdict.GO
        return self._verdict_at(step)

    def _verdict_at(self, step: int) -> StepVerdict:
        """Something was proposed for this step: wait for the decision if there is none yet."""
        give_up_at_s = 0.0
        refusals: list[Confirm] = []
        with self._changed:
            while True:
                verdict = self._agreement.arrive(step)
                if verdict is not StepVerdict.WAIT:
                    return verdict
                now_s = monotonic()
                give_up_at_s = give_up_at_s or now_s + self._decision_timeout_s
                if now_s >= give_up_at_s:
                    refusals = self._agreement.give_up()
                    verdict = self._agreement.arrive(step)
                    break
                self._changed.wait(give_up_at_s - now_s)
        log.warning("no decision about step %d within %.0f s: going on", step, self._decision_timeout_s)
        self._confirm(refusals)
        return verdict

    def close(self) -> None:
        """Closes the channel; a second call does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._in is not None:
            with contextlib.suppress(OSError):  # wakes the listener, which closes its socket
                self._out.sendto(b"", str(self._address))
            with contextlib.suppress(OSError):
                self._address.unlink()
        self._out.close()

    def _listen(self) -> None:
        assert self._in is not None
        while not self._closing.is_set():
            try:
                data = self._in.recv(protocol.DATAGRAM_BYTES_MAX + 1)
            except OSError:
                break
            if self._closing.is_set():
                break
            order = protocol.decode(data)
            if order is None:
                self._hear(data)
                continue
            with self._changed:
                answer = self._agreement.receive(order)
                self._changed.notify_all()
            if answer is not None:
                self._confirm([answer])
        self._in.close()

    def _hear(self, data: bytes) -> None:
        """Orders that belong to no agreement: a stack probe, or the memory limit that co-tenants leave."""
        look, room = protocol.look_in(data), protocol.room_in(data)
        if look is not None:
            self.report(protocol.STANDING, look=look, place=place_of(self._training))
        elif room is not None:
            self._on_room(room.memory_mib)
        else:
            self.bad += 1

    def _confirm(self, answers: list[Confirm]) -> None:
        for answer in answers:
            self.tell(protocol.CONFIRM, proposal=answer.proposal, step=answer.step, ok=answer.ok)
