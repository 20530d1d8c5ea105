"""The agent's decisions: what it does about everything that reaches it. Pure.

Rule: `handle(event, now_s) -> effects` reads no clock, file or socket, and what must survive a crash is
changed only through `Keep`. Every message may come twice, late, out of order or not at all. The parts:
`following.py` whose orders the agent obeys, `attempts.py` the attempts and their table, `tenants.py` those
that hold devices, `teardown.py` those that end, `registration.py` the registration and the lease, `memory.py`
what is durable, `pruning.py` what the agent deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cotenant.agent.daemon.core import edge, following, pruning, registration, reporting, teardown, tenants
from cotenant.agent.daemon.core.attempts import Attempts
from cotenant.agent.daemon.core.memory import AgentMemory
from cotenant.agent.daemon.core.notes import Confirmed, Forgotten, Obeyed, Renumbered
from cotenant.agent.daemon.core.remembered import Attempt, AttemptKey, DeviceQuarantine, JobKey
from cotenant.agent.ipc.channel import GangIn, TellNow
from cotenant.controller import domain, wire
from cotenant.controller.domain import events as ev

WAITING_STARTS_MAX: Final = 64


class AgentState:
    """Owns what the agent knows. `handle` is the only way to change it."""

    def __init__(self, config: edge.AgentConfig, memory: AgentMemory | None = None) -> None:
        self.config = config
        self.memory = memory if memory is not None else AgentMemory()
        self.registration = registration.Registration(config.settings.heartbeat_s, config.controllers)
        self.halted = ""
        self._out = reporting.Outbox(self.memory, self.registration)
        self._following = following.Following(self._out)
        self.tenants = tenants.Tenants(config, self._out, self.registration.lease)
        self._teardown = teardown.Teardown(self.tenants, self._out)
        self._attempts = Attempts(self.tenants, self._teardown, self._out, self.registration.lease)
        self.found_devices = config.report.devices
        """As the edge has them; quarantines are laid over them."""
        self._quarantine_told: dict[str, DeviceQuarantine] = {}
        self._waiting: dict[domain.CommandId, wire.CommandDelivery] = {}
        """Starts that came while the lease was too old for them."""
        self._unsent_from: int | None = self.memory.sequence + 1
        """Reports from here on were never sent: no controller has heard from us since our start."""
        self._born_s = 0.0
        self._age_at_birth_s = self.memory.age_s
        self._prune_at_s = 0.0
        self._readings: tuple[domain.DeviceReading, ...] = ()
        """Read since the last heartbeat, at `_read_s`."""
        self._read_s = 0.0

    # --- The entry point ---------------------------------------------------------------------------

    def handle(self, event: edge.AnyAgentEvent, now_s: float) -> list[edge.AnyAgentEffect]:
        """What to do about an event, in order."""
        if not self.halted:
            self._take(event, now_s)
            if self.memory.quarantined != self._quarantine_told:
                self._devices(self.found_devices, now_s)
        return self._out.drain()

    @property
    def next_alarm_s(self) -> float:
        """When to say `AgentTicked` next, if nothing else happens before."""
        if self.halted:
            return float("inf")
        registration_s = self.registration.next_alarm_s(reports_wait=bool(self.memory.pending))
        return min(registration_s, self._attempts.next_alarm_s, self._prune_at_s)

    def _take(self, event: edge.AnyAgentEvent, now_s: float) -> None:
        match event:
            case edge.ControllerMessageCame(message=message):
                self._hear(message, now_s)
            case edge.LinkChanged(endpoint=endpoint, is_open=is_open):
                self._go(self.registration.link_changed(endpoint, is_open, now_s), now_s)
            case edge.AgentTicked():
                self._tick(now_s, event)
            case edge.StatusCame(status=status):
                self._attempts.status(status, now_s)
            case edge.EndCame(result=result):
                self._teardown.end_attempt(result, now_s)
            case edge.SupervisorGone():
                self._attempts.supervisor_gone(event)
            case edge.TroubleNoticed(what=what):
                self._attempts.trouble((event.job_id, event.attempt), what)
            case edge.ShareExceeded(what=what, ends=ends):
                self._attempts.share_exceeded((event.job_id, event.attempt), what, now_s, ends=ends)
            case edge.ClientsCounted(processes=processes):
                self._attempts.clients_counted((event.job_id, event.attempt), processes)
            case edge.StartFailed():
                self._attempts.start_failed(event)
            case edge.Connected():
                self._attempts.handle_connection((event.job_id, event.attempt), now_s)
            case edge.Disconnected():
                self._attempts.handle_disconnection((event.job_id, event.attempt))
            case edge.GangMessageCame():
                self._gang_said(event)
            case edge.GpuFault():
                self._teardown.strike(event, now_s)
            case edge.DevicesChanged(devices=devices):
                self._devices(devices, now_s)
            case edge.MemoryFree() | edge.MemoryHeld():
                self._teardown.memory_known(event)
            case edge.IndicatorsRead(readings=readings):
                self._readings, self._read_s = self.tenants.kernels.take(readings, now_s), now_s
                self.tenants.look_at_idleness(now_s)
            case edge.UnusedGpus(attempts=attempts):
                self.tenants.unused = frozenset(attempts)
            case edge.EnergyRead():
                self.tenants.read_energy(event, now_s)
            case edge.Booted(found=found):
                self._boot(found, now_s)

    # --- What others ask ---------------------------------------------------------------------------

    @property
    def running(self) -> tuple[Attempt, ...]:
        """Attempts that hold their devices."""
        return self.tenants.attempts

    def is_there(self, key: AttemptKey) -> bool:
        """A supervisor of it runs, or is to be started."""
        return (live := self.tenants.live.get(key)) is not None and live.is_there

    def inventory(self) -> tuple[ev.AttemptSeen, ...]:
        """Returns what `Hello` lists: what runs, and what has ended without the controller knowing."""
        return tuple(
            ev.AttemptSeen(
                job_id=a.job_id,
                attempt=a.attempt,
                running=a.ended is None,
                epoch=a.epoch,
                job_epoch=a.job_epoch,
            )
            for a in self.memory.attempts.values()
            if a.settled_age_s is None
        )

    def checkpoint_folder(self, job: JobKey) -> str:
        """Returns the path of a job's checkpoints, made of the job's number and epoch, below the journal's
        name."""
        journal = f"/{self.memory.journal}" if self.memory.journal else ""
        return f"{self.config.checkpoint_root}{journal}/{'-'.join(filter(None, job))}"

    def age_s(self, now_s: float) -> float:
        """Seconds this agent has run in all its lives."""
        return self._age_at_birth_s + max(0.0, now_s - self._born_s)

    # --- The host ----------------------------------------------------------------------------------

    def _boot(self, found: tuple[edge.FoundAttempt, ...], now_s: float) -> None:
        self._born_s = now_s
        self._prune_at_s = now_s + pruning.PERIOD_S
        for filler in list(self.memory.gaps()):
            self._out.keep(filler)
        self._attempts.recover(found, now_s)
        self._devices(self.found_devices, now_s)
        self._greet_again(now_s)

    def _devices(self, devices: tuple[domain.Device, ...], now_s: float) -> None:
        self.found_devices = devices
        self._quarantine_told = dict(self.memory.quarantined)
        offered = self._teardown.quarantine.laid_over(devices)
        if offered == self.config.report.devices:
            return
        report = msgspec.structs.replace(self.config.report, devices=offered)
        self.config = self.tenants.config = msgspec.structs.replace(self.config, report=report)
        self._greet_again(now_s)

    def _gang_said(self, event: edge.GangMessageCame) -> None:
        if self.registration.welcomed:
            word = wire.GangRelay(
                job_id=event.job_id,
                attempt=event.attempt,
                to_host=event.to_host,
                from_host=self.config.report.host_id,
                payload=event.payload,
            )
            self._out.send(word)

    # --- From the controller -----------------------------------------------------------------------

    def _hear(self, message: wire.ToAgent, now_s: float) -> None:
        match message:
            case wire.CommandDelivery():
                self._obey(message, now_s)
            case wire.Renew(beat=beat, reached=reached):
                if self.registration.welcomed:
                    self.memory.reached = max(self.memory.reached, reached)
                if self.registration.renew(beat, now_s):
                    self._lease_news(now_s)
            case wire.ReportAck(sequence=sequence):
                self._confirm(sequence)
            case wire.Welcome():
                self._welcome(message, now_s)
            case wire.ReadLog():
                self._following.read_log(message)
            case wire.GangRelay():
                inward = GangIn(from_host=message.from_host, payload=message.payload)
                self.tenants.tell((message.job_id, message.attempt), inward)
            case wire.TellJob():
                self.tenants.tell((message.job_id, message.attempt), TellNow(text=message.text))
            case wire.HostRefused(why=why):
                self._halt(f"the controller refused this agent: {why}")
            case wire.NotLeading(leader=leader):
                self._go(self.registration.does_not_lead(leader, now_s), now_s)

    def _welcome(self, message: wire.Welcome, now_s: float) -> None:
        if message.session != self.config.session:
            return
        journal, epoch = self.memory.journal, self.memory.epoch
        if why := self._following.refuses_journal(message.journal, len(self.running)):
            self._halt(why)
            return
        answer = self._following.answer_welcome(message)
        if self.memory.epoch != epoch:
            self._waiting.clear()
        if answer == "greet-again" or journal not in (None, self.memory.journal):
            self._unsent_from = None  # Reports are counted anew.
        if answer == "greet-again":
            self._greet_again(now_s)
        if answer == "refuse":
            self._go(self.registration.leave_refused(now_s), now_s)
        if answer != "welcome":
            return
        if self._unsent_from is not None and message.reports_seen >= self._unsent_from:
            # The controller has heard reports that our spool lost: their numbers are taken.
            self._out.keep(Renumbered(first=self._unsent_from, to=message.reports_seen + 1))
        self._unsent_from = None
        self._confirm(message.reports_seen)
        self.registration.welcomed_now(message.lease_s, now_s)
        self._out.report_again(now_s)
        self._beat(now_s, edge.AgentTicked())
        self._lease_news(now_s)

    def _confirm(self, sequence: int) -> None:
        if sequence > self.memory.confirmed:
            self._out.keep(Confirmed(sequence=sequence))

    def _lease_news(self, now_s: float) -> None:
        self.tenants.pass_lease_on(now_s)
        waiting, self._waiting = self._waiting, {}
        for message in waiting.values():
            self._obey(message, now_s)

    def _halt(self, why: str) -> None:
        self.halted = why
        self._out.add(edge.Halt(why=why))

    # --- Commands ----------------------------------------------------------------------------------

    def _obey(self, message: wire.CommandDelivery, now_s: float) -> None:
        command = message.command
        if not self._following.obeys(message):
            return
        if command.command_id not in self.memory.commands:
            if isinstance(command, domain.StartAttempt):
                if self._attempts.is_taken(command):
                    self._following.is_taken(command)  # Not confirmed either: the inventory says why.
                    self._greet_again(now_s)
                    return
                if not self._is_time_for(command, message, now_s):
                    return  # Not confirmed: a controller that still wants it says it again.
            self._carry_out(command, message.secrets, now_s)
            self._out.keep(Obeyed(command_id=command.command_id, reached=message.reached))
        self._out.send(wire.CommandAck(command_id=command.command_id, epoch=message.epoch))

    def _is_time_for(self, command: domain.StartAttempt, message: wire.CommandDelivery, now_s: float) -> bool:
        """Whether to start now: not if it is too late (the job may run elsewhere by now) or too early for our
        lease; a start that is too early waits for the next renewal."""
        if self._attempts.is_fenced(command):
            return True
        lease = self.registration.lease
        if message.session and (
            message.session != self.config.session or not lease.still_meant(message.beat, now_s)
        ):
            return False
        if lease.may_start(now_s):
            return True
        if len(self._waiting) < WAITING_STARTS_MAX:
            self._waiting[command.command_id] = message
        return False

    def _carry_out(self, command: domain.AgentCommand, secrets: dict[str, str], now_s: float) -> None:
        match command:
            case domain.StartAttempt():
                folder = self.checkpoint_folder((command.job_id, command.job_epoch))
                self._attempts.start(command, secrets, folder, now_s)
            case domain.StopAttempt():
                self._attempts.stop(command, now_s)
            case domain.SaveAttempt():
                self._attempts.save(command)
            case domain.LimitAttempt():
                self._attempts.limit(command)
            case domain.TrustDevices():
                self._out.add(edge.Trust())
            case domain.ForgetJob(job_id=job_id, command_id=command_id, job_epoch=job_epoch):
                forgotten = Forgotten(
                    job_id=job_id, command_id=command_id, age_s=self.age_s(now_s), job_epoch=job_epoch
                )
                self._following.forgets(forgotten)

    # --- Time --------------------------------------------------------------------------------------

    def _tick(self, now_s: float, ticked: edge.AgentTicked) -> None:
        if self.registration.is_silent(now_s):
            self._go(self.registration.lost_sight(now_s), now_s)
        self._greet(now_s)
        if now_s >= self.registration.beat_at_s:
            self._beat(now_s, ticked)
        if now_s >= self.registration.reports_at_s:
            self._out.report_again(now_s)
        self._attempts.tick(now_s)
        if now_s >= self._prune_at_s:
            self._prune(now_s)

    def _go(self, effects: Sequence[edge.AnyAgentEffect], now_s: float) -> None:
        """Starts over with the controller that the registration has chosen."""
        if not self.registration.welcomed:
            self._waiting.clear()
        for effect in effects:
            self._out.add(effect)
        self._greet(now_s)

    def _greet_again(self, now_s: float) -> None:
        self.registration.greet_again(now_s)
        self._greet(now_s)

    def _greet(self, now_s: float) -> None:
        if self.registration.hello_due(now_s):
            hello = wire.Hello(
                session=self.config.session,
                report=self.config.report,
                attempts=self.inventory(),
                number=self.registration.next_hello(),
                followed=self._following.list_followed(),
                kept=self._following.list_kept(),
            )
            self._out.send(hello)

    def _beat(self, now_s: float, ticked: edge.AgentTicked) -> None:
        self.tenants.look_at_idleness(now_s)
        beat = wire.Heartbeat(
            beat=self.registration.next_beat(now_s),
            session=self.config.session,
            progress=self.tenants.progress(now_s),
            fork_servers=ticked.fork_servers,
            pulls=ticked.pulls,
            devices=tuple(
                msgspec.structs.replace(reading, age_s=reading.age_s + max(0.0, now_s - self._read_s))
                for reading in self._readings
            ),
        )
        self._readings = ()
        self._out.send(beat)

    def _prune(self, now_s: float) -> None:
        self._prune_at_s = now_s + pruning.PERIOD_S
        for step in pruning.due(self.memory, self.config, self.age_s(now_s), self.checkpoint_folder):
            if isinstance(step, edge.Keep):
                self._out.keep(step.note)
            else:
                self._out.add(step)
