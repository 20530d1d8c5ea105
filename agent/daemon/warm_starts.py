"""This host's fork servers: started, listened to and ended as `agent/warm/pool.py` decides; and one
supervisor that is started before it is needed: an interpreter and our modules are most of what a warm start
would wait for.

Rule: nothing waits for a server. An attempt that a ready server can fork is offered it, any other starts cold
and learns why; a server that dies ends nothing else. As long as one is ready a
supervisor is started ahead as well, when an attempt has come to its first step or its end.

Nobody relies on that one. An attempt that finds none, or one that has ended, starts a supervisor as usual.
There is at most one, and it ends with the agent.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cotenant.agent.daemon import tasks
from cotenant.agent.daemon.core import edge
from cotenant.agent.host import facts
from cotenant.agent.ipc import records
from cotenant.agent.supervisor.processes import environment, ranks
from cotenant.agent.warm import pool, refusals, spawn
from cotenant.controller import domain

TICK_S: Final = 5.0
CODE_CHARS_MAX: Final = 40
LEARNING_MAX: Final = 256
"""Attempts whose lists of modules it awaits at once."""


class WarmStarts:
    def __init__(
        self,
        warm: pool.Pool | None,
        *,
        first_word_s: float = 2.0,
        folder: Path,
        attempts: Callable[[str, int], Path],
        spare: SpareSupervisor,
        log: Callable[[str], None],
    ) -> None:
        """Prepares warm starts without starting any server. `warm` None: switched off. `folder`: for sockets,
        ours alone."""
        self._pool = warm
        self._folder = folder
        self._first_word_s = first_word_s
        self._attempts = attempts
        self._spare = spare
        self._log = log
        self._servers: dict[str, spawn.ForkServer] = {}
        self._learning: dict[tuple[str, int], tuple[pool.ServerKind, Path]] = {}
        self._count = 0

    # --- Attempts ----------------------------------------------------------------------------------

    def offer_server(self, order: records.Order) -> records.Order:
        """The order, with the server that its ranks may be forked from, or with why there is none."""
        try:
            return msgspec.structs.replace(order, warm=self._offer(order))
        except refusals.WarmRefused as refused:
            offer = records.WarmOffer(why=refused.code, detail=refused.detail)
            return msgspec.structs.replace(order, warm=offer)

    def _offer(self, order: records.Order) -> records.WarmOffer:
        if self._pool is None:
            raise refusals.WarmRefused("off")
        if order.launch.container is not None:
            raise refusals.WarmRefused("container")
        if not order.launch.warm:
            raise refusals.WarmRefused("asked")
        if order.mps and order.launch.mode == "host":
            raise refusals.WarmRefused("mps")
        kind = kind_of(order)
        ready, offer = self._pool.offer(kind.key, facts.now_s())
        if ready:
            address = self._servers[kind.key].address
            return records.WarmOffer(server=str(address), first_word_s=self._first_word_s)
        if offer.learns and len(self._learning) < LEARNING_MAX:
            self._learning[order.job_id, order.attempt] = (kind, Path(order.jobside_path))
            return offer
        return msgspec.structs.replace(offer, learns=False)

    def look(self, event: edge.AnyAgentEvent) -> None:
        """Whether a cold run has come so far that it has told what it imports."""
        if isinstance(event, edge.StatusCame) and event.status.first_step is not None:
            self._learn(event.status.job_id, event.status.attempt)
            self._keep_spare()
        elif isinstance(event, edge.EndCame):
            self._learn(event.result.job_id, event.result.attempt)
            self._learning.pop((event.result.job_id, event.result.attempt), None)
            self._keep_spare()

    def _keep_spare(self) -> None:
        if self._pool is not None and any(each.is_ready for each in self._pool.servers.values()):
            self._spare.keep()
        else:
            self._spare.drop()

    def _learn(self, job_id: str, attempt: int) -> None:
        if self._pool is None or (job_id, attempt) not in self._learning:
            return
        kind, jobside = self._learning[job_id, attempt]
        try:
            with open(self._attempts(job_id, attempt) / records.MODULES, "rb") as file:
                names = spawn.module_names(file.read(spawn.MODULES_BYTES_MAX))
        except OSError:
            return
        del self._learning[job_id, attempt]
        with tasks.contain_failure(f"learning what job {job_id} imports"):
            self._handle(pool.ColdRunTold(kind=kind, modules=names), jobside)

    # --- Servers -----------------------------------------------------------------------------------

    def _handle(self, event: pool.PoolEvent, jobside: Path | None = None) -> None:
        assert self._pool is not None
        for effect in self._pool.handle(event, facts.now_s()):
            match effect:
                case pool.ServerStart(kind=kind, modules=modules):
                    assert jobside is not None
                    self._start(kind, modules, jobside)
                case pool.ServerEnd(key=key, why=why):
                    self._log(f"fork server {key[:8]} ends: {why}")
                    self._close(key)

    def _start(self, kind: pool.ServerKind, modules: tuple[str, ...], jobside: Path) -> None:
        self._count += 1
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            server = spawn.ForkServer(kind, modules, jobside, self._folder / f"{self._count}.sock")
        except (OSError, ValueError) as error:
            self._handle(pool.ServerRefused(key=kind.key, code="interpreter", detail=str(error)))
            return
        self._servers[kind.key] = server
        loop = asyncio.get_running_loop()
        loop.add_reader(server.fileno(), self._heard, kind.key)
        loop.add_reader(server.output, self._drain, server)
        self._log(f"fork server {kind.key[:8]} starts: pid {server.pid}, for uid {kind.uid}")

    def _drain(self, server: spawn.ForkServer) -> None:
        if not server.drain():  # Else the end of its output would be news again and again.
            asyncio.get_running_loop().remove_reader(server.output)

    def _heard(self, key: str) -> None:
        with tasks.contain_failure(f"listening to fork server {key[:8]}", lambda _: self._refuse(key)):
            self._hear(key)

    def _refuse(self, key: str) -> None:
        """It goes, and its jobs start cold: its words are its user's."""
        if key in self._servers:
            self._close(key)
        self._handle(pool.ServerRefused(key=key, code="gone"))

    def _hear(self, key: str) -> None:
        server = self._servers[key]
        word = server.read()
        if word is None:
            return
        assert self._pool is not None
        was_ready = (known := self._pool.servers.get(key)) is not None and known.is_ready
        if word.m == "ready" and was_ready:
            return  # It says so once.
        if word.m == "ready":
            self._log(f"fork server {key[:8]} is ready")
            self._handle(pool.ServerReady(key=key, memory_mib=facts.private_mib(server.pid)))
            self._keep_spare()
            return
        self._close(key)
        if word.m == "refused" and not was_ready:
            self._log(f"no fork server {key[:8]}: {refusals.sentence(word.code, word.detail)}")
            detail = word.detail[: refusals.DETAIL_CHARS_MAX]
            self._handle(pool.ServerRefused(key=key, code=word.code[:CODE_CHARS_MAX], detail=detail))
        elif was_ready:
            self._handle(pool.ServerEnded(key=key))
        else:
            self._log(f"fork server {key[:8]} ended before it was ready")
            self._handle(pool.ServerRefused(key=key, code="gone"))

    def _close(self, key: str) -> None:
        server = self._servers.pop(key)
        loop = asyncio.get_running_loop()
        for each in (server.fileno(), server.output):
            loop.remove_reader(each)
        server.close()

    @property
    def use(self) -> domain.ForkServers | None:
        warm = self._pool
        if warm is None:
            return None
        return domain.ForkServers(
            count=warm.ready_count, memory_mib=warm.used_mib, allowed_mib=warm.allowed_mib
        )

    @property
    def is_on(self) -> bool:
        return self._pool is not None

    async def run(self) -> None:
        """Looks after the servers until it is cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            sizes = {key: facts.private_mib(server.pid) for key, server in self._servers.items()}
            self._handle(pool.PoolTicked(available_mib=facts.memory_available_mib(), sizes_mib=sizes))
            self._keep_spare()

    def leave(self) -> None:
        """Closes the fork servers, which end with the agent; what they forked lives on."""
        for key in list(self._servers):
            self._close(key)
        with suppress(OSError):
            os.rmdir(self._folder)


def kind_of(order: records.Order) -> pool.ServerKind:
    """Returns the kind of server that an order's ranks share. Raises WarmRefused."""
    program = refusals.program_of(order.launch.argv)
    if "/" in program.python and not program.python.startswith("/"):
        raise refusals.WarmRefused("command")
    launch = order.launch
    env = environment.environment_of(order, order.ranks[0], Path("/"), ranks.account_of(launch.uid))
    refusals.check_environment(env)
    return pool.ServerKind(
        interpreter=program.python,
        options=program.options,
        uid=launch.uid,
        gid=launch.gid,
        groups=launch.groups,
        env=pool.early(env),
    )


# --- One supervisor ahead --------------------------------------------------------------------------


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
