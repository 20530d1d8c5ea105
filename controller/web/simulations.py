"""What is being simulated for the page, and what came of it.

Rule: one child at a time, and the newest results are kept in memory. A child that dies without a word is told
as such; nothing of it can hurt the page's server.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.wire import BadMessage, decode_json

CHILD: Final = "cotenant.controller.web.simulating"
KEPT_MAX: Final = 4
LINE_MAX: Final = 1_000_000


class WhatIf(NamedTuple):
    """The simulation that is asked for."""

    journal: str
    policies: str
    since: str
    add_gpus: int

    @property
    def words(self) -> list[str]:
        return [
            f"--journal={self.journal}",
            f"--policies={self.policies}",
            f"--since={self.since}",
            f"--add-gpus={self.add_gpus}",
        ]


class ChildSaid(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the child's, or all of them together; what is empty was not said."""

    doing: str = ""
    finished: int = 0
    total: int = 0
    headline: str = ""
    notes: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    wrong: str = ""
    hint: str = ""


class Simulated(NamedTuple):
    """How far one is, or what came of it."""

    asked: WhatIf
    began_wall_s: float
    said: ChildSaid = ChildSaid(doing="starting")

    @property
    def is_over(self) -> bool:
        return bool(self.said.wrong or self.said.titles)


class Simulations:
    """Threads may share it."""

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", CHILD)) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._newest: list[Simulated] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    def newest(self) -> tuple[Simulated, ...]:
        """The simulations that are kept, the newest first."""
        with self._lock:
            return tuple(reversed(self._newest))

    def start(self, asked: WhatIf, wall_s: Callable[[], float] = time.time) -> bool:
        """Starts a simulation. False: another one is under way."""
        with self._lock:
            if self._newest and not self._newest[-1].is_over:
                return False
            self._newest.append(Simulated(asked, wall_s()))
            del self._newest[:-KEPT_MAX]
            self._child = subprocess.Popen(
                [*self._command, *asked.words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            self._reader = threading.Thread(target=self._read, args=(self._child,), daemon=True)
            self._reader.start()
            return True

    def stop(self) -> None:
        """End what is under way; its place in the list stays, and says so."""
        child, reader = self._child, self._reader
        if child is not None and child.poll() is None:
            child.kill()
        if reader is not None:
            reader.join()

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None and child.stdin is not None
        while line := child.stdout.readline(LINE_MAX):
            try:
                self._heard(decode_json(line, ChildSaid))
            except BadMessage:
                continue  # A library's own words on our pipe.
        child.stdin.close()
        child.stdout.close()
        code = child.wait()
        with self._lock:
            is_over = self._newest[-1].is_over
        if not is_over:
            self._heard(ChildSaid(wrong=f"it ended without a result (exit {code})"))

    def _heard(self, said: ChildSaid) -> None:
        told = {name: value for name, value in msgspec.structs.asdict(said).items() if value}
        with self._lock:
            now = self._newest[-1]
            self._newest[-1] = now._replace(said=msgspec.structs.replace(now.said, **told))
