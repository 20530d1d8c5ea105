"""The controller's side of every agent: greets, grants leases, sends commands, takes reports, and relays
messages between supervisors of a gang. Rule: takes no decision. A host speaks through one connection at a
time, the one on which it last said hello; the controller ignores any other, so that its agent greets again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.executors.agents import delivery, histories, reducers
from cotenant.controller.executors.agents.trees import TreeService
from cotenant.controller.store import Core, Decided
from cotenant.controller.system.keys import Identity
from cotenant.controller.system.secrets import BadSecrets, Secrets
from cotenant.controller.system.trees import TreeFiles
from cotenant.controller.wire import FROM_AGENTS, Inadmissible, admit, encode
from cotenant.controller.wire import agents as wire

SendsFrame = Callable[[bytes, bytes], bool]

GAP_S: Final = 10.0
"""How long an earlier report may be missing before it counts as lost with its agent's disk."""
RIVAL_PROOF_S: Final = 2.5
"""A host's old connection that still talks this long after a rival's hello is alive."""
RIVAL_SILENCE_S: Final = 5.0
GANG_BYTES_MAX: Final = 64 * 1024
STREAM_QUESTIONS_MAX: Final = 10_000


class AgentConnection(msgspec.Struct, kw_only=True):
    """The present connection of one host."""

    address: bytes
    session: str
    hello: wire.Hello
    heard_s: float
    beat: int = 0
    """The newest heartbeat heard on this connection: each order says what it was decided after."""
    welcomed: bool = False
    rival: str = ""
    """Session of another agent that claims this host, and since when."""
    rival_since_s: float = 0.0
    gap_at: int = 0
    gap_since_s: float = 0.0


class DeviceRead(NamedTuple):
    """What a device did, and when that was."""

    reading: domain.DeviceReading
    at_s: float


class AgentNews:
    """What agents have said last, for views: never journalled. Of agents that nobody hears, nothing."""

    def __init__(self) -> None:
        self.telemetry: dict[domain.JobId, wire.AttemptProgress] = {}
        """The newest progress of each job."""
        self.readings: dict[domain.DeviceId, DeviceRead] = {}
        """The newest of each device."""
        self.fork_servers: dict[domain.HostId, domain.ForkServers] = {}
        self.pulls: dict[domain.HostId, dict[domain.JobId, str]] = {}
        """How far images have come to each host."""

    def fetched_bytes(self, job_id: domain.JobId) -> int:
        """How much of a job's packed tree has come to its hosts."""
        return 0

    def silent_s(self, host_id: domain.HostId, now_s: float) -> float | None:
        """How long ago a host was heard last; None: it never was."""
        return None


