"""The agent's MPS daemons and their clients, looked after in a thread of its own.

Rule: nothing here blocks the agent's loop, and the thread takes no decision about jobs: the loop hands it
what runs where (`GpuUse`), and gets back what it saw (`MpsWatchReport`). The thread is a daemon thread: an
agent that leaves does not wait for a front end that hangs.

A client whose connection fails runs without MPS and says nothing, so an attempt counts as attached only when
a client that the daemon lists carries the attempt's own socket path in its environment. Asked after the first
step: before, there may be no CUDA context.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from pathlib import PurePosixPath
from queue import SimpleQueue
from typing import TypeVar

import msgspec

from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.ipc.records import Order
from cotenant.checkpoint.talk.protocol import ENV_SOCKET
from cotenant.mps import answers, ownership, process, servers
from cotenant.mps.channel import ChannelError, ControlChannel
from cotenant.mps.daemon import Daemon

LOOKS_MAX = 5
"""After this many looks the verdict is final."""
NOT_SERVED = "its MPS daemon was started without it, and is started anew when no job uses it"
ELSEWHERE = (
    "MPS: it was told to attach to the MPS daemon of its device and did not, so it time-slices with whoever "
    "shares the device, without the limits of a client"
)
UNKNOWN = "MPS: whether it attached to the MPS daemon of its device could not be found out"
QUIT_S = 5.0
AROUND_EVERY_S = 10.0


class AttachedClient(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that should be the client of these daemons."""

    key: AttemptKey
    socket: str
    """What its processes have in COTENANT_SOCKET: unique on the machine, unlike the job's number."""
    pipe_directories: tuple[str, ...]
    workers: int = 1
    """How many of its workers each of these daemons serves."""


