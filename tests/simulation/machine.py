"""One host: its disk, its agent and its supervisors as processes that can be killed, and their edges.

What is ours here is what `agent/daemon/runtime.py` is to the agent's loop, and what `supervisors.py` and the
supervisor's `runtime.py` do: watch processes, connect, and keep on disk what was kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from cotenant.agent.daemon.core.edge import (
    Adopt,
    AgentConfig,
    AgentTicked,
    AnyAgentEffect,
    AnyAgentEvent,
    AwaitMemory,
    Booted,
    Connected,
    ControllerMessageCame,
    DevicesChanged,
    Disconnected,
    EndCame,
    EndLeftovers,
    FoundAttempt,
    GangMessageCame,
    MemoryFree,
    MemoryHeld,
    Reconnect,
    RemoveAttempt,
    Say,
    StartFailed,
    StartSupervisor,
    StatusCame,
    SupervisorGone,
    Tell,
    Trust,
)
from cotenant.agent.daemon.core.memory import AgentMemory
from cotenant.agent.daemon.core.notes import AnyNote
from cotenant.agent.daemon.core.state import AgentState
from cotenant.agent.daemon.loop import AgentLoop
from cotenant.agent.ipc.channel import GangOut, ToSupervisor
from cotenant.agent.ipc.records import Order, Result
from cotenant.agent.supervisor.core.edge import (
    AllGone,
    AnyHappening,
    ClearLeftovers,
    EndRanks,
    Finish,
    Publish,
    RankExited,
    Started,
    TellRank,
)
from cotenant.agent.supervisor.core.edge import RankMessageCame as RankHeard
from cotenant.agent.supervisor.core.edge import SupervisorTicked as SupervisorTicked
from cotenant.agent.supervisor.core.rank_messages import AnyRankWord
from cotenant.agent.supervisor.core.supervision import Supervision
from cotenant.controller.domain import HostId, HostReport
from cotenant.controller.system.sections import AgentSettings
from cotenant.controller.wire import agents as wire
from cotenant.controller.wire import decode, encode, pack, unpack
from tests.simulation.clockwork import Alarm, Clockwork
from tests.simulation.network import Network
from tests.simulation.training import Key, Rank

HEARTBEAT_S = 2.0
HELD = 0.1
"""How often the memory of a GPU does not come back at once after a job."""
HELD_S = 10.0
NEWS_S = 2.0
"""An end by failure waits for so long for the news of its fault."""
RESTART_S = 3.0
"""How long systemd waits before it starts an agent that gave up."""


class Folder:
    """An attempt's folder: what is in it survives everything but its removal."""

    def __init__(self, order: Order, boot: int) -> None:
        self.order = order
        self.boot = boot
        self.result: Result | None = None


class Supervisor:
    """A supervisor's process."""

    def __init__(self, machine: Machine, order: Order) -> None:
        self.machine = machine
        self.order = order
        self.key: Key = (order.job_id, order.attempt)
        self.alive = True
        self.is_up = False
        self.supervision = Supervision(order, machine.clock.now_s)
        self.ranks: list[Rank] = []
        self._alarm = Alarm(machine.clock, lambda: self.handle(SupervisorTicked()))
        machine.clock.soon(0.5, self._come_up)

    def _come_up(self) -> None:
        if not self.alive:
            return
        self.is_up = True
        training = self.machine.world.training(self.order)
        for each in self.order.ranks:
            rank = Rank(each.rank, self.order, self.machine.domain, self._hear)
            rank.exited = lambda code, signal, number=each.rank: self._exited(number, code, signal)
            self.ranks.append(rank)
            training.join(rank)
        self.handle(Started())

    def _hear(self, word: AnyRankWord) -> None:
        """A datagram of a rank; they are not quite reliable."""
        if self.machine.clock.chance.random() < self.machine.world.datagram_loss:
            return
        self.machine.clock.soon(0.01, self.handle, RankHeard(word=word))

    def _exited(self, number: int, code: int | None, signal: int | None) -> None:
        if self.alive:
            self.machine.clock.soon(0.05, self.handle, RankExited(rank=number, exit_code=code, signal=signal))

    def handle(self, happening: AnyHappening) -> None:
        if not self.alive:
            return
        for effect in self.supervision.handle(happening, self.machine.clock.now_s):
            self._do(effect)
        self._alarm.set(self.supervision.next_alarm_s)

    def _do(self, effect: Any) -> None:
        clock, machine = self.machine.clock, self.machine
        match effect:
            case TellRank(rank=number, data=data):
                for rank in self.ranks:
                    if rank.number == number and clock.chance.random() >= machine.world.datagram_loss:
                        clock.soon(0.01, rank.hear, data, machine.world.training(self.order))
            case EndRanks(force=force):
                clock.say(f"{machine.name}: supervisor of {self.name} ends its ranks (force={force})")
                for rank in self.ranks:
                    clock.soon(0.1, machine.world.training(self.order).kill, rank, 9 if force else 15)
            case Publish(status=status):
                machine.from_supervisor(self, StatusCame(status=status))
            case GangOut(to_host=to_host, payload=payload):
                job_id, attempt = self.key
                said = GangMessageCame(job_id=job_id, attempt=attempt, to_host=to_host, payload=payload)
                machine.from_supervisor(self, said)
            case ClearLeftovers():
                clock.soon(0.2, self.handle, AllGone())
            case Finish(result=result):
                verdict = result.verdict
                clock.say(
                    f"{machine.name}: {self.name} {verdict.outcome} at step {result.step}: {verdict.detail}"
                )
                assert not any(rank.alive for rank in self.ranks)
                machine.folders[self.key].result = through_disk(result)
                self.alive = False
                machine.supervisor_ended(self)
            case _:
                raise AssertionError(effect)

    @property
    def name(self) -> str:
        return f"{self.key[0]}-a{self.key[1]}"

    def kill(self) -> None:
        """Its ranks die with it (PR_SET_PDEATHSIG)."""
        if not self.alive:
            return
        self.alive = False
        self._alarm.clear()
        for rank in self.ranks:
            rank.exited = None
            self.machine.world.training(self.order).kill(rank, 9)
        self.machine.supervisor_ended(self)


