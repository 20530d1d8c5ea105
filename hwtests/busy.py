"""Start a known load, hear what it says, end it.

Rule: a `Busy` ends its process by its id when it is left, and hears it out: no output is lost, no pipe fills.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

from hwtests.device import Device
from hwtests.host import ROOT

READY_TIMEOUT_S: Final = 120.0
END_TIMEOUT_S: Final = 15.0


class LoadFailed(Exception):
    """A load did not come up; the text has its last words."""


class Busy:
    """One load, from its start to its end."""

    def __init__(self, kind: str, device: Device, *words: str, env: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "hwtests.loads", kind, "--device", device.kind, *words]
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**device.environment(), **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.kind = kind
        self._heard: list[tuple[float, dict[str, Any]]] = []
        self._complaint = ""
        self._news = threading.Condition()
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._listen, self._complain)
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Busy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError), self._news:
                self._heard.append((time.monotonic(), dict(json.loads(line))))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def _complain(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._complaint = (self._complaint + line)[-4000:]

    def heard(self) -> list[tuple[float, dict[str, Any]]]:
        """(when, what), in order."""
        with self._news:
            return list(self._heard)

    def until(self, wanted: Callable[[dict[str, Any]], bool], timeout_s: float) -> dict[str, Any]:
        """The first thing it says that is wanted.

        Raises:
            LoadFailed: it ended, or the time did, without.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._news:
            while True:
                for _, said in self._heard:
                    if wanted(said):
                        return said
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not self._readers[0].is_alive():
                    raise LoadFailed(f"{self.kind}: {self.last_words()}")
                self._news.wait(min(left_s, 0.5))

    def ready(self) -> dict[str, Any]:
        """What it says once its context stands. Raises LoadFailed."""
        return self.until(lambda said: "ready" in said or "error" in said, READY_TIMEOUT_S)

    def rate(self, seconds: float) -> float:
        """The median of what it does per second, over a window that begins now; 0 if it says nothing."""
        since_s = time.monotonic()
        time.sleep(seconds)
        return self.rate_between(since_s, time.monotonic())

    def rate_between(self, since_s: float, until_s: float) -> float:
        """Only what began and ended within: the first line of a window began before it."""
        said = [what["per_s"] for at_s, what in self.heard() if since_s < at_s <= until_s and "per_s" in what]
        return statistics.median(said[1:]) if len(said) > 1 else 0.0

    def error(self) -> str:
        """The CUDA error that ended it; empty if none did."""
        return next((str(what["error"]) for _, what in self.heard() if what.get("error")), "")

    def last_words(self) -> str:
        lines = self._complaint.strip().splitlines()
        return self.error() or (lines[-1] if lines else f"exit {self.process.poll()}, and it said nothing")

    def kill(self) -> None:
        """SIGKILL: with its work in flight."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(END_TIMEOUT_S)

    def end(self) -> int:
        """Ask it to end; kill it if it does not. Its exit code."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(END_TIMEOUT_S)
        for reader in self._readers:
            reader.join(END_TIMEOUT_S)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        return self.process.returncode
