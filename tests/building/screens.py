"""A person's terminal for a test: a program runs on it, and what it shows can be waited for."""

from __future__ import annotations

import fcntl
import os
import pty
import selectors
import struct
import subprocess
import termios
import time
import tty
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.building.limits import within_s

PATIENCE_S = within_s(120.0)


class Screen:
    """A terminal with one program on it."""

    def __init__(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        rows: int = 24,
        columns: int = 80,
        raw: bool = False,
    ) -> None:
        """Starts the program. `raw`: the terminal changes no byte, whatever the program sets."""
        self._ours, theirs = pty.openpty()
        self.shown = b""
        """All that has come so far."""
        self.resize(rows, columns)
        if raw:
            tty.setraw(theirs)
        self.process = subprocess.Popen(
            list(words),
            env={**env, "TERM": "xterm"},
            cwd=cwd,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self._theirs = theirs

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, data: bytes) -> None:
        os.write(self._ours, data)

    def read(self, wait_s: float) -> bytes:
        """What comes within that time; empty: nothing did."""
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._ours, selectors.EVENT_READ)
            if not waiting.select(wait_s):
                return b""
        data = os.read(self._ours, 65536)
        self.shown += data
        return data

    def until(self, words: bytes, after: int = 0) -> int:
        """Waits until it has shown these words after that place; returns the place behind them."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (at := self.shown.find(words, after)) < 0:
            after = max(after, len(self.shown) - len(words))
            assert time.monotonic() < deadline_s, f"{words!r} is not in {self.shown[-2000:]!r}"
            if not self.read(0.2) and self.process.poll() is not None and not self.read(0.0):
                assert words in self.shown[after:], f"ended without {words!r}: {self.shown[-2000:]!r}"
        return at + len(words)

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline_s, f"it goes on: {self.shown[-2000:]!r}"
            self.read(0.1)
        while self.read(0.0):
            pass
        return self.process.returncode

    def close(self) -> None:
        """Ends the program as SIGKILL does, with its terminal."""
        self.process.kill()
        self.process.wait()
        for each in (self._ours, self._theirs):
            os.close(each)