def _held(key: Key, uuids: list[str]) -> MemoryHeld:
    return MemoryHeld(job_id=key[0], attempt=key[1], holders=dict.fromkeys(uuids, "9000 MiB held by nobody"))


def through_disk(result: Result) -> Result:
    read: Result = unpack(pack(result), Result)
    return read


class Machine:
    def __init__(
        self, clock: Clockwork, network: Network, world: Any, report: HostReport, domain: str
    ) -> None:
        self.clock = clock
        self.network = network
        self.world = world
        self.report = report
        self.name: HostId = report.host_id
        self.domain = domain
        self.is_on = True
        self.boot = 1
        self.disk: list[AnyNote] = []
        self.folders: dict[Key, Folder] = {}
        self.supervisors: dict[Key, Supervisor] = {}
        self.state: AgentState | None = None
        self.lives = 0
        self.crash_in: int | None = None
        """Kill the agent after so many more effects: between any two of them."""
        self.halts: list[str] = []
        self.renewed_s = 0.0
        self.longest_gap_s = 0.0
        """The longest time without a renewal."""
        self.loop: AgentLoop | None = None
        self._address = b""
        self._connections = 0
        self._connected: set[Key] = set()
        self._alarm = Alarm(clock, lambda: self.post(AgentTicked()))

    # --- The agent's process -----------------------------------------------------------------------

    def start_agent(self) -> None:
        if self.state is not None or not self.is_on:
            return
        self.lives += 1
        config = AgentConfig(
            report=self.report,
            session=f"{self.name}:{self.lives}",
            uid=0,
            settings=AgentSettings(heartbeat_s=HEARTBEAT_S, start_deadline_s=120.0),
            checkpoint_root="/checkpoints",
            jobside_path="/jobside",
        )
        notes: list[AnyNote] = [unpack(pack(note), AnyNote) for note in self.disk]
        self.state = AgentState(config, AgentMemory(notes))
        self.loop = AgentLoop(self.state, self, notes="the notes")
        self.clock.say(f"{self.name}: agent starts")
        self._open()
        self._connected = set()
        self.post(Booted(found=tuple(self._found(key) for key in sorted(self.folders))))

    def _found(self, key: Key) -> FoundAttempt:
        folder, supervisor = self.folders[key], self.supervisors.get(key)
        return FoundAttempt(
            job_id=key[0],
            attempt=key[1],
            alive=supervisor is not None and supervisor.alive,
            rebooted=folder.boot != self.boot,
            order=folder.order,
            result=folder.result,
        )

    def kill_agent(self) -> None:
        if self.state is None:
            return
        self.clock.say(f"{self.name}: agent is killed")
        assert self.loop is not None
        self.loop.is_over = True
        self.state = self.loop = None
        self.crash_in = None
        self._alarm.clear()
        self._connected.clear()
        self.network.close(self._address)

    def crash(self) -> None:
        """Power off: every process is gone at once, what is on disk stays."""
        if not self.is_on:
            return
        self.clock.say(f"{self.name}: power off")
        self.kill_agent()
        for supervisor in list(self.supervisors.values()):
            supervisor.kill()
        self.supervisors.clear()
        self.is_on = False

    def reboot(self) -> None:
        if not self.is_on:
            self.is_on = True
            self.boot += 1
            self.clock.soon(2.0, self.start_agent)

    # --- The agent's loop, and what it asks for (`AgentEdges`) ----------------------------------------

    def post(self, event: AnyAgentEvent) -> None:
        """Handle an event now, or right after the one that is being handled."""
        if self.loop is not None:
            self.loop.take(event)

    def now_s(self) -> float:
        return self.clock.now_s

    def wake_at(self, at_s: float) -> None:
        self._alarm.set(at_s)

    def write(self, notes: Sequence[AnyNote]) -> None:
        for note in notes:
            if self._survives():
                self.disk.append(note)

    def write_later(self) -> None:
        raise AssertionError("the disk of a simulated host refuses nothing")

    def do(self, effect: AnyAgentEffect) -> None:
        if self._survives():
            self._do(effect)

    def send(self, message: wire.FromAgent) -> None:
        if self._survives():
            self.network.to_controller(self._address, encode(message))

    def note_handled(self, event: AnyAgentEvent) -> None:
        """Nothing here starts warm."""

    def halt(self, why: str) -> None:
        if self._survives():
            self._halt(why)

    def _survives(self) -> bool:
        """Whether the agent is still there for its next effect."""
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                self.kill_agent()
                self.clock.soon(5.0, self.start_agent)
        return self.state is not None

    def _do(self, effect: AnyAgentEffect) -> None:
        match effect:
            case StartSupervisor(order=order):
                self._start(order)
            case Adopt(job_id=job_id, attempt=attempt):
                self._connect_later((job_id, attempt))
                supervisor = self.supervisors.get((job_id, attempt))
                if supervisor is None or not supervisor.alive:
                    self.clock.soon(0.1, self._tell_exit, (job_id, attempt), self.lives)
            case Tell(job_id=job_id, attempt=attempt, message=message):
                self._tell((job_id, attempt), message)
            case EndLeftovers(result=result):
                self.clock.soon(1.0, self._end_leftovers, result, self.lives)
            case Reconnect():
                self.network.close(self._address)
                self._open()
            case RemoveAttempt(job_id=job_id, attempt=attempt):
                self.folders.pop((job_id, attempt), None)
            case AwaitMemory():
                self._release(effect)
            case Trust():
                self.post(DevicesChanged(devices=self.report.devices))
            case Say(text=text):
                self.clock.say(f"{self.name}: agent: {text}")
            case _:
                raise AssertionError(effect)

    def _release(self, asked: AwaitMemory) -> None:
        """Mostly the memory of GPUs is back in a moment; now and then somebody holds it for a while. What has
        failed waits until news of faults are in."""
        key, uuids = (asked.job_id, asked.attempt), [device.local for device in asked.devices]
        if self.clock.chance.random() < HELD:
            self.clock.after(HELD_S, self._not_given_back, self.lives, key, uuids)
            return
        free = MemoryFree(job_id=asked.job_id, attempt=asked.attempt)
        wait_s = NEWS_S if asked.failed else self.clock.chance.uniform(0.0, 1.0)
        self.clock.after(wait_s, self._in_life, self.lives, free)

    def _not_given_back(self, life: int, key: Key, uuids: list[str]) -> None:
        """The watcher says first that the devices are suspect, and later that they are free."""
        if self.state is not None and life == self.lives:
            self._mark(uuids, state="suspect", healthy=False, note="suspect: 9000 MiB held by nobody")
            self._in_life(life, _held(key, uuids))
            self.clock.after(HELD_S, self._given_back, life, uuids)

    def _given_back(self, life: int, uuids: list[str]) -> None:
        if self.state is not None and life == self.lives:
            held = [d.local for d in self.state.found_devices if d.local in uuids and d.state == "suspect"]
            self._mark(held, state="ok", healthy=True, note="")

    def _mark(self, uuids: list[str], **changes: Any) -> None:
        assert self.state is not None
        devices = tuple(
            msgspec.structs.replace(device, **changes)
            if device.local in uuids and device.state != "lost"
            else device
            for device in self.state.found_devices
        )
        self.post(DevicesChanged(devices=devices))

    def _in_life(self, life: int, event: AnyAgentEvent) -> None:
        """What this life of the agent has asked for; the next one asks again."""
        if life == self.lives:
            self.post(event)

    def _halt(self, why: str) -> None:
        self.clock.say(f"{self.name}: agent halts: {why}")
        self.halts.append(why)
        self.kill_agent()
        self.clock.after(RESTART_S, self.start_agent)

    def _open(self) -> None:
        self._connections += 1
        self._address = f"{self.name}/{self.lives}/{self._connections}".encode()
        life = self.lives
        self.network.open(self._address, lambda frame: self._receive(frame, life))

    def _receive(self, frame: bytes, life: int) -> None:
        if life == self.lives:
            message: wire.ToAgent = decode(frame, wire.ToAgent)
            if isinstance(message, wire.Renew) and message.beat:
                self.longest_gap_s = max(self.longest_gap_s, self.clock.now_s - self.renewed_s)
                self.renewed_s = self.clock.now_s
            self.post(ControllerMessageCame(message=message))

    # --- Supervisors -------------------------------------------------------------------------------

    def _start(self, order: Order) -> None:
        key = (order.job_id, order.attempt)
        assert key not in self.folders, f"{key} is started twice on {self.name}"
        if self.clock.chance.random() < self.world.start_failures:
            self.post(StartFailed(job_id=order.job_id, attempt=order.attempt, why="fork: no memory"))
            return
        self.clock.say(f"{self.name}: supervisor of {order.job_id}-a{order.attempt} starts")
        read: Order = unpack(pack(order), Order)
        self.folders[key] = Folder(read, self.boot)
        self.supervisors[key] = Supervisor(self, read)
        self._connect_later(key)

    def _connect_later(self, key: Key) -> None:
        self.clock.soon(0.7, self._connect, key, self.lives)

    def _connect(self, key: Key, life: int) -> None:
        supervisor = self.supervisors.get(key)
        if life != self.lives or self.state is None or supervisor is None or not supervisor.alive:
            return
        if not supervisor.is_up:
            self._connect_later(key)
            return
        self._connected.add(key)
        self.post(Connected(job_id=key[0], attempt=key[1]))
        self.post(StatusCame(status=supervisor.supervision.status))

    def break_line(self, key: Key) -> None:
        """The connection to a supervisor breaks; the edge connects again."""
        if key in self._connected:
            self._connected.discard(key)
            self.post(Disconnected(job_id=key[0], attempt=key[1]))
            self._connect_later(key)

    def from_supervisor(self, supervisor: Supervisor, event: AnyAgentEvent) -> None:
        if supervisor.key in self._connected:
            self.clock.soon(0.01, self._from_line, supervisor.key, event, self.lives)

    def _from_line(self, key: Key, event: AnyAgentEvent, life: int) -> None:
        if life == self.lives and key in self._connected:
            self.post(event)

    def _tell(self, key: Key, message: ToSupervisor) -> None:
        if key in self._connected:
            self.clock.soon(0.01, self._to_supervisor, key, message)

    def _to_supervisor(self, key: Key, message: ToSupervisor) -> None:
        supervisor = self.supervisors.get(key)
        if supervisor is not None:
            assert not isinstance(message, wire.AskStream), "nobody here asks for a terminal"
            supervisor.handle(message)

    def supervisor_ended(self, supervisor: Supervisor) -> None:
        if self.state is not None:
            self.clock.soon(0.1, self._tell_exit, supervisor.key, self.lives)

    def _tell_exit(self, key: Key, life: int) -> None:
        if life != self.lives or self.state is None:
            return
        self._connected.discard(key)
        result = self.folders[key].result
        if result is not None:
            self.post(EndCame(result=result))
        else:
            self.post(SupervisorGone(job_id=key[0], attempt=key[1]))

    def _end_leftovers(self, result: Result, life: int) -> None:
        if life != self.lives or self.state is None:
            return
        key = (result.job_id, result.attempt)
        supervisor = self.supervisors.get(key)
        if supervisor is not None:
            supervisor.kill()
        folder = self.folders.get(key)
        if folder is not None and folder.result is None:
            folder.result = through_disk(result)
        self.post(EndCame(result=folder.result if folder is not None and folder.result else result))

    # --- What others look at -----------------------------------------------------------------------

    @property
    def pending_reports(self) -> int:
        return len(self.state.memory.pending) if self.state is not None else -1

    def living(self) -> list[Supervisor]:
        return [each for each in self.supervisors.values() if each.alive]
