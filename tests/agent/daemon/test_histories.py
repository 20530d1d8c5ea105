"""Promises of the agent over random histories: any order, repetition and loss of messages, supervisors that
end or die, and crashes between any two effects.

The world around the state machine is a model of what the edge does: a disk, folders, supervisors, a
network that repeats and forgets, and a controller that takes reports in order without gaps.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cotenant.agent.daemon.core.edge import (
    Adopt,
    AgentTicked,
    AnyAgentEffect,
    AnyAgentEvent,
    Booted,
    Connected,
    ControllerMessageCame,
    EndCame,
    EndLeftovers,
    FoundAttempt,
    GpuFault,
    Keep,
    Send,
    StartFailed,
    StartSupervisor,
    StatusCame,
    SupervisorGone,
)
from cotenant.agent.daemon.core.memory import AgentMemory
from cotenant.agent.daemon.core.notes import AnyNote
from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.daemon.core.state import AgentState
from cotenant.agent.ipc.records import Durable, Order, Result, Status
from cotenant.controller.domain import CommandId, ExitVerdict, ForgetJob, HostId, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.wire import (
    CommandAck,
    CommandDelivery,
    Heartbeat,
    Hello,
    Renew,
    Report,
    ReportAck,
    ToAgent,
    Welcome,
)
from tests.building.hosts import agent_config, cpu
from tests.building.orders import gang, start, stop

HOST = HostId("h")
DEVICES = tuple(cpu(f"h/cpu{n}") for n in range(2))
MAIL_MAX = 40
LEASE_S = 30.0


class Supervisor:
    """A process and its folder. The folder stays when the process is gone."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.alive = True
        self.ranks = True
        """They outlive a supervisor that is killed."""
        self.status = Status(job_id=order.job_id, attempt=order.attempt)
        self.result: Result | None = None


