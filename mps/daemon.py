"""The MPS control daemon of one device set, and its one owner; and an end for those that their owner has no
use for any more (another mode, MPS switched off, a GPU gone).

Rule: only an owner starts, configures or ends a daemon, and it outlives its owner: jobs are on it. `look`
is to be called every few seconds, from a thread: it sees what is wrong, does what `health.py` says about
it, and never blocks longer than a start and a few questions take. It replaces a daemon that was lost and sets
it up again; a setting counts only when it was read back.

Every daemon that we ever started has an owner's file beside its pipe directory, so `sweep` finds them all. It
is called when no job is on the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path, PurePosixPath

from cotenant.mps import health, process, servers
from cotenant.mps.answers import ServerState
from cotenant.mps.channel import (
    ChannelError,
    ControlChannel,
    Incomplete,
    LockBusy,
    NoDaemon,
    Rejected,
    Wedged,
    client_list,
    server_list,
    server_status,
    set_default_percentage,
    set_percentage,
)
from cotenant.mps.health import DaemonCondition, Remedy, Sight
from cotenant.mps.ownership import (
    END_S,
    SUFFIX,
    NotStarted,
    Owned,
    Ownership,
    Spec,
    bound_logs,
    daemons_at,
    end,
    socket_of,
    start,
)
from cotenant.mps.process import CONTROL, FoundProcess, MpsProcessIdentity, Running, look_around
from cotenant.mps.servers import DaemonStatus, Server

ASK_EVERY_S = 10.0
"""How often a daemon that seems well is asked, when nothing about it has changed."""
STARTS_APART_S = 5.0
"""A daemon that ends at once is not started in a circle."""
START_AGAIN_S = 30.0
"""After a start that failed."""
SERVER_END_S = 2.0
NO_VERSION_2 = (
    "its MPS daemon does not answer as version 2 of the control interface does, or its answers get lost"
)


class Daemon:
    """Owned from construction to `release`."""

    def __init__(
        self,
        spec: Spec,
        *,
        clock: Callable[[], float] = time.monotonic,
        channel: ControlChannel | None = None,
    ) -> None:
        """Takes ownership of the daemon. Raises Owned: another owner has it. `clock`: seconds, never going
        back."""
        self.spec = spec
        self._ownership = Ownership(spec.pipe_directory, spec.owner)
        self._channel = channel or ControlChannel(pipe_directory=spec.pipe_directory, program=spec.program)
        self._clock = clock
        self._servers: tuple[Server, ...] = ()
        self._settled: frozenset[MpsProcessIdentity] = frozenset()
        """The daemon and the servers that our settings were read back from."""
        self._why_not_settled = ""
        self._why_not_started = ""
        self._silent = 0
        self._ask_at_s = 0.0
        self._start_at_s = 0.0
        self._met: MpsProcessIdentity | None = None
        """The daemon that was last said to be ours."""
        self._lock_is_held = False
        self._said: list[str] = []

    # --- Looking -----------------------------------------------------------------------------------

    def ask_next(self) -> None:
        """The next look asks the daemon, however well it seems: a job failed on its devices."""
        self._ask_at_s = 0.0

    def look(self, running: Running | None = None, *, in_use: bool) -> DaemonStatus:
        """Looks at the daemon and repairs it. `in_use`: jobs run as its clients."""
        now = running if running is not None else look_around()
        ours = self._ours(now)
        strangers = [found for found in daemons_at(self.spec, now) if found.owner != self.spec.owner]
        daemon = self._current(ours)
        before = self._servers
        in_place = self._is_in_place(daemon)
        if not strangers and in_place:  # Else another daemon might answer.
            self._ask(daemon)
        sight = Sight(
            stranger=bool(strangers),
            ours=len(ours),
            in_place=in_place,
            silent=self._silent,
        )
        seen = health.condition(sight)
        todo = health.remedy(sight, in_use=in_use)
        losses = tuple(servers.losses(before, _alive(before)))
        why = ""
        if todo is Remedy.REFUSE:
            why = f"{seen.value}: {strangers[0]}"
        elif todo is Remedy.WAIT:
            why = f"{seen.value}; {todo.value}"
        elif todo in (Remedy.START, Remedy.REPLACE):
            why = self._renew(seen, ours, now, in_use)
            daemon = None if why else self._met
        else:
            self._meet(ours[0])
            self._bound_logs()
        return self._standing(daemon, why or self._obstacle(daemon, now, in_use), losses)

    def stop(self, timeout_s: float) -> str:
        """End the daemon and its servers, by force after `timeout_s`; why that failed, for a person.

        For when no job is on it.
        """
        running = look_around()
        ours = self._ours(running)
        if ours:
            with suppress(ChannelError, Incomplete, Rejected):  # What `quit` does not end, we do.
                self._channel.quit(timeout_s)
                process.outlasts(ours[0].identity, END_S)  # It listens no more, and cleans up.
        left = end([*ours, *self._orphans(look_around(), keep=None)])
        if not left:
            self._ownership.keep(daemon=None, socket=None)
        return "; ".join(left)

    @property
    def was_ours(self) -> bool:
        """Whether this owner has had a daemon here, in this life or an earlier one."""
        return self._ownership.record.owner == self.spec.owner

    def release(self) -> None:
        """Give up the ownership; the daemon goes on."""
        self._ownership.release()

    # --- Who it is ---------------------------------------------------------------------------------

    def _ours(self, running: Running) -> list[FoundProcess]:
        return [found for found in daemons_at(self.spec, running) if found.owner == self.spec.owner]

    def _current(self, ours: list[FoundProcess]) -> MpsProcessIdentity | None:
        """The daemon to talk to: the one on record if it lives, else any that carries our mark."""
        alive = [found.identity for found in ours]
        recorded = self._ownership.record.daemon
        if recorded is not None and recorded not in alive:
            process.reap(recorded.pid)  # Where we are process 1, the kernel hands it to us.
        return recorded if recorded in alive else (alive[0] if alive else None)

    def _is_in_place(self, daemon: MpsProcessIdentity | None) -> bool:
        """Whether the directory still holds the socket that this daemon made."""
        record = self._ownership.record
        if daemon is None or record.daemon != daemon or record.socket is None:
            return True  # Its record was lost: it counts as in place while it answers.
        return record.socket == socket_of(self.spec)

    def _meet(self, found: FoundProcess) -> None:
        """Takes on a daemon of ours that we did not know: from before our own start, or of an interrupted
        one."""
        if self._met == found.identity or self._silent:
            return
        self._met = found.identity
        if self._ownership.record.daemon != found.identity:
            self._ownership.keep(daemon=found.identity, socket=socket_of(self.spec))
        self._said.append(f"goes on with its MPS daemon ({found}) in {self.spec.pipe_directory}")

    # --- Starting and replacing --------------------------------------------------------------------

    def _renew(self, seen: DaemonCondition, ours: list[FoundProcess], running: Running, in_use: bool) -> str:
        """Start a daemon where none is, or in place of what is there; why that failed."""
        if self._clock() < self._start_at_s:
            return self._why_not_started
        left = end(ours)
        if not in_use:
            left += end(self._orphans(running, keep=None))
        if left:
            return "; ".join(left)
        try:
            found, warning = start(self.spec)
        except NotStarted as error:
            self._start_at_s = self._clock() + START_AGAIN_S
            self._why_not_started = str(error)
            self._said.append(str(error))
            return str(error)
        self._start_at_s = self._clock() + STARTS_APART_S
        self._why_not_started = "its MPS daemon has ended soon after it was started"
        again = "" if self._ownership.record.daemon is None else f" again, since {seen.value}"
        self._ownership.keep(daemon=found.identity, socket=socket_of(self.spec))
        self._met, self._servers, self._silent = found.identity, (), 0
        self._said.append(f"MPS daemon started{again} ({found}) in {self.spec.pipe_directory}")
        self._said += [f"MPS daemon: {warning}"] if warning else []
        self._ask(found.identity)
        return ""

    def _orphans(self, running: Running, keep: MpsProcessIdentity | None) -> list[FoundProcess]:
        """Servers of ours whose daemon is gone: they hold the device, and their clients cannot be stopped."""
        return [
            found
            for found in running.servers
            if found.pipe_directory == str(self.spec.pipe_directory)
            and found.owner == self.spec.owner
            and process.is_alive(found.identity)
            and (keep is None or process.parent_of(found.identity.pid) != keep.pid)
        ]

    def _bound_logs(self) -> None:
        try:
            bound_logs(self.spec.log_directory)
        except OSError:
            return  # A full disk: the daemon loses its lines, and goes on.

    # --- Asking ------------------------------------------------------------------------------------

    def _ask(self, daemon: MpsProcessIdentity | None) -> None:
        """Asks the daemon, which is the slow check: its servers and their clients, and our settings on new
        servers and clients."""
        if daemon is None:
            self._servers, self._silent = (), 0
            return
        known = {daemon, *(server.identity for server in self._servers)}
        news = not known <= self._settled or not all(map(process.is_alive, known))
        news |= any(server.state is ServerState.FAULT for server in self._servers)  # When is it over?
        if self._clock() < self._ask_at_s and not news and not self._silent:
            return
        self._ask_at_s = self._clock() + ASK_EVERY_S
        try:
            self._servers = self._describe_servers()
            self._settle(daemon)
            self._silent, self._lock_is_held = 0, False
        except (Wedged, NoDaemon):
            self._silent += 1
            self._servers = tuple(each for each in self._servers if process.is_alive(each.identity))
        except Incomplete as error:
            if daemon not in self._settled:  # Else nothing new is known of it.
                self._why_not_settled = f"{NO_VERSION_2}: {error}"
        except (LockBusy, Rejected) as error:
            if isinstance(error, LockBusy) and not self._lock_is_held:
                self._lock_is_held = True
                self._said.append(f"cannot ask the MPS daemon in {self.spec.pipe_directory}: {error}")
            if daemon not in self._settled:
                self._why_not_settled = self._why_not_settled or str(error)

    def _describe_servers(self) -> tuple[Server, ...]:
        found = []
        for pid in server_list(self._channel):
            identity = process.identity_of(pid)
            if identity is None:
                continue  # It has died since, or the daemon lives in another pid namespace.
            try:
                clients = client_list(self._channel, pid)
                state = server_status(self._channel, pid)
            except Rejected:
                continue  # The same.
            alive = tuple(each for each in map(process.identity_of, clients) if each is not None)
            found.append(Server(identity=identity, state=state, clients=alive))
        return tuple(found)

    def _settle(self, daemon: MpsProcessIdentity) -> None:
        """Our settings into servers and clients that lack them.

        Raises:
            Rejected: another value stays in force.
        """
        everybody = frozenset((daemon, *(server.identity for server in self._servers)))
        try:
            self._settle_percentage(daemon, everybody)
        except Rejected as error:
            self._settled -= {daemon}
            self._why_not_settled = f"its MPS daemon does not take our settings: {error}"
            raise
        self._settled, self._why_not_settled = everybody, ""

    def _settle_percentage(
        self, daemon: MpsProcessIdentity, everybody: frozenset[MpsProcessIdentity]
    ) -> None:
        if daemon not in self._settled:
            set_default_percentage(self._channel, self.spec.percentage)
        for identity in everybody - {daemon} - self._settled:
            set_percentage(self._channel, identity.pid, self.spec.percentage)

    def _obstacle(self, daemon: MpsProcessIdentity | None, running: Running, in_use: bool) -> str:
        """Why new jobs cannot be clients of a daemon that runs; empty if they can."""
        orphans = self._orphans(running, keep=daemon)
        if orphans and in_use:
            return f"jobs may still be clients of an MPS server whose daemon is gone ({orphans[0]})"
        if orphans and (left := end(orphans)):
            return "; ".join(left)
        if self._silent:
            return "its MPS daemon did not answer just now"
        in_fault = [server for server in self._servers if server.state is ServerState.FAULT]
        if in_fault and not in_use and not in_fault[0].clients:
            self._said.append(
                "its MPS server stays in FAULT without clients: ended; the next client gets another"
            )
            process.end(in_fault[0].identity, SERVER_END_S)
        if in_fault:
            return f"{servers.IN_FAULT}: every client has to end first"
        if daemon not in self._settled:
            return self._why_not_settled or "the settings of its MPS daemon were not read back yet"
        return self._why_not_settled

    def _standing(
        self, daemon: MpsProcessIdentity | None, why_not: str, losses: tuple[str, ...]
    ) -> DaemonStatus:
        said, self._said = tuple(self._said), []
        return DaemonStatus(
            shares=not why_not and daemon is not None,
            why_not=why_not,
            daemon=daemon,
            servers=self._servers,
            said=said,
            losses=losses,
        )


def _alive(servers: tuple[Server, ...]) -> list[MpsProcessIdentity]:
    """The processes of these servers and their clients that live."""
    everybody = [each for server in servers for each in (server.identity, *server.clients)]
    return [identity for identity in everybody if process.is_alive(identity)]


# --- Those of no use any more ----------------------------------------------------------------------


QUIT_S = 5.0
_NONE = ("none",)


def sweep(
    folder: PurePosixPath,
    owner: str,
    keep: Collection[PurePosixPath],
    program: str = CONTROL,
) -> list[str]:
    """End this owner's daemons in pipe directories of `folder` but those to keep; what was done, in lines."""
    said = []
    for path in sorted(Path(folder).glob(f"*{SUFFIX}")):
        pipe = PurePosixPath(folder) / path.name.removesuffix(SUFFIX)
        if pipe in keep:
            continue
        spec = Spec(pipe_directory=pipe, log_directory=pipe, devices=_NONE, owner=owner, program=program)
        try:
            daemon = Daemon(spec)
        except Owned:  # By a live owner.
            continue
        try:
            if daemon.was_ours:
                left = daemon.stop(QUIT_S)
                said.append(left or f"ended the MPS daemon of {pipe}: it is not needed any more")
                if not left:
                    path.unlink()
        finally:
            daemon.release()
    return said
