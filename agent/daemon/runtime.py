"""The agent's edges around its loop (`loop.py`): sockets, timers, threads, the disk, and the supervisors.

Rule: nothing is decided here. An edge tells the loop what happens, and does what the loop asks for.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cotenant.agent.daemon import connections, disk_use, images, loop, supervisors, tasks, trees, warm_starts
from cotenant.agent.daemon.agent_log import log, log_error, shorten_error
from cotenant.agent.daemon.assembly import AgentParts
from cotenant.agent.daemon.core import edge, remembered
from cotenant.agent.daemon.core.notes import AnyNote
from cotenant.agent.daemon.core.state import AgentState
from cotenant.agent.daemon.metrics import AgentReading, Edge, sheet_of
from cotenant.agent.gpus.gpu_watch import offer_devices
from cotenant.agent.gpus.mps_edge import MpsEdge
from cotenant.agent.host.facts import now_s
from cotenant.agent.host.indicators import IndicatorReader
from cotenant.agent.host.trees import TREES
from cotenant.agent.host.user_files import remove_tree
from cotenant.agent.ipc.records import Order, Result, Status
from cotenant.controller.domain import DeviceId, DeviceReading, ExitVerdict
from cotenant.controller.system.endpoint import BadEndpoint
from cotenant.controller.system.metrics import Sheet, Sheets
from cotenant.controller.wire import AskStream, FromAgent, SnapshotPart, ToAgent

if TYPE_CHECKING:
    pass

DISK_RETRY_S: Final = 1.0
ALARM_WAIT_S_MAX: Final = 3600.0
OFFER_PERIOD_S: Final = 10.0
"""How often a device that another agent holds is asked for again."""
WARM: Final = "warm"
"""Beside the attempts: the sockets of fork servers."""


class Runtime:
    def __init__(self, state: AgentState, parts: AgentParts, *, on_welcome: Callable[[], None]) -> None:
        """`state`: made of the parts' configuration and memory."""
        self._state, self._watch = state, parts.watch
        self._spool, self._locks, self._metrics = parts.spool, parts.locks, parts.metrics
        self._on_welcome: Callable[[], None] | None = on_welcome
        self._attempts = supervisors.Supervisors(
            parts.attempts, post=self.post, log=log, lock_devices=self._lock_devices, answer=self.send
        )
        name = f"{state.config.report.host_id}/{state.config.session[:12]}"
        changed = None if state.registration.route.is_only else self.post
        self._link = connections.ControllerLink(
            parts.endpoint, name, parts.key, post=self._heard, log=log, changed=changed
        )
        self._mps = (
            None
            if parts.mps is None
            else MpsEdge(parts.mps, state, folder=self._attempts.folder, post=self.post, log=log)
        )
        self._warm = warm_starts.WarmStarts(
            parts.warm,
            first_word_s=parts.first_word_s,
            folder=parts.attempts.with_name(WARM),
            attempts=self._attempts.folder,
            spare=self._attempts.spare,
            log=log,
        )
        self._trees = trees.TreeFetcher(
            parts.attempts.with_name(TREES),
            parts.trees_bytes_max,
            send=self._link.send,
            lease_left_s=self._lease_left_s,
        )
        self._shares = disk_use.DiskShares(
            parts.attempts, self._trees.copy_of("x").parent, parts.user_share_mib, log
        )
        self._images = images.Images(parts.runtimes, lease_left_s=self._lease_left_s)
        self._release = tasks.GpuRelease(
            self.post, parts.watch, self._mps.wait_for_look if self._mps is not None else None
        )
        self._logs = tasks.LogReader(self._attempts.folder, self._link.send)
        self.loop = loop.AgentLoop(state, self, notes=str(parts.spool.path))
        self._alarm: asyncio.TimerHandle | None = None
        self._removals = tasks.Tasks("removing checkpoints")
        self._tasks = tasks.Tasks("working beside the mail")
        """What goes on beside the loop until the end."""
        self._readings: dict[DeviceId, AgentReading] = {}
        """The newest of each device, for Prometheus."""
        self._faults: Counter[str] = Counter()
        """Of each GPU, by UUID, likewise."""
        self._leave, self.why_halted = asyncio.Event(), ""

    async def run(self) -> None:
        """Work until `leave` is called or the controller refuses us. Jobs live on.

        Raises:
            BadEndpoint: the controller's socket belongs to another user.
        """
        asyncio.get_running_loop().set_exception_handler(self._fail)
        self._link.open()
        self._trees.remove_left_over()
        self.post(edge.Booted(found=self._attempts.scan()))
        if self._watch is not None:
            self._watch.start(
                post=self._take,
                changed=self._offer,
                look_around=lambda: (self._state.config, self._state.running),
                log=log,
            )
        for each in self._side_work():
            self._tasks.keep_up(each)
        if self._metrics is not None:
            self._metrics.serve(Sheets(asyncio.get_running_loop(), self._sheet).newest)
            log(f"metrics at http://{self._metrics.address}/metrics")
        try:
            await self._leave.wait()
        finally:
            await self._tasks.leave()
            self._warm.leave()
            if self._watch is not None:
                self._watch.close()
            if self._alarm is not None:
                self._alarm.cancel()
            if self._metrics is not None:
                await asyncio.to_thread(self._metrics.close)
            self._logs.close()
            if self._mps is not None:
                await self._mps.leave()
            await self._attempts.leave()
            await self._release.leave()
            self._link.end()
            self._spool.close()
            self._locks.release()

    def _side_work(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """What is to go on beside the loop."""
        shares = partial(self._shares.run, self._copies_in_use, self.post)
        found: list[Callable[[], Coroutine[Any, Any, None]]] = [self._look_for_devices, shares]
        if self._warm.is_on:
            found.append(self._warm.run)
        if self._mps is not None:
            found.append(self._mps.run)
        if self._state.config.indicators_every_s > 0:
            found.append(self._read_indicators)
        return found

    async def _read_indicators(self) -> None:
        config = self._state.config
        indicators = IndicatorReader(
            lambda: self._state.config.report.devices,
            self._memory_seen_mib,
            self._indicators_read,
            wanted=config.indicators,
            every_s=config.indicators_every_s,
        )
        await indicators.run()

    def _copies_in_use(self) -> dict[remembered.AttemptKey, str]:
        """The names of the copies that attempts run in, where they have one."""
        folders = {each.key: self._state.checkpoint_folder(each.job) for each in self._state.running}
        return {key: self._trees.copy_of(folder).name for key, folder in folders.items()}

    def _memory_seen_mib(self) -> dict[DeviceId, float]:
        on_gpus = self._watch.memory_used_mib() if self._watch is not None else {}
        return self._state.tenants.memory_seen_mib() | on_gpus

    def _indicators_read(self, readings: tuple[DeviceReading, ...]) -> None:
        at_s = now_s()
        offered_now = {device.device_id for device in self._state.config.report.devices}
        self._readings = {each: read for each, read in self._readings.items() if each in offered_now}
        self._readings |= {reading.device_id: AgentReading(reading, at_s) for reading in readings}
        self.post(edge.IndicatorsRead(readings=readings))

    def _sheet(self) -> Sheet:
        """Returns the metrics sheet for one scrape."""
        at_edge = Edge(
            notes_waiting=len(self.loop.unwritten),
            faults=self._faults,
            held=self._watch.held if self._watch is not None else frozenset(),
            mps=self._mps.wrong if self._mps is not None else {},
        )
        return sheet_of(self._state, self._readings, now_s(), at_edge)

    def leave(self) -> None:
        """End soon and in order; jobs live on."""
        self.loop.leave()
        self._leave.set()

    def _fail(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A mistake of ours in the loop itself (`BadState`) or in a callback: what we know may be wrong, so
        stop. The next start knows what is on disk."""
        error = context.get("exception") or RuntimeError(context["message"])
        log_error(context["message"], error)
        self.halt(f"internal error ({shorten_error(error)}): start the agent again; jobs live on")

    def leave_on_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.leave)

    # --- Events ------------------------------------------------------------------------------------

    def post(self, event: edge.AnyAgentEvent) -> None:
        """Handle an event now, or right after the one that is being handled."""
        if isinstance(event, edge.GpuFault) and self._watch is not None:
            self._watch.note_fault(event)
        self._take(event)

    def _take(self, event: edge.AnyAgentEvent) -> None:
        if isinstance(event, edge.GpuFault):
            self._faults.update(event.uuids)
        self.loop.take(event)
        if self._on_welcome is not None and self._state.registration.welcomed:
            self._on_welcome()
            self._on_welcome = None

    def _heard(self, message: ToAgent) -> None:
        if isinstance(message, SnapshotPart):
            self._trees.take(message)
        elif isinstance(message, AskStream):
            self._attempts.ask(message)
        else:
            self.post(edge.ControllerMessageCame(message=message))

    def _tick(self) -> None:
        self.post(edge.AgentTicked(fork_servers=self._warm.use, pulls=self._images.progress))

    # --- What the loop asks for (`AgentEdges`) --------------------------------------------------------

    def now_s(self) -> float:
        """The time of this host's clock that no time zone moves."""
        return now_s()

    def wake_at(self, at_s: float) -> None:
        """Ticks at this time and no other."""
        if self._alarm is not None:
            self._alarm.cancel()
        wait_s = min(max(0.0, at_s - now_s()), ALARM_WAIT_S_MAX)
        self._alarm = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def write(self, notes: Sequence[AnyNote]) -> None:
        """Flushes notes to the spool.

        Raises:
            OSError: the disk refuses them.
        """
        self._spool.append(notes)
        if self._spool.is_bloated:
            try:
                self._spool.compact(self._state.memory.as_notes())
            except OSError as error:  # The old file still counts; the next note tries again.
                log(f"cannot compact {self._spool.path}: {error.strerror}")

    def write_later(self) -> None:
        """Writes again in a second what the disk has refused."""
        asyncio.get_running_loop().call_later(DISK_RETRY_S, self.loop.write_again)

    def send(self, message: FromAgent) -> None:
        """Sends a message to the controller, if there is a connection."""
        self._link.send(message)

    def note_handled(self, event: edge.AnyAgentEvent) -> None:
        """Looks what an event means for warm starts, and for attempts that wait for what they run."""
        self._warm.look(event)
        self._stop_preparing()

    def halt(self, why: str) -> None:
        """Ends the agent; jobs live on."""
        self.why_halted = why
        self.leave()

    def do(self, effect: edge.AnyAgentEffect) -> None:
        """Carries out an effect at the edge that it concerns."""
        match effect:
            case edge.StartSupervisor(order=order):
                self._start(order)
            case edge.Tell(job_id=job_id, attempt=attempt, message=message):
                self._attempts.tell(job_id, attempt, message)
            case edge.Adopt(job_id=job_id, attempt=attempt):
                self._attempts.adopt(job_id, attempt)
            case edge.EndLeftovers(result=result):
                self._attempts.clean(result)
            case edge.AwaitMemory():
                self._release.wait(effect)
            case edge.RemoveAttempt(job_id=job_id, attempt=attempt):
                self._remove(self._attempts.folder(job_id, attempt), self._attempts.base)
            case edge.RemoveCheckpoints(folder=folder):
                self._remove(Path(folder), Path(self._state.config.checkpoint_root))
                self._remove(self._trees.copy_of(folder), self._trees.folder)
            case edge.AnswerLog(read=read):
                self._logs.answer(read)
            case edge.Trust():
                if self._watch is not None:
                    self._watch.trust()
            case edge.Say(text=text):
                log(text)
            case edge.Reconnect(endpoint=endpoint):
                self._reconnect(endpoint)

    def _start(self, order: Order) -> None:
        is_ready = order.launch.snapshot is None and order.launch.container is None
        if is_ready and (self._mps is None or self._mps.serves(order)):
            self._start_now(order)
        else:
            self._tasks.keep(self._start_prepared(order), partial(self._attempts.give_up, _key(order)))

    def _start_now(self, order: Order) -> None:
        with tasks.contain_failure("starting its supervisor", partial(self._attempts.give_up, _key(order))):
            order = order if self._mps is None else self._mps.number(order)
            self._attempts.start(self._warm.offer_server(self._shares.bound_logs(order)))

    def _lease_left_s(self) -> float | None:
        return self._state.registration.lease.left_s(now_s())

    async def _start_prepared(self, order: Order) -> None:
        """Starts an attempt once its tree and its image are here and MPS serves it. The attempt may have been
        ended meanwhile."""
        if why := self._shares.refuse_copy(order, self._trees.copy_of(order.checkpoint_root).name):
            self.post(edge.StartFailed(job_id=order.job_id, attempt=order.attempt, why=why, of_host=False))
            return
        try:
            if order.launch.snapshot is not None:
                order = await self._trees.prepare(order, order.launch.snapshot)
            if order.launch.container is not None:
                order = await self._images.prepare(order, order.launch.container)
        except (trees.NoTree, images.NoImage) as error:
            failed = edge.StartFailed(
                job_id=order.job_id,
                attempt=order.attempt,
                why=str(error),
                is_users=error.is_users,
                of_host=False,
            )
            self.post(failed)
            return
        if self._mps is not None and not self._mps.serves(order):
            await self._mps.serve(order)
        if self._state.is_there(_key(order)):
            self._start_now(order)

    def _stop_preparing(self) -> None:
        """Ends attempts that are to stop while their trees or images come: no supervisor could be told."""
        for key, task in [*self._trees.preparing.items(), *self._images.preparing.items()]:
            attempt = self._state.memory.attempts.get(key)
            if attempt is not None and attempt.stop is not None and task is not None and task.cancel():
                why = "stopped before what it runs was here"
                verdict = ExitVerdict(outcome="never-started", detail=why, ours=why)
                self.post(
                    edge.EndCame(result=Result(status=Status(job_id=key[0], attempt=key[1]), verdict=verdict))
                )

    def _remove(self, folder: Path, trusted: Path) -> None:
        """Removes a folder in a thread: a folder of checkpoints may be large, and its file system slow. No
        link is followed from `trusted` on."""

        def remove() -> None:
            try:
                remove_tree(folder, trusted)
            except OSError as error:
                log(f"cannot remove all of {folder}: {error.strerror or error}")

        self._removals.keep(asyncio.to_thread(remove))

    def _reconnect(self, endpoint: str) -> None:
        try:
            self._link.reconnect(endpoint)
        except BadEndpoint as error:
            self.halt(str(error))

    # --- Devices -----------------------------------------------------------------------------------

    def _lock_devices(self, order: Order) -> list[int]:
        """Descriptors for the supervisor, which keep its devices from other agents when we are gone."""
        return self._locks.descriptors_for_supervisor(
            sorted(supervisors.locked_by(order, self._state.config.report.devices))
        )

    async def _look_for_devices(self) -> None:
        """Ask again for what another agent holds."""
        while True:
            await asyncio.sleep(OFFER_PERIOD_S)
            self._offer()

    def _offer(self) -> None:
        """Say so if devices have become available, or are so no more."""
        before = self._state.found_devices
        after = offer_devices(
            before, self._locks, self._watch.conditions() if self._watch is not None else None
        )
        if after != before:
            self.post(edge.DevicesChanged(devices=after))


def _key(order: Order) -> remembered.AttemptKey:
    return order.job_id, order.attempt
