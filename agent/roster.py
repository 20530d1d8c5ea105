"""The attempts on this host: what was asked of them, what they do, what was reported. Pure.

Rule: an attempt goes down this table and never up, and it holds its devices until it has ended:

    nothing   StartAttempt, may start        -> live      order written, supervisor started
    nothing   StartAttempt, may not          -> ended     infra-failed, with the objection
    nothing   StopAttempt                    -> ended     never-started: the fence for a late start
    live      its supervisor says the end    -> ended     as the supervisor decided
    live      its supervisor dies silently   -> cleaning  leftovers are ended, a result is written for it
    live      a stop is long overdue         -> cleaning  likewise, and the supervisor first
    live      a fault of its GPU             -> live      told to end; what it says then is judged by `faults`
    cleaning  the result is on disk          -> ended
    ...       on GPUs                        -> releasing  until their memory is back, or known to be held
    releasing a fault of its GPU             -> releasing  likewise: the verdict is made when it leaves
    releasing memory is back, or held        -> ended     in the second case those devices are suspect
    ended     controller confirms the report -> settled   folder and record go after `prune_after_s`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from cotenant.agent import reporting
from cotenant.agent.channel import CompanyNow, LeaseNow, SaveNow, StopNow, ToSupervisor
from cotenant.agent.edge import (
    Adopt,
    AgentConfig,
    AwaitMemory,
    EndLeftovers,
    Found,
    GpuFault,
    MemoryFree,
    MemoryHeld,
    StartFailed,
    StartSupervisor,
    SupervisorGone,
    Tell,
)
from cotenant.agent.gpus.doubts import Doubts
from cotenant.agent.gpus.fault_roll import FaultRoll
from cotenant.agent.lease import Lease
from cotenant.agent.live import LeaseTold, Live
from cotenant.agent.memory import Attempt, Kept, Key, StopAsked
from cotenant.agent.orders import objection, order_for, own_part, partitions_of, partitions_taken
from cotenant.agent.outbox import Outbox
from cotenant.agent.records import Result, Status
from cotenant.controller.domain.cluster import Device
from cotenant.controller.domain.commands import SaveAttempt, StartAttempt, StopAttempt
from cotenant.controller.domain.events import AttemptEnded, Outcome
from cotenant.controller.domain.ids import CommandId, DeviceId, HostId, JobId
from cotenant.controller.domain.reasons import render
from cotenant.controller.wire.agents import AttemptProgress

_NEVER: Final = float("inf")


class Roster:
    def __init__(self, config: AgentConfig, outbox: Outbox, lease: Lease) -> None:
        self.config = config
        self._out = outbox
        self._memory = outbox.memory
        self._lease = lease
        self._live: dict[Key, Live] = {}
        self.doubts = Doubts(outbox)
        self._faults = FaultRoll(self._memory)

    @property
    def running(self) -> tuple[Attempt, ...]:
        """Attempts that hold their devices."""
        return tuple(self._memory.attempts[key] for key in self._live)

    @property
    def host_id(self) -> HostId:
        return self.config.report.host_id

    # --- After a start of the agent: what is still here --------------------------------------------

    def recover(self, found: tuple[Found, ...], now_s: float) -> None:
        here = {(each.job_id, each.attempt): each for each in found}
        for key, attempt in list(self._memory.attempts.items()):
            if key not in here and attempt.ended is None:
                self._end(attempt, "infra-failed", "the agent stopped before it could start it")
        for key, each in here.items():
            self._recover(key, each)
        self.doubts.only(self._live)
        for each in found:  # Now that it is known who shares what.
            if each.result is not None:
                self.ended(each.result, now_s)

    def _recover(self, key: Key, found: Found) -> None:
        attempt = self._memory.attempts.get(key)
        if attempt is None:  # The spool has lost it.
            attempt = self._attempt_of(found)
            self._out.keep(Kept(attempt=attempt))
        if attempt.ended is not None:
            return
        self._live[key] = Live()
        if found.result is not None:
            return
        if found.alive:
            self._out.add(Adopt(job_id=key[0], attempt=key[1]))
        else:
            self._clean(key, "the host restarted" if found.rebooted else "its supervisor was killed")

    def _attempt_of(self, found: Found) -> Attempt:
        order = found.order
        parts = [member for member in order.gang if member.host_id == self.host_id] if order else []
        return Attempt(
            job_id=found.job_id,
            attempt=found.attempt,
            command_id=CommandId(0),
            devices=tuple(device for part in parts for device in part.devices),
            partitions=partitions_of(order) if order else (),
            uses_library=order is not None and order.resume_step > 0,
        )

    # --- Commands ----------------------------------------------------------------------------------

    def is_fenced(self, command: StartAttempt) -> bool:
        fence = self._memory.fences.get(command.job_id)
        return fence is not None and command.attempt <= fence.attempt

    def start(self, command: StartAttempt, secrets: dict[str, str], folder: str, now_s: float) -> None:
        if self.is_fenced(command):
            return
        attempt = Attempt(
            job_id=command.job_id,
            attempt=command.attempt,
            command_id=command.command_id,
            uses_library=command.resume_step > 0,
            profiled=command.profile_s > 0,
        )
        why = objection(command, self.config, self.running) or self._too_old(command)
        if why:
            self._end(msgspec.structs.replace(attempt, has_folder=False), "infra-failed", why)
            return
        part = own_part(command, self.host_id)
        assert part is not None, f"{command.job_id}: no part for {self.host_id}"
        seen = self._processes_seen(command.job_id)
        left_s = self._lease.left_s(now_s)
        taken = partitions_taken(self.running)
        order = order_for(
            command, secrets, self.config, folder, left_s, cuda_processes=seen, partitions_taken=taken
        )
        record = msgspec.structs.replace(attempt, devices=part.devices, partitions=partitions_of(order))
        self._out.keep(Kept(attempt=record))
        self._live[attempt.key] = Live()
        self._tell_company()  # Before the newcomer's first breath: what is measured from now on is shared.
        self._out.add(StartSupervisor(order=order))

    def _too_old(self, command: StartAttempt) -> str:
        if command.job_id in self._memory.fences or command.command_id > self._memory.stale_below:
            return ""
        return f"the start came after {self.host_id} had forgotten the job"

    def stop(self, command: StopAttempt, now_s: float) -> None:
        key = (command.job_id, command.attempt)
        attempt = self._memory.attempts.get(key)
        live = self._live.get(key)
        if attempt is None:
            fence = Attempt(
                job_id=command.job_id,
                attempt=command.attempt,
                command_id=command.command_id,
                has_folder=False,
            )
            self._end(fence, "never-started", "stopped before it started here")
        elif attempt.ended is not None:
            if attempt.settled_age_s is not None:  # It was confirmed once; whoever asks has lost that.
                self._out.report(attempt.ended, msgspec.structs.replace(attempt, settled_age_s=None))
        elif live is not None and live.is_there and not _covers(attempt.stop, command):
            stop = StopAsked(save=command.save, deadline_s=command.deadline_s, reason=render(command.reason))
            self._out.keep(Kept(attempt=msgspec.structs.replace(attempt, stop=stop)))
            live.stop_asked_s = now_s
            self.tell(key, StopNow(save=stop.save, deadline_s=stop.deadline_s, reason=stop.reason))

    def save(self, command: SaveAttempt) -> None:
        key = (command.job_id, command.attempt)
        live = self._live.get(key)
        if live is None or not live.is_there:
            return
        if live.connected:
            self.tell(key, SaveNow())
        else:
            self._out.keep(Kept(attempt=msgspec.structs.replace(self._memory.attempts[key], save=True)))

    # --- From supervisors --------------------------------------------------------------------------

    def status(self, status: Status, now_s: float) -> None:
        key = (status.job_id, status.attempt)
        live = self._live.get(key)
        if live is None or not live.is_there:
            return
        live.status = status
        self.doubts.stepped(key, status.step)
        if status.started and live.started_s is None:
            live.started_s = now_s
        record = self._memory.attempts[key]
        told = reporting.from_status(record, status, self.host_id, self._device_type(record))
        for event, attempt in told:
            self._out.report(event, attempt)

    def trouble(self, key: Key, what: str) -> None:
        """Noticed on this host, not by its supervisor."""
        if key in self._live:
            for event, attempt in reporting.troubles(self._memory.attempts[key], (what,), self.host_id):
                self._out.report(event, attempt)
                self._out.say(f"{_name(key)}: {what}", bad=True)

    def clients_counted(self, key: Key, processes: int) -> None:
        """Its next attempt's memory limit, which holds for each process, is divided among so many."""
        if key in self._live:
            attempt = self._memory.attempts[key]
            self._out.keep(Kept(attempt=msgspec.structs.replace(attempt, cuda_processes=processes)))
            self._out.say(f"{_name(key)}: {processes} processes of a worker use its GPU")

    def _processes_seen(self, job_id: JobId) -> int:
        attempts = self._memory.attempts.values()
        return max((each.cuda_processes for each in attempts if each.job_id == job_id), default=1)

    def ended(self, result: Result, now_s: float) -> None:
        key = (result.job_id, result.attempt)
        live = self._live.get(key)
        if live is None or live.releasing is not None:
            return
        spread = self._faults.spread(key, result, self.config.report, list(self._live))
        if spread is not None:
            self.faulted(spread, now_s, gone=key)
        self._faults.ended(key, result, now_s)
        self._over(self._memory.attempts[key], result, now_s)

    def start_failed(self, failed: StartFailed) -> None:
        key = (failed.job_id, failed.attempt)
        if key in self._live:
            self._end(self._memory.attempts[key], "infra-failed", failed.why, failed.workdir_missing)

    # --- Faults of GPUs ----------------------------------------------------------------------------

    def faulted(self, fault: GpuFault, now_s: float, *, gone: Key | None = None) -> None:
        """Every attempt on the devices learns its role; unless the fault is contained it is told to end.
        `gone`: of this one no process is left."""
        for record in list(self._faults.strike(fault, self.config.report, list(self._live), now_s)):
            key, live = record.key, self._live[record.key]
            is_told = record.stop == self._memory.attempts[key].stop
            self._out.keep(Kept(attempt=record))
            self._out.say(f"{_name(key)}: {fault.why}: told to end", bad=True)
            if key != gone and live.is_there and not is_told and record.stop is not None:
                live.stop_asked_s = now_s
                self.tell(key, StopNow(save=False, deadline_s=0.0, reason=record.stop.reason))

    def supervisor_gone(self, gone: SupervisorGone) -> None:
        key = (gone.job_id, gone.attempt)
        if (live := self._live.get(key)) and live.is_there:
            self._clean(key, gone.why)

    def connected(self, key: Key, now_s: float) -> None:
        """A fresh connection: what was asked before may not have arrived."""
        live = self._live.get(key)
        if live is None or not live.is_there:
            return
        live.connected, live.lease_told = True, None
        self._tell_lease(key, live, now_s)
        live.alone_told = True
        self._tell_company()
        attempt = self._memory.attempts[key]
        if attempt.stop is not None:
            if live.stop_asked_s is None:
                live.stop_asked_s = now_s
            left_s = max(0.0, live.stop_asked_s + attempt.stop.deadline_s - now_s)
            self.tell(key, StopNow(save=attempt.stop.save, deadline_s=left_s, reason=attempt.stop.reason))
        elif attempt.save:
            self.tell(key, SaveNow())
            self._out.keep(Kept(attempt=msgspec.structs.replace(attempt, save=False)))

    def disconnected(self, key: Key) -> None:
        if live := self._live.get(key):
            live.connected = False

    def tell(self, key: Key, message: ToSupervisor) -> None:
        """To the attempt's supervisor, if we are connected; what matters is said again on connecting."""
        live = self._live.get(key)
        if live is not None and live.connected:
            self._out.add(Tell(job_id=key[0], attempt=key[1], message=message))

    # --- Ends --------------------------------------------------------------------------------------

    def _over(self, attempt: Attempt, result: Result, now_s: float) -> None:
        """No process of it is left. On GPUs that is not enough: what it held there has to be back, and what
        they did to it has to be known."""
        live = self._live[attempt.key]
        live.releasing, live.ended_s, live.connected = result, now_s, False
        gpus = self._gpus_of(attempt)
        if not gpus:
            self._judge(attempt.key)
            return
        if result.unclean:
            self._doubt(attempt, gpus)
        failed = result.outcome in ("user-failed", "infra-failed")
        self._out.add(
            AwaitMemory(job_id=attempt.job_id, attempt=attempt.attempt, devices=gpus, failed=failed)
        )

    def memory_known(self, answer: MemoryFree | MemoryHeld) -> None:
        """The devices are free, or marked as what they are, and all faults until now were told."""
        key = (answer.job_id, answer.attempt)
        live = self._live.get(key)
        if live is None or live.releasing is None:
            return
        if isinstance(answer, MemoryHeld):
            for uuid, who in sorted(answer.holders.items()):
                self._out.say(
                    f"{_name(key)}: {uuid}: {who}; the device is not offered until it is free", bad=True
                )
        self._judge(key)

    def _judge(self, key: Key) -> None:
        """The verdict on an end, in the light of every fault that was told by now."""
        live = self._live[key]
        assert live.releasing is not None, f"{_name(key)} has not ended"
        self._tell_end(self._memory.attempts[key], self._faults.judged(key, live.releasing, live.ended_s))

    def _doubt(self, attempt: Attempt, gpus: tuple[Device, ...]) -> None:
        """Its co-clients have to show that the kill did them no harm."""
        for gpu in gpus:
            steps = {
                key: live.status.step
                for key, live in self._live.items()
                if key != attempt.key
                and live.is_there
                and gpu.device_id in self._memory.attempts[key].devices
                and live.status is not None
                and live.status.first_step is not None
            }
            self.doubts.raised(gpu.local, attempt.job_id, steps)

    def _gpus_of(self, attempt: Attempt) -> tuple[Device, ...]:
        """Those of its GPUs that can be asked."""
        return tuple(
            device
            for device in self.config.report.devices
            if device.device_id in attempt.devices and device.kind == "cuda" and device.state != "lost"
        )

    def _tell_end(self, attempt: Attempt, result: Result) -> None:
        self._live.pop(attempt.key, None)
        self.doubts.gone(attempt.key)
        self._tell_company()
        told = reporting.from_result(attempt, result, self.host_id, self._device_type(attempt))
        for event, record in told:
            self._out.report(event, record)
        self._out.say(f"{_name(attempt.key)}: {result.outcome}{': ' if result.detail else ''}{result.detail}")

    def _end(self, attempt: Attempt, outcome: Outcome, detail: str, workdir_missing: bool = False) -> None:
        """The end of an attempt that has no supervisor and no result file."""
        self._live.pop(attempt.key, None)
        self._tell_company()
        ended = AttemptEnded(
            job_id=attempt.job_id,
            attempt=attempt.attempt,
            host_id=self.host_id,
            outcome=outcome,
            detail=detail,
            workdir_missing=workdir_missing,
        )
        self._out.report(ended, reporting.with_end(attempt, ended))
        self._out.say(f"{_name(attempt.key)}: {outcome}: {detail}")

    def _clean(self, key: Key, why: str) -> None:
        """Nobody watches its processes any more: end them, and write the result that is missing."""
        live = self._live[key]
        live.cleaning, live.connected = True, False
        result = Result(
            job_id=key[0],
            attempt=key[1],
            outcome="infra-failed",
            exit_code=None,
            detail=why,
            step=live.status.step if live.status is not None else 0,
        )
        self._out.say(f"{_name(key)}: {why}; ending what is left of it", bad=True)
        self._out.add(EndLeftovers(result=result))

    # --- Company -----------------------------------------------------------------------------------

    def _tell_company(self) -> None:
        """Each supervisor knows whether its job has its devices to itself: what is measured, and how long a
        silence means something, depends on it."""
        tenants: dict[str, int] = {}
        for key in self._live:
            for device_id in self._memory.attempts[key].devices:
                tenants[device_id] = tenants.get(device_id, 0) + 1
        for key, live in self._live.items():
            attempt = self._memory.attempts[key]
            alone = all(tenants[device_id] == 1 for device_id in attempt.devices)
            if live.connected and alone != live.alone_told:
                live.alone_told = alone
                self.tell(key, CompanyNow(alone=alone))

    def _device_type(self, attempt: Attempt) -> str:
        """Of the devices that it holds here; empty if they are not offered any more."""
        types = {d.type for d in self.config.report.devices if d.device_id in attempt.devices}
        return types.pop() if len(types) == 1 else ""

    # --- Leases ------------------------------------------------------------------------------------

    def pass_lease_on(self, now_s: float) -> None:
        for key, live in self._live.items():
            self._tell_lease(key, live, now_s)

    def _tell_lease(self, key: Key, live: Live, now_s: float) -> None:
        if not self._lease.is_counting or not live.connected:
            return
        left_s, full_s = self._lease.left_s(now_s), self._lease.full_s
        if live.is_lease_news(left_s, full_s, now_s):
            live.lease_told = LeaseTold(at_s=now_s, left_s=left_s)
            self.tell(key, LeaseNow(left_s=left_s, full_s=full_s))

    # --- Time --------------------------------------------------------------------------------------

    @property
    def next_alarm_s(self) -> float:
        return min((min(q, o) for _, _, q, o in self._deadlines()), default=_NEVER)

    def tick(self, now_s: float) -> None:
        for key, attempt, quiet_until_s, overdue_s in list(self._deadlines()):
            if now_s >= quiet_until_s:
                self._out.report(*reporting.first_step(attempt, 0, self.host_id))
            if now_s >= overdue_s:
                self._clean(key, "its supervisor did not obey a stop request and was ended")

    def _deadlines(self) -> Iterator[tuple[Key, Attempt, float, float]]:
        for key, live in self._live.items():
            attempt = self._memory.attempts[key]
            quiet_until_s = live.quiet_until_s(attempt, self.config.quiet_start_s)
            yield key, attempt, quiet_until_s, live.overdue_s(attempt)

    def progress(self) -> tuple[AttemptProgress, ...]:
        statuses = (live.status for live in self._live.values() if live.is_there)
        return tuple(
            AttemptProgress(
                job_id=status.job_id,
                attempt=status.attempt,
                step=status.step,
                step_s=status.step_s,
                loss=status.loss,
                memory_mib=status.memory_mib,
                duty_cycle=status.duty_cycle,
            )
            for status in statuses
            if status is not None and status.started
        )

    def memory_seen_mib(self) -> dict[DeviceId, float]:
        """Per device: the peaks of its tenants' memory, as their supervisors said, added up."""
        found: dict[DeviceId, float] = {}
        for key, live in self._live.items():
            if live.status is not None and live.status.memory_mib is not None:
                for device_id in self._memory.attempts[key].devices:
                    found[device_id] = found.get(device_id, 0.0) + live.status.memory_mib
        return found


def _covers(asked: StopAsked | None, command: StopAttempt) -> bool:
    """A stop that was asked for already; one without a save overrides one with."""
    return asked is not None and (not asked.save or command.save)


def _name(key: Key) -> str:
    return f"job {key[0]} attempt {key[1]}"
