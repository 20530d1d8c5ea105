"""One supervisor that is started before it is needed: an interpreter and our modules are most of what a warm
start would wait for.

Rule: nobody relies on it. An attempt that finds none, or one that has ended, starts a supervisor as usual.
There is at most one, and it ends with the agent.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

SUPERVISOR: Final = (sys.executable, "-m", "cotenant.agent.supervisor.runtime")
END_S: Final = 1.0


class SpareSupervisor:
    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def keep(self) -> None:
        """Start one if there is none. A host that cannot has none."""
        if self._process is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*SUPERVISOR, "--wait", str(theirs.fileno())],
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                )
            except OSError:
                ours.close()
                return
        self._socket = ours

    def take(
        self, folder: Path, log: int, secrets: int, locks: Sequence[int]
    ) -> subprocess.Popen[bytes] | None:
        """The attempt's supervisor from now on; None: there was none to take."""
        process, agent = self._process, self._socket
        self._process = self._socket = None
        if process is None or agent is None:
            return None
        with agent:
            agent.setblocking(False)
            with suppress(OSError):  # It has ended.
                socket.send_fds(agent, [os.fsencode(folder)], [log, secrets, *locks])
                return process
        _end(process)
        return None

    def drop(self) -> None:
        """End it, if there is one."""
        process, agent = self._process, self._socket
        self._process = self._socket = None
        if process is not None and agent is not None:
            agent.close()
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
