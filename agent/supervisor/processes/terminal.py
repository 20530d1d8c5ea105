"""The pseudo-terminal of a job's one rank: our end, and the end that the rank gets.

Rule: nothing here waits. Output that no client asks for is read on, and kept in the job's log; what a client
asks for is read no faster than it asks, so that a job which floods a slow client waits, and nobody else does.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import signal
import struct
import termios
import tty
from contextlib import suppress
from typing import Final

from cotenant.agent.ipc.records import Order
from cotenant.controller.wire import SIZE_VARIABLE, WINDOW_BYTES, HostStream

READ_BYTES: Final = 16 * 1024
_SIZE: Final = re.compile(r"(\d{1,4})x(\d{1,4})")


class Terminal:
    """A pseudo-terminal and the stream of its bytes."""

    def __init__(self, order: Order) -> None:
        """Opens it, for the job's user. Raises OSError: there are no more of them."""
        self.stream = HostStream()
        self.ours, self.rank_end = pty.openpty()
        os.set_blocking(self.ours, False)
        if os.geteuid() == 0:
            os.fchown(self.rank_end, order.launch.uid, order.launch.gid)
        os.fchmod(self.rank_end, 0o600)
        if order.runtime is not None and order.runtime.name != "apptainer":
            # A container's own terminal makes ends and signals of keys; here, early ones would be lost.
            tty.setraw(self.rank_end)
        size = _SIZE.fullmatch(order.launch.env.get(SIZE_VARIABLE, ""))
        self.resize(*map(int, size.groups()) if size else (24, 80))

    @property
    def is_readable(self) -> bool:
        """Whether output may be read now."""
        return self.stream.room > 0

    def resize(self, rows: int, columns: int) -> None:
        """Tells the programs in it how large its window is."""
        with suppress(OSError):
            fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, *, final: bool) -> bytes | None:
        """The output that is there, as far as it may be read, or all of it; None: there will be no more."""
        pieces: list[bytes] = []
        most = 4 * WINDOW_BYTES if final else self.stream.room
        while most > 0:
            try:
                data = os.read(self.ours, min(most, READ_BYTES))
            except BlockingIOError:
                break
            except OSError as error:  # EIO: nobody has its other end any more.
                if error.errno != errno.EIO or pieces:
                    break
                return None
            pieces.append(data)
            most -= len(data)
        output = b"".join(pieces)
        self.stream.sent.put(output)
        return output

    def write(self) -> None:
        """Passes on what has come from the client, as far as there is room."""
        if self.stream.is_over:
            self.stream.unwritten.clear()
        with suppress(OSError):
            while self.stream.unwritten:
                del self.stream.unwritten[: os.write(self.ours, self.stream.unwritten)]

    def hang_up(self) -> None:
        """Tells the programs in its foreground that it is gone, as the end of a connection does."""
        with suppress(OSError):
            group = struct.unpack("i", fcntl.ioctl(self.ours, termios.TIOCGPGRP, struct.pack("i", 0)))[0]
            for number in (signal.SIGHUP, signal.SIGCONT) if group > 1 else ():
                os.killpg(group, number)

    def close(self) -> None:
        """Nothing more comes out of it."""
        if self.stream.is_over:
            return
        self.stream.is_over = True
        for each in (self.ours, self.rank_end):
            os.close(each)


def take_terminal(rank_end: int) -> None:
    """In the new process: a session of its own, with this terminal as the one that controls it."""
    os.setsid()
    fcntl.ioctl(rank_end, termios.TIOCSCTTY, 0)
