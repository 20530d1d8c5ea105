"""The MPS control daemon of one device set, and its one owner.

Rule: only an owner starts, configures or ends a daemon, and it outlives its owner: jobs are on it. `look`
is to be called every few seconds, from a thread: it sees what is wrong, does what `health.py` says about
it, and never blocks longer than a start of a daemon and of a server take. It replaces a daemon that was lost
and sets it up again; a setting counts only when it was read back. What a daemon serves for its life is
compared with what is offered now, at every look.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath

from cotenant.mps import answers, health, ownership, process, server_trial, servers
from cotenant.mps.channel import ChannelError, ControlChannel, LockBusy, NoDaemon, Wedged
from cotenant.mps.servers import DaemonStatus, Server

ASK_EVERY_S = 10.0
"""How often a daemon that seems well is asked, when nothing about it has changed."""
STARTS_APART_S = 5.0
"""A daemon that ends at once is not started in a circle."""
START_AGAIN_S = 30.0
"""After a start that failed."""
SERVER_END_S = 2.0
QUIT_S = 5.0
"""For a daemon that nobody needs any more."""
_NONE = ("none",)
NO_VERSION_2 = (
    "its MPS daemon does not answer as version 2 of the control interface does, or its answers get lost"
)


class Daemon:
    """Owned from construction to `release`."""

    def __init__(
        self,
        spec: ownership.Spec,
        *,
        clock: Callable[[], float] = time.monotonic,
        channel: ControlChannel | None = None,
    ) -> None:
        """Takes ownership of the daemon. Raises Owned: another owner has it. `clock`: seconds, never going
        back."""
        self.spec = spec
        self._ownership = ownership.Ownership(spec.pipe_directory, spec.owner)
        self._channel = channel or ControlChannel(pipe_directory=spec.pipe_directory, program=spec.program)
        self._clock = clock
        self._servers: tuple[Server, ...] = ()
        self._settled: frozenset[process.MpsProcessIdentity] = frozenset()
        """The daemon and the servers that our settings were read back from."""
        self._why_not_settled = ""
        self._why_not_started = ""
        self._silent = 0
        self._ask_at_s = 0.0
        self._start_at_s = 0.0
        self._met: process.FoundProcess | None = None
        """The daemon that was last said to be ours."""
        self._lock_is_held = False
        self._trial = server_trial.ServerTrial(self._channel, spec)
        """Of its servers."""
        self._limits: tuple[str, ...] = ()
        """Memory limits that somebody has set in it."""
        self._said: list[str] = []

    # --- Looking -----------------------------------------------------------------------------------

    def ask_next(self) -> None:
        """The next look asks the daemon, however well it seems: a job failed on its devices."""
        self._ask_at_s = 0.0

    def look(
        self, running: process.Running | None = None, *, in_use: bool, devices: tuple[str, ...] = ()
    ) -> DaemonStatus:
        """Looks at the daemon and repairs it. `in_use`: jobs run as its clients. `devices`: the UUIDs for a
        daemon that is started now; empty: as before."""
        self.spec = replace(self.spec, devices=devices or self.spec.devices)
        now = running if running is not None else process.look_around()
        ours = self._ours(now)
        strangers = [found for found in ownership.daemons_at(self.spec, now) if found not in ours]
        found = self._current(ours)
        daemon = None if found is None else found.identity
        before = self._servers
        in_place = self._is_in_place(daemon)
        if not strangers and in_place:  # Else another daemon might answer.
            self._ask(found)
        seen = health.condition(
            {
                health.DaemonCondition.STRANGER: bool(strangers),
                health.DaemonCondition.ABSENT: found is None,
                health.DaemonCondition.DOUBLED: len(ours) > 1,
                health.DaemonCondition.DISPLACED: not in_place,
                health.DaemonCondition.WEDGED: self._silent >= health.SILENT_MAX,
                health.DaemonCondition.OUTDATED: found is not None
                and (found.driver != self.spec.driver or bool(self._limits)),
                health.DaemonCondition.OTHER_DEVICES: found is not None
                and found.devices != self.spec.devices,
            }
        )
        todo = health.TABLE[seen][in_use]
        known = [each for server in before for each in (server.identity, *server.clients)]
        losses = tuple(servers.losses(before, filter(process.is_alive, known)))
        why = ""
        if todo is health.Remedy.REFUSE:
            why = f"{seen.value}: {strangers[0]}"
        elif todo is health.Remedy.WAIT:
            why = f"{seen.value}; {todo.value}"
        elif todo in (health.Remedy.START, health.Remedy.REPLACE):
            why = self._renew(seen, ours, now, in_use)
            found = None if why else self._met
        elif found is not None:
            self._meet(found)
            with suppress(OSError):  # A full disk: the daemon loses its lines, and goes on.
                ownership.bound_logs(self.spec.log_directory)
        return self._standing(found, why or self._obstacle(found, now, in_use), losses)

    def stop(self, timeout_s: float) -> str:
        """End the daemon and its servers, by force after `timeout_s`; why that failed, for a person.

        For when no job is on it.
        """
        running = process.look_around()
        ours = self._ours(running)
        if ours:
            with suppress(
                ChannelError, answers.Incomplete, answers.Rejected
            ):  # What `quit` does not end, we do.
                self._channel.quit(timeout_s)
                process.end(ours[0].identity, ownership.END_S, 0)  # It listens no more, and cleans up.
        left = ownership.end([*ours, *self._orphans(process.look_around(), keep=None)])
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

    def _ours(self, running: process.Running) -> list[process.FoundProcess]:
        return [found for found in ownership.daemons_at(self.spec, running) if found.owner == self.spec.owner]

    def _current(self, ours: list[process.FoundProcess]) -> process.FoundProcess | None:
        """The daemon to talk to: the one on record if it lives, else any that carries our mark."""
        recorded = self._ownership.record.daemon
        known = [found for found in ours if found.identity == recorded]
        if recorded is not None and not known:
            process.reap(recorded.pid)  # Where we are process 1, the kernel hands it to us.
        return next(iter(known or ours), None)

    def _is_in_place(self, daemon: process.MpsProcessIdentity | None) -> bool:
        """Whether the directory still holds the socket that this daemon made."""
        record = self._ownership.record
        if daemon is None or record.daemon != daemon or record.socket is None:
            return True  # Its record was lost: it counts as in place while it answers.
        return record.socket == ownership.socket_of(self.spec)

    def _meet(self, found: process.FoundProcess) -> None:
        """Takes on a daemon of ours that we did not know: from before our own start, or of an interrupted
        one."""
        if self._met == found or self._silent:
            return
        self._met, self._trial = found, server_trial.ServerTrial(self._channel, self.spec)
        if self._ownership.record.daemon != found.identity:
            self._ownership.keep(daemon=found.identity, socket=ownership.socket_of(self.spec))
        self._said.append(f"goes on with its MPS daemon ({found}) in {self.spec.pipe_directory}")

    # --- Starting and replacing --------------------------------------------------------------------

    def _renew(
        self,
        seen: health.DaemonCondition,
        ours: list[process.FoundProcess],
        running: process.Running,
        in_use: bool,
    ) -> str:
        """Start a daemon where none is, or in place of what is there; why that failed."""
        if self._clock() < self._start_at_s:
            return self._why_not_started
        left = ownership.end(ours)
        if not in_use:
            left += ownership.end(self._orphans(running, keep=None))
        if left:
            return "; ".join(left)
        try:
            found, warning = ownership.start(self.spec)
        except ownership.NotStarted as error:
            self._start_at_s = self._clock() + START_AGAIN_S
            self._why_not_started = str(error)
            self._said.append(str(error))
            return str(error)
        self._start_at_s = self._clock() + STARTS_APART_S
        self._why_not_started = "its MPS daemon has ended soon after it was started"
        again = "" if self._ownership.record.daemon is None else f" again, since {seen.value}"
        self._ownership.keep(daemon=found.identity, socket=ownership.socket_of(self.spec))
        self._met, self._servers, self._silent, self._limits = found, (), 0, ()
        self._trial = server_trial.ServerTrial(self._channel, self.spec)
        self._said.append(f"MPS daemon started{again} ({found}) in {self.spec.pipe_directory}")
        self._said += [f"MPS daemon: {warning}"] if warning else []
        self._ask(found)
        return ""

    def _orphans(
        self, running: process.Running, keep: process.MpsProcessIdentity | None
    ) -> list[process.FoundProcess]:
        """Servers of ours whose daemon is gone: they hold the device, and their clients cannot be stopped."""
        return [
            found
            for found in running.servers
            if found.pipe_directory == str(self.spec.pipe_directory)
            and found.owner == self.spec.owner
            and process.is_alive(found.identity)
            and (keep is None or process.parent_of(found.identity.pid) != keep.pid)
        ]

    # --- Asking ------------------------------------------------------------------------------------

    def _ask(self, found: process.FoundProcess | None) -> None:
        """Asks the daemon, which is the slow check: its servers and their clients, and our settings on new
        servers and clients."""
        if found is None:
            self._servers, self._silent = (), 0
            return
        daemon = found.identity
        known = {daemon, *(server.identity for server in self._servers)}
        news = not known <= self._settled or not all(map(process.is_alive, known))
        news |= any(server.state is answers.ServerState.FAULT for server in self._servers)  # When is it over?
        if self._clock() < self._ask_at_s and not news and not self._silent:
            return
        self._ask_at_s = self._clock() + ASK_EVERY_S
        try:
            self._servers = self._describe_servers()
            self._settle(found)
            self._silent, self._lock_is_held = 0, False
        except (Wedged, NoDaemon):
            self._silent += 1
            self._servers = tuple(each for each in self._servers if process.is_alive(each.identity))
        except answers.Incomplete as error:
            if daemon not in self._settled:  # Else nothing new is known of it.
                self._why_not_settled = f"{NO_VERSION_2}: {error}"
        except (LockBusy, answers.Rejected) as error:
            if isinstance(error, LockBusy) and not self._lock_is_held:
                self._lock_is_held = True
                self._said.append(f"cannot ask the MPS daemon in {self.spec.pipe_directory}: {error}")
            if daemon not in self._settled:
                self._why_not_settled = self._why_not_settled or str(error)

    def _describe_servers(self) -> tuple[Server, ...]:
        found = []
        for pid in self._channel.server_list():
            identity = process.identity_of(pid)
            if identity is None:
                continue  # It has died since, or the daemon lives in another pid namespace.
            try:
                clients = self._channel.client_list(pid)
                state = self._channel.server_status(pid)
            except answers.Rejected:
                continue  # The same.
            alive = tuple(each for each in map(process.identity_of, clients) if each is not None)
            found.append(Server(identity=identity, state=state, clients=alive))
        return tuple(found)

    def _settle(self, found: process.FoundProcess) -> None:
        """Our settings into a daemon and servers that lack them, and what others have set there.

        Raises:
            Rejected: another value stays in force.
        """
        daemon = found.identity
        servers = frozenset(server.identity for server in self._servers)
        try:
            if daemon not in self._settled:
                self._channel.set_default_percentage(self.spec.percentage)
                self._limits = self._channel.default_memory_limits(len(found.devices))
            for identity in servers - self._settled:
                self._channel.set_percentage(identity.pid, self.spec.percentage)
        except answers.Rejected as error:
            self._settled -= {daemon}
            self._why_not_settled = f"its MPS daemon does not take our settings: {error}"
            raise
        self._settled, self._why_not_settled = servers | {daemon}, ""

    def _obstacle(self, found: process.FoundProcess | None, running: process.Running, in_use: bool) -> str:
        """Why new jobs cannot be clients of a daemon that runs; empty if they can."""
        daemon = None if found is None else found.identity
        orphans = self._orphans(running, keep=daemon)
        if orphans and in_use:
            return f"jobs may still be clients of an MPS server whose daemon is gone ({orphans[0]})"
        if orphans and (left := ownership.end(orphans)):
            return "; ".join(left)
        if self._silent:
            return "its MPS daemon did not answer just now"
        in_fault = [server for server in self._servers if server.state is answers.ServerState.FAULT]
        if in_fault and not in_use and not in_fault[0].clients:
            self._said.append(
                "its MPS server stays in FAULT without clients: ended; the next client gets another"
            )
            self._trial.expect_end(in_fault[0].identity.pid)
            process.end(in_fault[0].identity, SERVER_END_S)
        if in_fault:
            return f"{servers.IN_FAULT}: every client has to end first"
        if daemon not in self._settled:
            return self._why_not_settled or "the settings of its MPS daemon were not read back yet"
        return self._why_not_settled or self._trial.look(self._clock(), in_use=in_use)

    def _standing(
        self, found: process.FoundProcess | None, why_not: str, losses: tuple[str, ...]
    ) -> DaemonStatus:
        said, self._said = tuple(self._said), []
        return DaemonStatus(
            shares=not why_not and found is not None,
            why_not=why_not,
            daemon=None if found is None else found.identity,
            servers=self._servers,
            serves=() if found is None else found.devices,
            said=said,
            losses=losses,
        )


def sweep(
    folder: PurePosixPath,
    owner: str,
    keep: Collection[PurePosixPath],
    program: str = process.CONTROL,
) -> list[str]:
    """Ends this owner's daemons in pipe directories of `folder` but those to keep: it has no use for them any
    more (another mode, MPS switched off, a GPU gone). What was done, in lines. To be called when no job is on
    the host.

    Every daemon that we ever started has an owner's file beside its pipe directory, so this finds them all.
    """
    said = []
    for path in sorted(Path(folder).glob(f"*{ownership.SUFFIX}")):
        pipe = PurePosixPath(folder) / path.name.removesuffix(ownership.SUFFIX)
        if pipe in keep:
            continue
        spec = ownership.Spec(
            pipe_directory=pipe, log_directory=pipe, devices=_NONE, owner=owner, program=program
        )
        try:
            daemon = Daemon(spec)
        except ownership.Owned:  # By a live owner.
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
