"""Whether the servers of one MPS daemon start, and go on: a daemon lives and answers where no server can.

Rule: jobs become clients only after a server was seen ACTIVE. It is started for that, and ended again where
no job is about to use it: an idle server holds memory on every GPU, keeps it from being reset, and in
EXCLUSIVE_PROCESS mode keeps everybody else out. A server that exits with an error takes the daemon out of
use; another is started after a pause that doubles.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import repeat

from cotenant.mps.answers import Incomplete, Rejected, ServerState
from cotenant.mps.channel import ChannelError, ControlChannel
from cotenant.mps.ownership import LOG_NAMES, Spec, log_end

UNTRIED = "no server of its MPS daemon has been seen to work yet"
NOT_READY = "its MPS server does not become ready"
NOT_STARTED = "its MPS server does not start"
PAUSES_S = (0.02, 0.05, 0.1, 0.2, *repeat(0.5, 19))
"""Between looks at a server that starts, 10 s in all: it may have to wake every GPU."""
END_LOOKS = 7
AGAIN_S = 30.0
AGAIN_S_MAX = 600.0
_EXIT = re.compile(r"^(\[[^\]]*\]) Server (\d+) exited with status (\d+)", re.MULTILINE)
_STAMP = re.compile(r"^\[[^\]]*\] *")


class ServerTrial:
    """The servers of one daemon, from its start or from when its owner met it."""

    def __init__(
        self, channel: ControlChannel, spec: Spec, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self.why_not = UNTRIED
        """Why no job can be a client now; empty: a server was seen to work."""
        self._channel, self._spec, self._pause = channel, spec, pause
        self._exits = self._list_exits()
        """What control.log has of servers that exited, as far as that is known here."""
        self._tried: set[int] = set()
        """Servers that were started here."""
        self._ended: set[int] = set()
        self._again_at_s, self._again_s = 0.0, AGAIN_S

    def expect_end(self, server: int) -> None:
        """The end of this server is our doing, and says nothing of the next."""
        self._ended.add(server)

    def look(self, now_s: float, *, in_use: bool) -> str:
        """Read what became of the servers, and start one where none has worked yet: blocks for up to 10 s.
        `in_use`: jobs are its clients, or are about to be. Returns `why_not`."""
        exits = self._list_exits()
        for _, pid, status in sorted(exits - self._exits):
            if status != "0" and int(pid) not in self._ended:
                self._fail(f"its MPS server (pid {pid}) exited with status {status}", now_s)
        self._exits = exits
        if not self.why_not or now_s < self._again_at_s:
            return self.why_not
        self._again_at_s = now_s + self._again_s
        with suppress(ChannelError, Incomplete, Rejected):  # The daemon does not say: it is as it was.
            self.why_not = self._try(in_use=in_use)
            if self.why_not:
                self._fail(self.why_not, now_s)
                self._exits = self._list_exits()
        return self.why_not

    def _fail(self, why: str, now_s: float) -> None:
        lines = log_end(self._spec.log_directory, LOG_NAMES[1]).splitlines()
        self.why_not = f"{why}: {_STAMP.sub('', lines[-1])}" if lines else why
        self._again_at_s = now_s + self._again_s
        self._again_s = min(AGAIN_S_MAX, 2 * self._again_s)

    def _try(self, *, in_use: bool) -> str:
        """Why no server works; empty where one does."""
        started = False
        for pause_s in PAUSES_S:
            states = self._states()
            self._tried |= states.keys() if started else set()
            ready = {pid for pid, state in states.items() if self._is_ready(pid, state, started)}
            if ready:
                if not in_use:
                    with suppress(ChannelError, Incomplete, Rejected):
                        self._end(ready & self._tried)
                return ""
            if not states:
                if started:
                    return NOT_STARTED
                uid = os.getuid() if self._spec.client_uid is None else self._spec.client_uid
                if refusal := self._channel.ask(f"start_server -uid {uid}"):
                    return f"{NOT_STARTED} ({refusal.strip()})"
                started = True
            self._pause(pause_s)
        return NOT_READY

    def _states(self) -> dict[int, ServerState | None]:
        found: dict[int, ServerState | None] = {}
        for pid in self._channel.server_list():
            with suppress(Rejected):  # It has gone since.
                found[pid] = self._channel.server_status(pid)
        return found

    def _is_ready(self, pid: int, state: ServerState | None, started: bool) -> bool:
        """Whether a server takes clients, or has taken some. `started`: by us, just now."""
        if state is not None or not started:
            return state in (ServerState.ACTIVE, ServerState.FAULT, None)
        said = log_end(self._spec.log_directory, LOG_NAMES[0])  # Drivers up to 535 do not answer that.
        return not said or f"NEW SERVER {pid}: Ready" in said

    def _end(self, servers: set[int]) -> None:
        """End servers that have no client, and see them gone: until then they refuse newcomers."""
        for pid in servers:
            if not self._channel.client_list(pid):
                self.expect_end(pid)
                self._channel.ask(f"shutdown_server {pid}")
        for pause_s in PAUSES_S[:END_LOOKS]:
            if self._ended.isdisjoint(self._channel.server_list()):
                return
            self._pause(pause_s)

    def _list_exits(self) -> set[tuple[str, str, str]]:
        """When, pid and status."""
        return set(_EXIT.findall(log_end(self._spec.log_directory, LOG_NAMES[0])))