class AgentExecutor(AgentNews):
    """The executor that carries out commands on all agents."""

    def __init__(
        self,
        core: Core,
        send: SendsFrame,
        secrets: Secrets,
        *,
        lease_s: float | None,
        silent_after_s: float,
        trees: TreeFiles | None = None,
    ) -> None:
        super().__init__()
        self._core = core
        self._send_frame = send
        self._secrets = secrets
        self._lease_s = lease_s
        self._links: dict[domain.HostId, AgentConnection] = {}
        self._addresses: dict[bytes, domain.HostId] = {}
        self._delivery = delivery.Delivery()
        self._unstartable: list[ev.AttemptEnded] = []
        self._progress = reducers.ProgressFilter()
        self._idle = reducers.IdleFilter()
        self._histories = histories.Histories(core, lease_s)
        self.trees = TreeService(core, trees)
        self.logs = delivery.HostQuestions(core.clock, self.say, delivery.no_log)
        self.streams = delivery.HostQuestions(core.clock, self.say, delivery.no_stream, STREAM_QUESTIONS_MAX)
        now_s = core.clock.now_s()
        self.watch = reducers.HostWatch(silent_after_s=silent_after_s, lease_s=lease_s, now_s=now_s)
        self.rebuilt()

    def rebuilt(self) -> None:
        """The state was read from the journal: believe it, and grant every known host a full lease."""
        now_s = self._core.clock.now_s()
        for host_id, host in self._core.state.engine.hosts.items():
            self.watch.know(host_id, now_s, silent=host.silent, lost=host.lost)
        self._seen = self._core.journal.reports()
        for host_id in [host_id for host_id, link in self._links.items() if not link.welcomed]:
            self._drop(host_id)  # Its joining was not written; it greets again.

    def fetched_bytes(self, job_id: domain.JobId) -> int:
        return self.trees.fetched.get(job_id, 0)

    def silent_s(self, host_id: domain.HostId, now_s: float) -> float | None:
        return self.watch.age_s(host_id, now_s)

    # --- Agents speak ------------------------------------------------------------------------------

    def heard(self, address: bytes, who: Identity, message: wire.FromAgent) -> bool:
        """Take in a message; False if it makes no sense from this sender."""
        try:
            message = admit(message, FROM_AGENTS)
        except Inadmissible as refused:
            if isinstance(message, wire.Hello):  # It would greet for ever; the answer goes into its log.
                self._say(
                    address, wire.HostRefused(why=f"the controller refuses this host's report: {refused}")
                )
            return False
        if self._core.is_ahead and not isinstance(message, wire.Heartbeat):
            return True  # It is sent again, and answered from what is durable.
        if isinstance(message, wire.Hello):
            return self._hello(address, who, message)
        link = self._link_at(address)
        if link is None:
            self._core.counters["strangers"] += 1
            return True  # From before our restart, or from an old connection: it will greet again.
        host_id = link.hello.report.host_id
        match message:
            case wire.Heartbeat():
                self._beat(link, host_id, message)
            case wire.Report():
                return self._report(link, host_id, message)
            case wire.CommandAck():
                if message.epoch == self._core.state.engine.ledger.epoch.token:
                    self._delivery.note_seen(host_id, message.command_id)
            case wire.NotFollowed():
                self._not_followed(host_id, message)
            case wire.GangRelay():
                return self._relay(host_id, message)
            case wire.LogReply():
                self.logs.came(host_id, message)
            case wire.FetchSnapshot():
                self.say(host_id, self.trees.part_for(host_id, message))
            case wire.StreamReply():
                self.streams.came(host_id, message)
        return True

    def _link_at(self, address: bytes) -> AgentConnection | None:
        host_id = self._addresses.get(address)
        return None if host_id is None else self._links[host_id]

    def _hello(self, address: bytes, who: Identity, message: wire.Hello) -> bool:
        host_id = message.report.host_id
        why = not_allowed(who, message)
        if why:
            self._say(address, wire.HostRefused(why=why))
            return False
        link, now_s = self._links.get(host_id), self._core.clock.now_s()
        if link is not None and link.session != message.session:
            if self._rival_proven(link, message, now_s):
                self._core.counters["refused_agents"] += 1
                self._say(
                    address, wire.HostRefused(why=f"another agent works for host {host_id}: set agent.host")
                )
                return True
            if not self._is_gone(link, now_s):
                return True  # It greets again until we know which one is alive.
        if link is not None and link.session == message.session and message.number < link.hello.number:
            return True  # Older than the hello that we know; it came by another connection.
        if not self._is_of_our_history(address, message):
            return True
        if link is not None and link.address == address and same_but_number(link.hello, message):
            link.hello = message
            if link.welcomed:
                self._welcome(host_id, link)
            return True
        self._join(address, host_id, message, now_s)
        return True

    def _is_of_our_history(self, address: bytes, message: wire.Hello) -> bool:
        """Whether its agent has followed nothing but what this journal knows. If not, the controller tells it
        so first."""
        host_id = message.report.host_id
        where = self._histories.standing(message, self._seen.get(host_id, 0))
        if where == "superseded":
            self._say(address, wire.HostRefused(why=self._histories.refusal(message)))
        elif where == "restored" and not self._core.stuck:
            if self._histories.restore(message):
                for other, link in self._links.items():
                    if link.welcomed:
                        self._core.run_after_commit(partial(self._welcome, other, link))
            self._core.run_after_commit(partial(self._tell_restored, address, message))
        return where == "follows"

    def _tell_restored(self, address: bytes, message: wire.Hello) -> None:
        self._say(address, self._welcome_for(message, restored=True))

    def _not_followed(self, host_id: domain.HostId, message: wire.NotFollowed) -> None:
        """The host does not follow our epoch: it has to greet again, which settles whose history counts."""
        self._core.counters["not_followed"] += 1
        if message.epoch == self._core.state.engine.ledger.epoch.token:
            self._drop(host_id)

    def _rival_proven(self, link: AgentConnection, message: wire.Hello, now_s: float) -> bool:
        """Whether the agent we know went on talking after another one first claimed its host."""
        if link.rival != message.session:
            link.rival, link.rival_since_s = message.session, now_s
        return link.heard_s - link.rival_since_s > RIVAL_PROOF_S

    def _is_gone(self, link: AgentConnection, now_s: float) -> bool:
        """Whether its connection is closed, or silent for so long that it counts as closed."""
        alive = self._say(link.address, wire.Renew(beat=0))
        return not alive or now_s - link.heard_s > RIVAL_SILENCE_S

    def _join(self, address: bytes, host_id: domain.HostId, message: wire.Hello, now_s: float) -> None:
        if self._core.stuck:
            return  # It greets again in a second.
        joined = ev.HostJoined(
            report=message.report,
            attempts=message.attempts,
            kept=message.kept,
            leaves_in_s=self._left_s(message.report),
        )
        self._core.happen(joined)
        self._drop(host_id)
        link = AgentConnection(address=address, session=message.session, hello=message, heard_s=now_s)
        self._links[host_id], self._addresses[address] = link, host_id
        self.watch.join(host_id, now_s)
        self._core.run_after_commit(partial(self._welcome, host_id, link))

    def _left_s(self, report: domain.HostReport) -> float | None:
        """Agents go by the wall clock, the engine by the journal's."""
        return max(0.0, report.leaves_unix_s - self._core.clock.wall()) if report.leaves_unix_s else None

    def _welcome(self, host_id: domain.HostId, link: AgentConnection) -> None:
        link.welcomed = True
        self._say(link.address, self._welcome_for(link.hello))
        self._send_due(self._core.clock.now_s(), host_id)
        self.streams.repeat(host_id)

    def _welcome_for(self, hello: wire.Hello, *, restored: bool = False) -> wire.Welcome:
        return wire.Welcome(
            session=hello.session,
            lease_s=self._lease_s,
            reports_seen=self._seen.get(hello.report.host_id, 0),
            journal=self._core.journal.name,
            epoch=self._core.state.engine.ledger.epoch,
            reached=self._core.durable_seq,
            restored=restored,
        )

    def _drop(self, host_id: domain.HostId) -> None:
        """Messages of the old connection are void; the engine repeats what is still wanted."""
        link = self._links.pop(host_id, None)
        self.fork_servers.pop(host_id, None)
        self.pulls.pop(host_id, None)
        if link is not None:
            del self._addresses[link.address]

    def _beat(self, link: AgentConnection, host_id: domain.HostId, message: wire.Heartbeat) -> None:
        if message.session != link.session or not link.welcomed:
            return
        now_s = self._core.clock.now_s()
        link.heard_s = now_s
        link.beat = max(link.beat, message.beat)
        self._say(link.address, wire.Renew(beat=message.beat, reached=self._core.durable_seq))
        self._take_readings(link, message.devices, now_s)
        if message.fork_servers is not None:
            self.fork_servers[host_id] = message.fork_servers
        self.pulls[host_id] = message.pulls
        if self._core.stuck:
            return
        back = self.watch.heard(host_id, now_s)
        if back is not None:
            self._core.happen(back)
        for news in message.progress:
            self._take_progress(host_id, news, now_s)

    def _take_readings(
        self, link: AgentConnection, readings: Sequence[domain.DeviceReading], now_s: float
    ) -> None:
        """Takes readings of this host's own devices only; a heartbeat that came late says how old the
        readings were when it left."""
        own = {device.device_id for device in link.hello.report.devices} if readings else set()
        for reading in readings:
            if reading.device_id in own:
                self.readings[reading.device_id] = DeviceRead(reading, now_s - reading.age_s)

    def _take_progress(self, host_id: domain.HostId, news: wire.AttemptProgress, now_s: float) -> None:
        engine = self._core.state.engine
        job = engine.jobs.get(news.job_id)
        if job is None or job.attempt.number != news.attempt or job.phase not in domain.ON_DEVICES:
            return
        if news.idle_for is not None and host_id in job.attempt.hosts_left:
            self._take_idle(job, host_id, news.idle_for, now_s)
        if first_host(job) != host_id:
            return  # The gang's first host speaks for it.
        self.telemetry[news.job_id] = news
        event = self._progress.take(
            news, job.spec.iterations, engine.partners(news.job_id), now_s, job.spec.budget_s
        )
        if event is not None:
            self._core.happen(event)

    def _take_idle(
        self, job: domain.Job, host_id: domain.HostId, reading: wire.IdleReading, now_s: float
    ) -> None:
        event = self._idle.take(job, host_id, reading, now_s)
        if event is None:
            return
        self._core.happen(event)
        first, text = first_host(job), reducers.idle_words(event, now_s)
        if first is not None and text:
            told = wire.TellJob(job_id=event.job_id, attempt=event.attempt, text=text)
            self._core.run_after_commit(partial(self._tell, first, told))

    def _tell(self, host_id: domain.HostId, told: wire.TellJob) -> None:
        self.say(host_id, told)

    def _report(self, link: AgentConnection, host_id: domain.HostId, message: wire.Report) -> bool:
        if message.event.host_id != host_id:
            return False
        seen = self._seen.get(host_id, 0)
        if self._core.stuck or not link.welcomed:
            return True  # The agent sends it again.
        if message.sequence > seen + 1 and not self._gap_is_final(link, message.sequence):
            return True
        if message.sequence > seen:
            if self._histories.is_meant(message):
                self._core.happen(self._aged(message.event))
            else:
                self._core.counters["reports_of_lost_history"] += 1
            self._seen[host_id] = seen = message.sequence
            self._core.journal.keep_report(host_id, seen)
        self._core.run_after_commit(partial(self._confirm, link.address, seen))
        return True

    def _aged(self, event: ev.FromAttempt) -> ev.FromAttempt:
        """An end, with how long ago it was: the controller may have been away meanwhile."""
        if not isinstance(event, ev.AttemptEnded) or event.ended_unix_s is None:
            return event
        ago_s = max(0.0, self._core.clock.wall() - event.ended_unix_s)
        return msgspec.structs.replace(event, ago_s=ago_s)

    def _confirm(self, address: bytes, sequence: int) -> None:
        self._say(address, wire.ReportAck(sequence=sequence))

    def _gap_is_final(self, link: AgentConnection, sequence: int) -> bool:
        """Reports come in order; a hole that stays is a report that its agent has lost for good."""
        now_s = self._core.clock.now_s()
        if link.gap_at == 0 or sequence < link.gap_at:
            link.gap_at, link.gap_since_s = sequence, now_s
        if sequence != link.gap_at or now_s - link.gap_since_s < GAP_S:
            return False
        link.gap_at = 0
        self._core.counters["report_gaps"] += 1
        return True

    def _relay(self, host_id: domain.HostId, message: wire.GangRelay) -> bool:
        """Between hosts of one gang only."""
        job = self._core.state.engine.jobs.get(message.job_id)
        if message.from_host != host_id or len(message.payload) > GANG_BYTES_MAX:
            return False
        if job is None or job.attempt.number != message.attempt or job.placement is None:
            return True
        devices = self._core.state.engine.ledger.devices
        hosts = {devices[d].host_id for d in job.placement.devices if d in devices}
        if {host_id, message.to_host} <= hosts:
            self.say(message.to_host, message)
        return True

    # --- Commands ----------------------------------------------------------------------------------

    def carry_out(self, decided: Decided) -> None:
        """Commands leave, now that the event that caused them is durable."""
        match decided.event:
            case ev.HostJoined(report=report):
                self._delivery.clear(report.host_id)
            case ev.HostLost(host_id=host_id):
                self._lose(host_id)
        for_agents = [each for each in decided.commands if not isinstance(each, domain.ComputeRequest)]
        if for_agents:
            self._deliver(for_agents)

    def _lose(self, host_id: domain.HostId) -> None:
        """Nothing more is sent; if its agent lives, it hears nothing and greets again."""
        self.watch.declare_lost(host_id)
        self._delivery.clear(host_id)
        self._drop(host_id)

    def _deliver(self, commands: Sequence[domain.AgentCommand]) -> None:
        now_s = self._core.clock.now_s()
        for command in commands:
            try:
                self._delivery.put(command, now_s)
            except delivery.Overflow:
                self._core.counters["overflows"] += 1
                self._drop(command.host_id)
        for host_id in dict.fromkeys(command.host_id for command in commands):
            self._send_due(now_s, host_id)

    def _send_due(self, now_s: float, host_id: domain.HostId) -> None:
        link = self._links.get(host_id)
        if link is None or not link.welcomed:
            return
        for command, again in list(self._delivery.due(now_s, host_id)):
            self._core.counters["resent"] += again
            secrets: dict[str, str] = {}
            if isinstance(command, domain.StartAttempt) and command.launch.secret_variables:
                try:
                    secrets = self._secrets.read(command.job_id, command.launch.secret_variables)
                except BadSecrets as problem:
                    if not again:
                        self._delivery.note_seen(host_id, command.command_id)
                        self._cannot_start(command, str(problem))
                    continue  # Sent before: it may run there with the secrets it had.
            # A start that is delayed until this beat's lease is nearly over must not be obeyed any more.
            order = wire.CommandDelivery(
                command=command,
                secrets=secrets,
                session=link.session,
                beat=link.beat,
                epoch=self._core.state.engine.ledger.epoch.token,
                reached=self._core.durable_seq,
            )
            self._say(link.address, order)

    def _cannot_start(self, command: domain.StartAttempt, why: str) -> None:
        """The host never heard of this attempt, so the controller reports its end itself: with the next tick,
        because commands leave while a group of events is being closed."""
        self._core.counters["bad_secrets"] += 1
        ended = ev.AttemptEnded(
            job_id=command.job_id,
            attempt=command.attempt,
            host_id=command.host_id,
            verdict=domain.ExitVerdict(outcome="user-failed", detail=why),
        )
        self._unstartable.append(ended)

    # --- Time --------------------------------------------------------------------------------------

    def tick(self) -> None:
        """About twice a second."""
        now_s = self._core.clock.now_s()
        for host_id in self._delivery.hosts():
            self._send_due(now_s, host_id)
        self.logs.tick(now_s)
        self.streams.tick(now_s)
        if not self._core.stuck:
            for event in self.watch.tick(now_s):
                self._core.happen(event)
            while self._unstartable:
                self._core.happen(self._unstartable.pop(0))
        self._forget_jobs()

    def _forget_jobs(self) -> None:
        jobs, devices = self._core.state.engine.jobs, self._core.state.engine.ledger.devices
        if len(self.readings) > len(devices):
            self.readings = {each: read for each, read in self.readings.items() if each in devices}
        if len(self.telemetry) > len(jobs):
            gone = [job_id for job_id in self.telemetry if job_id not in jobs]
            self._progress.forget(gone)
            self._idle.forget(gone)
            for job_id in gone:
                del self.telemetry[job_id]

    def connected_hosts(self) -> Iterable[domain.HostId]:
        return self._links.keys()

    @property
    def undelivered(self) -> int:
        return len(self._delivery)

    def say(self, host_id: domain.HostId, message: wire.ToAgent) -> bool:
        """Sends a message to a host; False if the host is not connected."""
        link = self._links.get(host_id)
        return link is not None and link.welcomed and self._say(link.address, message)

    def _say(self, address: bytes, message: wire.ToAgent) -> bool:
        return self._send_frame(address, encode(message))


def not_allowed(who: Identity, message: wire.Hello) -> str:
    """Why this key may not speak for this host; empty if it may."""
    host_id = message.report.host_id
    if who.role == "user":
        return (
            f"the key of {who.name} is a user's: an agent needs one made by `cotenant init --host {host_id}`"
        )
    if who.role == "agent" and who.host != host_id:
        return f"this key belongs to host {who.host}, not to {host_id}: set agent.host or use the right key"
    return ""


def same_but_number(one: wire.Hello, other: wire.Hello) -> bool:
    return msgspec.structs.replace(one, number=other.number) == other


def first_host(job: domain.Job) -> domain.HostId | None:
    """The host of rank 0: devices are named after their hosts."""
    return None if job.placement is None else domain.HostId(job.placement.devices[0].rpartition("/")[0])