class World(RuleBasedStateMachine):
    devices = DEVICES

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.disk: list[AnyNote] = []
        self.supervisors: dict[AttemptKey, Supervisor] = {}
        self.starts: list[AttemptKey] = []
        self.cleaning: list[Result] = []
        self.mail: list[ToAgent] = []
        self.lives = 0
        self.commands = 0
        self.confirmed: set[int] = set()
        self.asked_to_start: dict[int, AttemptKey] = {}
        self.asked_to_stop: dict[int, AttemptKey] = {}
        self.stopped: set[AttemptKey] = set()
        """Attempts whose stop the agent has confirmed."""
        self.fenced: set[AttemptKey] = set()
        """Attempts of which the controller has heard that they never started."""
        self.heard: dict[int, ev.FromAttempt] = {}
        """Reports by number, as they were first seen on the wire."""
        self.seen = 0
        """The controller's durable count."""
        self.taken: list[ev.FromAttempt] = []
        self.lose_all = False
        self.forgotten: set[int] = set()

    @initialize()
    def boot(self) -> None:
        self.lives += 1
        self.session = f"s{self.lives}"
        config = agent_config(self.devices, session=self.session, uid=0)
        self.connected: set[AttemptKey] = set()
        self.cleaning = []
        self.state = AgentState(config, AgentMemory(self.disk))
        found = tuple(
            FoundAttempt(
                job_id=key[0],
                attempt=key[1],
                alive=supervisor.alive,
                order=supervisor.order,
                result=supervisor.result,
            )
            for key, supervisor in self.supervisors.items()
        )
        self.happen(Booted(found=found))
        self.network_works()

    # --- The edge ----------------------------------------------------------------------------------

    def happen(self, event: AnyAgentEvent, crash_after: int | None = None) -> None:
        """Handle an event; with `crash_after` the agent dies after so many effects, and starts again."""
        effects = self.state.handle(event, self.now_s)
        for effect in effects[:crash_after]:
            self.perform(effect)
        if crash_after is not None:
            self.boot()

    def perform(self, effect: AnyAgentEffect) -> None:
        match effect:
            case Keep(note=note):
                self.disk.append(note)
            case StartSupervisor(order=order):
                key = (order.job_id, order.attempt)
                assert key not in self.starts, f"{key} is started twice"
                assert key not in self.fenced, f"{key} is started after it was reported as never started"
                assert key not in self.stopped, f"{key} is started after its stop was confirmed"
                self.starts.append(key)
                self.supervisors[key] = Supervisor(order)
            case Adopt(job_id=job_id, attempt=attempt):
                assert (job_id, attempt) in self.supervisors
            case EndLeftovers(result=result):
                self.cleaning.append(result)
            case Send(message=message):
                self.on_the_wire(message)
            case _:
                pass

    def on_the_wire(self, message: Any) -> None:
        match message:
            case Report(sequence=sequence, event=event):
                first = self.heard.setdefault(sequence, event)
                assert first == event, f"report {sequence} was {first} and is now {event}"
                assert sequence <= AgentMemory(self.disk).sequence, "a report left before it was on disk"
                if not self.lose_all and sequence == self.seen + 1:
                    self.seen = sequence
                    self.take(event)
                if not self.lose_all:
                    self.post(ReportAck(sequence=self.seen))
            case CommandAck(command_id=command_id):
                self.confirmed.add(command_id)
                if command_id in self.asked_to_stop:
                    self.stopped.add(self.asked_to_stop[command_id])
            case Heartbeat(beat=beat):
                self.post(Renew(beat=beat))
            case Hello(session=session):
                assert self.seen <= AgentMemory(self.disk).sequence
                welcome = Welcome(session=session, lease_s=LEASE_S, reports_seen=self.seen, journal="j")
                self.post(welcome)

    def take(self, event: ev.FromAttempt) -> None:
        self.taken.append(event)
        if isinstance(event, ev.AttemptEnded):
            key = (event.job_id, event.attempt)
            if event.verdict.outcome == "never-started":
                self.fenced.add(key)
            supervisor = self.supervisors.get(key)
            assert supervisor is None or not supervisor.ranks, f"{key} is said to have ended and runs"

    def post(self, message: ToAgent) -> None:
        if not self.lose_all:
            self.mail.append(message)
            del self.mail[:-MAIL_MAX]

    # --- What can happen ---------------------------------------------------------------------------

    @rule(
        job=st.integers(1, 6),
        attempt=st.integers(1, 4),
        slots=st.sampled_from([(0,), (1,), (0, 1)]),
        crash=st.none() | st.integers(0, 5),
    )
    def controller_starts(self, job: int, attempt: int, slots: tuple[int, ...], crash: int | None) -> None:
        if job in self.forgotten:
            return
        self.commands += 1
        on = gang([self.devices[n].device_id for n in slots])
        command = start(str(job), attempt, self.commands, gang=on)
        self.asked_to_start[self.commands] = (command.job_id, command.attempt)
        self.send_and_maybe_lose(CommandDelivery(command=command), crash)

    @rule(
        job=st.integers(1, 6),
        attempt=st.integers(1, 4),
        save=st.booleans(),
        crash=st.none() | st.integers(0, 5),
    )
    def controller_stops(self, job: int, attempt: int, save: bool, crash: int | None) -> None:
        if job in self.forgotten:
            return
        self.commands += 1
        command = stop(str(job), attempt, self.commands, save=save, deadline_s=5.0)
        self.asked_to_stop[self.commands] = (command.job_id, command.attempt)
        self.send_and_maybe_lose(CommandDelivery(command=command), crash)

    @rule(job=st.integers(1, 6))
    def controller_forgets(self, job: int) -> None:
        """For good: only what was on its way before may still arrive."""
        self.forgotten.add(job)
        self.commands += 1
        command = ForgetJob(command_id=CommandId(self.commands), host_id=HOST, job_id=JobId(str(job)))
        self.post(CommandDelivery(command=command))

    def send_and_maybe_lose(self, message: CommandDelivery, crash: int | None) -> None:
        """Kept by the network, to be delivered later and again; sometimes it arrives at once."""
        self.mail.append(message)
        if not self.lose_all:
            self.happen(ControllerMessageCame(message=message), crash_after=crash)

    @precondition(lambda self: self.mail)
    @rule(data=st.data(), crash=st.none() | st.integers(0, 6), keep=st.booleans())
    def network_delivers(self, data: st.DataObject, crash: int | None, keep: bool) -> None:
        index = data.draw(st.integers(0, len(self.mail) - 1))
        message = self.mail[index] if keep else self.mail.pop(index)
        self.happen(ControllerMessageCame(message=message), crash_after=crash)

    @rule()
    def network_works(self) -> None:
        """All of it, in order, and what it causes."""
        for _ in range(4):
            mail, self.mail = self.mail, []
            for message in mail:
                self.happen(ControllerMessageCame(message=message))

    @rule()
    def network_forgets_all(self) -> None:
        self.mail.clear()

    @rule(lose=st.sampled_from([False, False, False, True]))
    def partition(self, lose: bool) -> None:
        self.lose_all = lose

    @rule(seconds=st.sampled_from([0.1, 0.5, 0.9, 1.0, 5.0, 100.0, 86_400.0 * 8]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.happen(AgentTicked())

    @rule()
    def agent_is_killed(self) -> None:
        self.boot()

    @precondition(lambda self: self.living())
    @rule(data=st.data(), crash=st.none() | st.integers(0, 4))
    def supervisor_speaks(self, data: st.DataObject, crash: int | None) -> None:
        self.says_a_step(data.draw(st.sampled_from(self.living())), crash)

    def says_a_step(self, key: AttemptKey, crash: int | None) -> None:
        supervisor = self.supervisors[key]
        if key not in self.connected:
            self.connected.add(key)
            self.happen(Connected(job_id=key[0], attempt=key[1]))
        step = supervisor.status.step + 1
        durable = (*supervisor.status.durable, Durable(step=step, name=f"a{key[1]}-s{step}", exact=True))
        supervisor.status = msgspec.structs.replace(
            supervisor.status,
            started=True,
            resumable=True,
            first_step=supervisor.status.first_step or step,
            step=step,
            durable=durable[-2:],
        )
        self.happen(StatusCame(status=supervisor.status), crash_after=crash)

    @precondition(lambda self: self.living())
    @rule(data=st.data(), died=st.booleans(), unseen=st.booleans(), crash=st.none() | st.integers(0, 4))
    def supervisor_ends(self, data: st.DataObject, died: bool, unseen: bool, crash: int | None) -> None:
        """In order or by a kill; `unseen`: the agent notices only after its next start."""
        key = data.draw(st.sampled_from(self.living()))
        supervisor = self.supervisors[key]
        supervisor.alive = False
        if not died:
            supervisor.ranks = False
            status = supervisor.status
            supervisor.result = Result(
                status=status, verdict=ExitVerdict(outcome="finished", exit_code=0, detail="")
            )
        if unseen:
            self.boot()
        else:
            self.happen(self.end_of(supervisor, key), crash_after=crash)

    @rule(
        local=st.sampled_from(["0", "1"]),
        failed=st.booleans(),
        data=st.data(),
        crash=st.none() | st.integers(0, 4),
    )
    def gpu_faults(self, local: str, failed: bool, data: st.DataObject, crash: int | None) -> None:
        culprit = data.draw(st.sampled_from([None, *self.living()]))
        culprits = (culprit,) if culprit is not None else ()
        fault = GpuFault(uuids=(local,), why="Xid 31 (x)", device_failed=failed, culprits=culprits)
        self.happen(fault, crash_after=crash)

    @precondition(lambda self: self.cleaning)
    @rule(crash=st.none() | st.integers(0, 4))
    def leftovers_are_gone(self, crash: int | None) -> None:
        result = self.cleaning.pop(0)
        supervisor = self.supervisors[result.job_id, result.attempt]
        supervisor.alive = supervisor.ranks = False
        supervisor.result = supervisor.result or result
        self.happen(EndCame(result=supervisor.result), crash_after=crash)

    @precondition(lambda self: self.starts)
    @rule(data=st.data())
    def start_is_impossible(self, data: st.DataObject) -> None:
        """The edge says so only if no supervisor came to life."""
        key = data.draw(st.sampled_from(self.starts))
        supervisor = self.supervisors.get(key)
        fresh = supervisor is not None and supervisor.alive and not supervisor.status.started
        if fresh and key not in self.connected:
            del self.supervisors[key]
            self.happen(StartFailed(job_id=key[0], attempt=key[1], why="no such program"))

    def living(self) -> list[AttemptKey]:
        return [key for key, supervisor in self.supervisors.items() if supervisor.alive]

    def end_of(self, supervisor: Supervisor, key: AttemptKey) -> AnyAgentEvent:
        if supervisor.result is not None:
            return EndCame(result=supervisor.result)
        return SupervisorGone(job_id=key[0], attempt=key[1])

    # --- What must always hold ---------------------------------------------------------------------

    @invariant()
    def one_attempt_of_a_job_at_a_time(self) -> None:
        running = [key for key, supervisor in self.supervisors.items() if supervisor.ranks]
        assert len(running) == len({job_id for job_id, _ in running}), running

    @invariant()
    def no_device_has_too_many_tenants(self) -> None:
        for device in self.devices:
            tenants = [
                key
                for key, supervisor in self.supervisors.items()
                if supervisor.ranks and device.device_id in supervisor.order.gang[0].devices
            ]
            assert len(tenants) <= device.max_tenants

    @invariant()
    def whoever_was_struck_by_a_fault_ends_by_it_or_has_finished(self) -> None:
        for attempt in AgentMemory(self.disk).attempts.values():
            if attempt.fault is not None and attempt.ended is not None:
                ended = attempt.ended
                by_it = ended.gpu_fault == attempt.fault.role and attempt.fault.why in ended.verdict.detail
                excused = ended.verdict.outcome == "finished" or ended.verdict.detail == "no such program"
                assert by_it or excused, ended
                assert ended.verdict.outcome != "user-failed" or not attempt.fault.beside, (
                    "another may have caused it"
                )

    @invariant()
    def the_disk_holds_what_the_agent_knows(self) -> None:
        read, known = AgentMemory(self.disk), self.state.memory
        assert list(read.as_notes()) == list(known.as_notes())
        assert list(AgentMemory(known.as_notes()).as_notes()) == list(known.as_notes()), (
            "compaction loses something"
        )

    def teardown(self) -> None:
        """Once everything works again, every end is heard, and reports have no gaps."""
        self.lose_all = False
        self.mail.clear()
        self.boot()
        for _ in range(60):
            for message in list(self.mail):
                self.happen(ControllerMessageCame(message=message))
            self.mail.clear()
            while self.cleaning:
                self.leftovers_are_gone(None)
            self.all_that_is_asked_is_answered()
            for key in self.living():
                supervisor = self.supervisors[key]
                supervisor.alive = False
                self.happen(self.end_of(supervisor, key))
            self.now_s += 1.0
            self.happen(AgentTicked())
        ended = {(event.job_id, event.attempt) for event in self.taken if isinstance(event, ev.AttemptEnded)}
        assert set(self.starts) <= ended, f"{set(self.starts) - ended} ended unheard"
        assert self.stopped <= ended, f"{self.stopped - ended}: a confirmed stop, and no end"
        asked = {key for command, key in self.asked_to_start.items() if command in self.confirmed}
        fences = {key: self.highest_ended(key[0], ended) for key in asked}
        assert all(fences[key] >= key[1] for key in asked), "a confirmed start has neither run nor ended"
        assert self.state.running == ()
        assert not self.state.memory.pending

    def all_that_is_asked_is_answered(self) -> None:
        """For worlds in which more is asked than this one answers."""

    def highest_ended(self, job_id: JobId, ended: set[AttemptKey]) -> int:
        """A start may be confirmed without a word of its own only where a later attempt has fenced it."""
        return max((attempt for job, attempt in ended if job == job_id), default=0)


TestHistories = World.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
