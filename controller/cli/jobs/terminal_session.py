"""This terminal, connected to the terminal of a job: bytes both ways, untouched.

Rule: output comes in a thread of its own, so that a slow screen holds up neither what is typed nor `~.`; it
asks for more only once it has written what it has.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
import tty
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Literal

from cotenant.controller.cli.frame.keys import Woken, reading_keys
from cotenant.controller.cli.jobs.forwarding import Forwards, PortPair
from cotenant.controller.client.connection import Client
from cotenant.controller.client.streams import AWAY_S, READ_WAIT_S, WRITE_WAIT_S, StreamLine
from cotenant.controller.domain import JobId, texts
from cotenant.controller.system.endpoint import socket_path
from cotenant.controller.wire import ClientStream

END_OF_FILE: Final = b"\x04"
QUIET_S: Final = 3.0
"""How long nobody may answer before that is said."""
HEARTBEAT_S: Final = 10.0
LEAVE_S: Final = 2.0
"""How long to wait for the last answer when a person leaves."""

SessionEnd = Literal["ended", "detached", "replaced"]


class Escapes:
    """Finds `~.` at the beginning of a line in what is typed; `~~` there is one `~`."""

    def __init__(self) -> None:
        self._begins_line = True
        self._has_tilde = False

    def pass_on(self, typed: bytes) -> tuple[bytes, bool]:
        """What goes on to the job, and whether `~.` came after it."""
        passed = bytearray()
        for byte in typed:
            if self._has_tilde:
                self._has_tilde = False
                if byte == ord("."):
                    return bytes(passed), True
                if byte != ord("~"):
                    passed.append(ord("~"))
            elif byte == ord("~") and self._begins_line:
                self._has_tilde, self._begins_line = True, False
                continue
            passed.append(byte)
            self._begins_line = byte in b"\r\n"
        return bytes(passed), False


class TerminalSession:
    """The sessions of one client with one job's terminal, attempt after attempt."""

    def __init__(self, client: Client, job_id: JobId, ports: Sequence[PortPair] = ()) -> None:
        """Not connected yet. `ports`: are opened here as well, while it is."""
        self._client, self._job_id, self._ports = client, job_id, ports
        self.is_typed = os.isatty(0)
        """A person types, else what comes is a pipe or a file."""
        self._escapes = Escapes()
        self._has_more = True
        """Our own input has not ended."""
        self._last = b"\n"
        self.seen = 0
        """So much of the output of the attempt that was held last has been shown."""

    def hold(self, attempt: int) -> SessionEnd:
        """Connects until the attempt's output has ended, or its client leaves.

        Raises:
            Refusal: it is another's, or has no terminal.
        """
        stream = ClientStream(os.urandom(8).hex())
        line = StreamLine(self._client, self._job_id, attempt)
        second = self._client.another()
        forwards = Forwards(self._client, self._job_id, attempt, note)
        is_elsewhere = socket_path(self._client.endpoint) is None
        with reading_keys(0, tty.setraw) as woken:
            for pair in self._ports:
                forwards.open_asked(pair)
            heard = forwards.look if is_elsewhere else None
            output = OutputThread(StreamLine(second, self._job_id, attempt), stream, woken.wake, heard)
            output.start()
            try:
                how = self._pass_input(line, stream, woken, output)
                if how == "detached":
                    stream.put(b"", ends=True)
                    line.ask(stream.ask_to_write(0.0))
            finally:
                output.leaves = True
                forwards.close()
                output.join(LEAVE_S)
                self.seen = stream.seen
                if not output.is_alive():  # Else it ends with this process.
                    second.close()
        if output.error is not None:
            raise output.error
        return how

    def _pass_input(
        self, line: StreamLine, stream: ClientStream, woken: Woken, output: OutputThread
    ) -> SessionEnd:
        """Sends what is typed, and the size of the window, until somebody leaves."""
        is_resized, beat_s = True, 0.0
        while output.how is None:
            sources = [woken.fd, *([0] if self._has_more and stream.room else [])]
            is_busy = is_resized or not stream.is_sent
            wait_s = 0.0 if is_busy else max(0.0, beat_s - time.monotonic())
            ready, _, _ = select.select(sources, [], [], wait_s)
            if woken.fd in ready:
                is_resized |= woken.has_resized()
            if 0 in ready and self._take_typed(stream):
                return "detached"
            if is_resized or not stream.is_sent or time.monotonic() >= beat_s:
                rows, columns = window_size() if is_resized else (0, 0)
                told = line.ask(stream.ask_to_write(WRITE_WAIT_S, rows=rows, columns=columns))
                beat_s = time.monotonic() + HEARTBEAT_S
                if told.state == "open":
                    stream.has_written(told)
                    is_resized = False
                else:  # It is over; the other thread hears that as well, once it has all output.
                    select.select([woken.fd], [], [], AWAY_S)
        return output.how

    def _take_typed(self, stream: ClientStream) -> bool:
        """Reads what is there; whether the person wants to leave."""
        data = os.read(0, min(stream.room, 4096))
        if not data:
            self._has_more = False
            if not self.is_typed:  # As Ctrl-D does, which ends a line first if there is one.
                stream.put(END_OF_FILE if self._last == b"\n" else 2 * END_OF_FILE)
            return self.is_typed
        self._last = data[-1:]
        passed, leaves = self._escapes.pass_on(data) if self.is_typed else (data, False)
        stream.put(passed)
        return leaves


class OutputThread(threading.Thread):
    """Asks for output and writes it."""

    def __init__(
        self,
        line: StreamLine,
        stream: ClientStream,
        wake: Callable[[], None],
        heard: Callable[[bytes], None] | None,
    ) -> None:
        super().__init__(name="terminal output", daemon=True)
        self._line, self._stream, self._wake, self._heard = line, stream, wake, heard
        self.leaves = False
        """It is to show nothing more."""
        self.how: SessionEnd | None = None
        """How the session has ended; None: it goes on."""
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._read()
        except BrokenPipeError:  # Nobody reads what we write.
            self.how = "detached"
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for.
            self.error, self.how = error, "ended"
        finally:
            self._wake()

    def _read(self) -> None:
        quiet_s, is_said, missed = time.monotonic(), False, 0
        while True:
            told = self._line.ask(self._stream.ask_to_read(READ_WAIT_S))
            if self.leaves:
                return
            if told.state == "away":
                if not is_said and time.monotonic() > quiet_s + QUIET_S:
                    is_said = True
                    note(f"waiting: {told.why}")
                continue
            if told.state != "open":
                self.how = "replaced" if told.state == "replaced" else "ended"
                return
            quiet_s, is_said = time.monotonic(), False
            data = self._stream.read(told)
            if self._stream.missed > missed:
                missed = self._stream.missed
                note(f"{missed} bytes are not shown: they are in its log")
            write_all(1, data)
            if self._heard is not None:
                self._heard(data)


def window_size() -> tuple[int, int]:
    """Rows and columns of the terminal that we are on; (0, 0): we are on none."""
    for stream in (1, 0, 2):
        with suppress(OSError):
            columns, rows = os.get_terminal_size(stream)
            return rows, columns
    return 0, 0


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def note(text: str) -> None:
    """A line of ours on a terminal that is raw, in brackets."""
    end = "\r\n" if os.isatty(0) else "\n"
    line = f"{end}[cotenant: {texts.one_line(text)}]{end}"
    with suppress(OSError):
        write_all(sys.stderr.fileno(), line.encode(errors="replace"))
