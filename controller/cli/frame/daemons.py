"""Controller and agent as processes of ours: how they are started, waited for and ended, whoever needs them.

Rule: each is in a session of its own. Ctrl-C reaches us alone, and we end them in order.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, Final, TypeVar

from cotenant.controller.client.asking import asking
from cotenant.controller.domain import HostState
from cotenant.controller.present.problem import Problem
from cotenant.controller.wire import clients as wire

T = TypeVar("T")

CONTROLLER: Final = "cotenant.controller"
AGENT: Final = "cotenant.agent"
STOP_WITHIN_S: Final = 15.0
LOOK_EVERY_S: Final = 0.05


def command_line(module: str, flags: Mapping[str, object]) -> list[str]:
    """How a daemon is started with these settings; a value of None was not given."""
    words = [sys.executable, "-m", module]
    for key, value in flags.items():
        if value is not None:
            words += ["--set", f"{key}={'true' if value is True else value}"]
    return words


class DaemonProcess:
    """A process that was started here."""

    def __init__(self, words: Sequence[str], *, log: BinaryIO | None = None, is_heard: bool = True) -> None:
        """Starts it. `log`: where its errors go; `is_heard`: it has a ready line, and else prints here."""
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if is_heard else None,
            stderr=log,
            start_new_session=True,
        )
        self.is_ready = False
        """Its ready line has come: it listens, or has joined."""
        if is_heard:
            threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.is_ready |= b"ready" in line

    def end(self, when_late: Callable[[], None] = lambda: None) -> None:
        """Asks it to end, and kills it where it does not in time; then `when_late` is called first."""
        self.process.terminate()
        try:
            self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            when_late()
            self.process.kill()
            self.process.wait()


def wait_until(look: Callable[[], T | None], within_s: float, every_s: float = LOOK_EVERY_S) -> T | None:
    """What `look` finds once it finds something; None: not within the time."""
    deadline_s = time.monotonic() + within_s
    while not (found := look()):
        if time.monotonic() > deadline_s:
            return None
        time.sleep(every_s)
    return found


def joined_hosts(endpoint: str | None) -> list[wire.NodeView] | None:
    """The hosts that are there for jobs; None: no controller answers."""
    try:
        with asking(endpoint, timeout_s=2.0) as client:
            nodes = client.ask(wire.ListNodes()).nodes
    except Problem as problem:
        if problem.code != "unreachable":
            raise
        return None
    return [node for node in nodes if node.state is HostState.OK]