def client_of(order: Order, socket: str) -> AttachedClient | None:
    """Returns the client that an order's job is. None: the job was not told to be a client."""
    directories = tuple(dict.fromkeys(each.pipe_directory for each in order.mps))
    if not directories:
        return None
    workers = sum(len(member.devices) for member in order.gang if member.host_id == order.host_id)
    return AttachedClient(
        key=(order.job_id, order.attempt),
        socket=socket,
        pipe_directories=directories,
        workers=max(1, workers // len(directories)),
    )


def look_for(client: AttachedClient, program: str = process.CONTROL) -> int | None:
    """Asks each daemon of a client with how many processes a worker is attached, and returns the most that
    one says; 0: one does not have it as a client; None: one could not be asked. Blocks for a few questions'
    time."""
    try:
        listed = [_sockets(directory, program)[client.socket] for directory in client.pipe_directories]
    except (ChannelError, answers.Incomplete, answers.Rejected):
        return None
    return math.ceil(max(listed) / client.workers) if all(listed) else 0


def verdict(looks: int, processes: int | None) -> str | None:
    """The note for the user after so many looks, by what the last found; empty: it is attached; None: look
    again."""
    if processes:
        return ""
    if looks < LOOKS_MAX:
        return None
    return UNKNOWN if processes is None else ELSEWHERE


def _sockets(pipe_directory: str, program: str) -> Counter[str]:
    """How many clients of a daemon have which COTENANT_SOCKET."""
    channel = ControlChannel(pipe_directory=PurePosixPath(pipe_directory), program=program)
    found: Counter[str] = Counter()
    for server in channel.server_list():
        for pid in channel.client_list(server):
            environment: Mapping[str, str] = process.environment_of(pid) or {}
            found[environment.get(ENV_SOCKET, "")] += 1
    return found


Answer = TypeVar("Answer")


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """What runs on this host's GPUs, by UUID."""

    usable: frozenset[str] = frozenset()
    """Devices that a daemon can be started with: CUDA shows none of those behind one that it cannot find."""
    clients: Mapping[str, tuple[frozenset[str], ...]] = {}
    """By pipe directory: the devices of each job that is a client of its daemon."""
    of_users: tuple[ownership.Spec, ...] = ()
    """Daemons of other users whose jobs are here, where each has one."""
    unproven: tuple[AttachedClient, ...] = ()
    """Attempts that should be clients of a daemon by now, and have not been seen to be."""
    ask: bool = False
    """Ask every daemon now how its server is, however well it seems."""


class MpsWatchReport(msgspec.Struct, frozen=True, kw_only=True):
    why_not: Mapping[str, str] = {}
    """By UUID: why the device is not shared through its daemon now; empty: it is."""
    daemons: Mapping[str, servers.DaemonStatus] = {}
    """By pipe directory."""
    said: tuple[str, ...] = ()
    attachments: Mapping[AttemptKey, int | None] = {}
    """As `look_for` has found them."""

    @property
    def serving(self) -> dict[str, tuple[str, ...]]:
        """By pipe directory: the devices of a daemon that new jobs can be clients of, as it numbers them."""
        return {pipe: daemon.serves for pipe, daemon in self.daemons.items() if daemon.shares}


class MpsWatch:
    """Looks after the daemons of `specs`, one round at a time."""

    def __init__(self, specs: tuple[ownership.Spec, ...]) -> None:
        self._specs = specs
        self._program = specs[0].program if specs else process.CONTROL
        self._daemons: dict[ownership.Spec, Daemon] = {}
        self._running: process.Running | None = None
        self._around_until_s = 0.0
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    # --- For the loop ------------------------------------------------------------------------------

    async def round(self, facts: GpuUse) -> MpsWatchReport:
        """`look`, in the thread."""
        return await self._run_in_thread(lambda: self.look(facts))

    async def leave(self, *, quit_daemons: bool) -> str:
        """Give up the daemons, and end them if no job is left here; what could not be ended."""
        said = await self._run_in_thread(self.quit if quit_daemons else self.release)
        self._work.put(None)
        return said

    async def _run_in_thread(self, work: Callable[[], Answer]) -> Answer:
        answer: Future[Answer] = Future()

        def do() -> None:
            if not answer.set_running_or_notify_cancel():
                return  # The caller has gone.
            try:
                answer.set_result(work())
            except Exception as error:  # noqa: BLE001 - whatever it is, the loop has to know.
                answer.set_exception(error)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mps", daemon=True)
            self._thread.start()
        self._work.put(do)
        return await asyncio.wrap_future(answer)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    # --- In the thread -----------------------------------------------------------------------------

    def look(self, facts: GpuUse) -> MpsWatchReport:
        """See to every daemon once. Blocks."""
        running = self._around()
        why_not: dict[str, str] = {}
        specs = dict.fromkeys((*self._specs, *facts.of_users))
        said = self._end_unwanted(specs)
        daemons: dict[str, servers.DaemonStatus] = {}
        for spec in specs:
            standing = self._standing(spec, facts, running)
            daemons[str(spec.pipe_directory)] = standing
            for uuid in spec.devices:  # Of several daemons that serve it, all have to be well.
                without = "" if uuid in standing.serves else NOT_SERVED
                why_not[uuid] = why_not.get(uuid, "") or standing.why_not or without
            said += standing.said
            if standing.said or not standing.shares:
                self._running = None  # Something was done, or is to be done: look again.
        return MpsWatchReport(
            why_not=why_not,
            daemons=daemons,
            said=tuple(said),
            attachments={each.key: look_for(each, self._program) for each in facts.unproven},
        )

    def _around(self) -> process.Running:
        """Seldom from the whole process table: mostly only whether what was found there still lives."""
        known = self._running
        if (
            known is not None
            and time.monotonic() < self._around_until_s
            and all(process.is_alive(found.identity) for found in (*known.daemons, *known.servers))
        ):
            return known
        self._around_until_s = time.monotonic() + AROUND_EVERY_S
        self._running = process.look_around()
        return self._running

    def _end_unwanted(self, wanted: Collection[ownership.Spec]) -> list[str]:
        """Daemons of users who have no job here any more."""
        said = []
        for spec in [each for each in self._daemons if each not in wanted]:
            daemon = self._daemons.pop(spec)
            left = daemon.stop(QUIT_S)
            daemon.release()
            said.append(left or f"ended the MPS daemon of {spec.pipe_directory}: its user has no job here")
        return said

    def quit(self) -> str:
        """Ends our daemons; returns what could not be ended."""
        said = [daemon.stop(QUIT_S) for daemon in self._daemons.values()]
        self.release()
        return "; ".join(each for each in said if each)

    def release(self) -> str:
        """Gives our daemons up; they go on."""
        for daemon in self._daemons.values():
            daemon.release()
        self._daemons.clear()
        return ""

    def _standing(
        self, spec: ownership.Spec, facts: GpuUse, running: process.Running
    ) -> servers.DaemonStatus:
        usable = tuple(uuid for uuid in spec.devices if uuid in facts.usable)
        daemon = self._daemons.get(spec)
        if daemon is None:
            if not usable:
                return servers.DaemonStatus(
                    shares=False, why_not="no device of its MPS daemon can be used now"
                )
            try:
                daemon = self._daemons[spec] = Daemon(spec)
            except ownership.Owned as error:
                return servers.DaemonStatus(shares=False, why_not=str(error))
        if facts.ask:
            daemon.ask_next()
        return daemon.look(
            running,
            in_use=bool(facts.clients.get(str(spec.pipe_directory))),
            devices=usable,
        )
