"""The attempts on this host: what was asked of them, what they do, what was reported. Pure. `teardown.py` has
the last part of the table; `tenants.py` has what the agent tells supervisors by itself.

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

from cotenant.agent.daemon.core import edge, notes, orders, pacing, registration, reporting
from cotenant.agent.daemon.core.remembered import Attempt, AttemptKey, StopAsked
from cotenant.agent.daemon.core.teardown import Teardown, name_of
from cotenant.agent.daemon.core.tenants import Live, Tenants
from cotenant.agent.ipc.channel import CoTenantsChanged, LimitNow, SaveNow, TellNow
from cotenant.agent.ipc.records import Status
from cotenant.controller import domain
from cotenant.controller.domain import events as ev

_NEVER: Final = float("inf")


class Attempts:
    def __init__(
        self, tenants: Tenants, teardown: Teardown, outbox: reporting.Outbox, lease: registration.Lease
    ) -> None:
        self._tenants = tenants
        self._teardown = teardown
        self._out = outbox
        self._memory = outbox.memory
        self._lease = lease
        self._live = tenants.live

    # --- After a start of the agent: what is still here --------------------------------------------

    def recover(self, found: tuple[edge.FoundAttempt, ...], now_s: float) -> None:
        here = {(each.job_id, each.attempt): each for each in found}
        for key, attempt in list(self._memory.attempts.items()):
            if key not in here and attempt.ended is None:
                self._teardown.end(attempt, "infra-failed", "the agent stopped before it could start it")
        for key, each in here.items():
            self._recover(key, each)
        self._teardown.quarantine.only(self._live)
        for each in found:  # Now the agent knows who shares what.
            if each.result is not None:
                self._teardown.end_attempt(each.result, now_s)

    def _recover(self, key: AttemptKey, found: edge.FoundAttempt) -> None:
        attempt = self._memory.attempts.get(key)
        if attempt is None:  # The spool has lost it.
            attempt = self._attempt_of(found)
            self._out.keep(notes.Kept(attempt=attempt))
        if attempt.ended is not None:
            return
        self._live[key] = Live()
        if found.result is not None:
            return
        if found.alive:
            self._out.add(edge.Adopt(job_id=key[0], attempt=key[1]))
        else:
            why = "the host restarted" if found.rebooted else "its supervisor was killed"
            self._teardown.clean(key, why, rebooted=found.rebooted)

    def _attempt_of(self, found: edge.FoundAttempt) -> Attempt:
        order = found.order
        parts = [member for member in order.gang if member.host_id == self._tenants.host_id] if order else []
        return Attempt(
            job_id=found.job_id,
            attempt=found.attempt,
            command_id=domain.CommandId(0),
            epoch=order.start.epoch if order else "",
            job_epoch=order.start.job_epoch if order else "",
            devices=tuple(device for part in parts for device in part.devices),
            mps=order is not None and bool(order.mps),
            uses_library=order is not None and order.start.resume_step > 0,
            memory_cap_mib=order.start.memory_cap_mib if order else None,
            fraction=order.start.fraction if order else 1.0,
            bound=order.start.share_bound if order else None,
            can_wait=order is not None and order.launch.can_wait,
            cores=order.ranks[0].cores if order and order.start.fraction < 1.0 else (),
        )

    # --- Commands ----------------------------------------------------------------------------------

    def is_fenced(self, command: domain.StartAttempt) -> bool:
        fence = self._memory.fences.get((command.job_id, command.job_epoch))
        return fence is not None and command.attempt <= fence.attempt

    def is_taken(self, command: domain.StartAttempt) -> bool:
        """Whether an attempt of another epoch uses its number here. The controller has lost that history, and
        has to choose another number."""
        here = self._memory.attempts.get((command.job_id, command.attempt))
        if here is not None and _differ((here.job_epoch, command.job_epoch), (here.epoch, command.epoch)):
            return True
        fence = self._memory.fences.get((command.job_id, command.job_epoch))
        fenced = fence is not None and command.attempt <= fence.attempt
        return fenced and fence is not None and _differ((fence.epoch, command.epoch))

    def start(self, command: domain.StartAttempt, secrets: dict[str, str], folder: str, now_s: float) -> None:
        if self.is_fenced(command):
            return
        attempt = Attempt(
            job_id=command.job_id,
            attempt=command.attempt,
            command_id=command.command_id,
            epoch=command.epoch,
            job_epoch=command.job_epoch,
            uses_library=command.resume_step > 0,
            memory_cap_mib=command.memory_cap_mib,
            fraction=command.fraction,
            bound=command.share_bound,
            can_wait=command.launch.can_wait,
            profiled=command.profile_s > 0,
        )
        why = orders.objection(command, self._tenants.config, self._tenants.attempts) or self._too_old(
            command
        )
        if why:
            self._teardown.end(msgspec.structs.replace(attempt, has_folder=False), "infra-failed", why)
            return
        part = orders.own_part(command, self._tenants.host_id)
        assert part is not None, f"{command.job_id}: no part for {self._tenants.host_id}"
        seen = self._processes_seen(command.job_id)
        left_s = self._lease.left_s(now_s)
        config = self._tenants.config
        cores = orders.cores_for(command, config, self._tenants.attempts)
        order = orders.order_for(command, secrets, config, folder, left_s, cuda_processes=seen, cores=cores)
        record = msgspec.structs.replace(attempt, devices=part.devices, mps=bool(order.mps), cores=cores)
        self._out.keep(notes.Kept(attempt=record))
        self._live[attempt.key] = Live(command.launch.argv)
        # Before the newcomer starts: from now on measurements are of a shared device.
        self._tenants.tell_co_tenants()
        self._out.add(edge.StartSupervisor(order=order))

    def _too_old(self, command: domain.StartAttempt) -> str:
        if (
            command.job_id,
            command.job_epoch,
        ) in self._memory.fences or command.command_id > self._memory.stale_below:
            return ""
        return f"the start came after {self._tenants.host_id} had forgotten the job"

    def stop(self, command: domain.StopAttempt, now_s: float) -> None:
        key = (command.job_id, command.attempt)
        attempt = self._memory.attempts.get(key)
        live = self._live.get(key)
        if attempt is not None and _differ(
            (attempt.job_epoch, command.job_epoch), (attempt.epoch, command.epoch)
        ):
            return  # It means another attempt of this number, which cannot be here while this one is.
        if attempt is None:
            fence = Attempt(
                job_id=command.job_id,
                attempt=command.attempt,
                command_id=command.command_id,
                epoch=command.epoch,
                job_epoch=command.job_epoch,
                has_folder=False,
            )
            self._teardown.end(fence, "never-started", "stopped before it started here")
        elif attempt.ended is not None:
            if attempt.settled_age_s is not None:  # The controller confirmed it once and has lost that since.
                self._out.report(attempt.ended, msgspec.structs.replace(attempt, settled_age_s=None))
        elif live is not None and live.is_there and not _covers(attempt.stop, command):
            stop = StopAsked(
                save=command.save,
                deadline_s=command.deadline_s,
                reason=domain.render(command.reason),
                interrupt=command.interrupt,
                finish=command.finish,
            )
            self._stop(live, attempt, stop, now_s)

    def _stop(self, live: Live, attempt: Attempt, stop: StopAsked, now_s: float) -> None:
        self._out.keep(notes.Kept(attempt=msgspec.structs.replace(attempt, stop=stop)))
        live.stop_asked_s = now_s
        self._tenants.tell(attempt.key, stop.order(stop.deadline_s))

    def save(self, command: domain.SaveAttempt) -> None:
        key = (command.job_id, command.attempt)
        live = self._live.get(key)
        if live is None or not live.is_there:
            return
        if live.connected:
            self._tenants.tell(key, SaveNow())
        else:
            self._out.keep(notes.Kept(attempt=msgspec.structs.replace(self._memory.attempts[key], save=True)))

    def limit(self, command: domain.LimitAttempt) -> None:
        """Kept before the supervisor hears it: a new connection hears it again."""
        key = (command.job_id, command.attempt)
        attempt, live = self._memory.attempts.get(key), self._live.get(key)
        if attempt is None or live is None or _differ((attempt.job_epoch, command.job_epoch)):
            return
        self._out.keep(notes.Kept(attempt=msgspec.structs.replace(attempt, allowed_s=command.allowed_s)))
        self._tenants.tell(key, LimitNow(allowed_s=command.allowed_s))

    # --- From supervisors --------------------------------------------------------------------------

    def status(self, status: Status, now_s: float) -> None:
        key = (status.job_id, status.attempt)
        live = self._live.get(key)
        if live is None or not live.is_there:
            return
        live.status = status
        self._teardown.quarantine.note_step(key, status.step)
        if status.started and live.started_s is None:
            live.started_s = now_s
        record = self._memory.attempts[key]
        told = reporting.from_status(record, status, self._tenants.host_id, self._tenants.device_type(record))
        for event, attempt in told:
            self._out.report(event, attempt)
        self._hold_to_bounds(now_s)

    def _hold_to_bounds(self, now_s: float) -> None:
        for (job_id, number), (partner, _), ratio in self._tenants.hold_to_bounds(now_s):
            lost = ev.BoundLost(
                job_id=job_id,
                attempt=number,
                host_id=self._tenants.host_id,
                partner=partner,
                ratio=round(ratio, 3),
            )
            self._out.report(lost, self._memory.attempts[job_id, number])

    def trouble(self, key: AttemptKey, what: str) -> None:
        """The agent noticed it, not the attempt's supervisor: that has the line in the job's log from us."""
        if key in self._live:
            for event, attempt in reporting.troubles(
                self._memory.attempts[key], (what,), self._tenants.host_id
            ):
                self._tenants.tell(key, TellNow(text=what))
                self._out.report(event, attempt)
                self._out.say(f"{name_of(key)}: {what}", bad=True)

    def share_exceeded(self, key: AttemptKey, what: str, now_s: float, *, ends: bool) -> None:
        live, attempt = self._live.get(key), self._memory.attempts.get(key)
        if live is None or attempt is None or not live.is_there:
            return
        if ends:
            self._stop(live, attempt, StopAsked(save=False, deadline_s=0.0, reason=what), now_s)
        else:
            self.trouble(key, what)

    def clients_counted(self, key: AttemptKey, processes: int) -> None:
        """The agent divides the next attempt's memory limit, which holds for each process, by this number."""
        if key in self._live:
            attempt = self._memory.attempts[key]
            self._out.keep(notes.Kept(attempt=msgspec.structs.replace(attempt, cuda_processes=processes)))
            self._out.say(f"{name_of(key)}: {processes} processes of a worker use its GPU")

    def _processes_seen(self, job_id: domain.JobId) -> int:
        attempts = self._memory.attempts.values()
        return max((each.cuda_processes for each in attempts if each.job_id == job_id), default=1)

    def start_failed(self, failed: edge.StartFailed) -> None:
        key = (failed.job_id, failed.attempt)
        if key in self._live:
            missing = failed.workdir_missing  # Its user chose the folder it runs in, not the host.
            self._teardown.end(
                self._memory.attempts[key],
                "user-failed" if failed.is_users else "infra-failed",
                failed.why,
                workdir_missing=missing,
                host_fault=failed.of_host and not (missing or failed.is_users),
            )

    def supervisor_gone(self, gone: edge.SupervisorGone) -> None:
        key = (gone.job_id, gone.attempt)
        if (live := self._live.get(key)) and live.is_there:
            self._teardown.clean(key, gone.why)

    def handle_connection(self, key: AttemptKey, now_s: float) -> None:
        """Repeats what matters on a fresh connection to a supervisor: what was asked before may not have
        arrived."""
        live = self._live.get(key)
        if live is None or not live.is_there:
            return
        live.connected, live.lease_told, live.pace_told = True, None, pacing.FREE
        self._tenants.tell_lease(key, live, now_s)
        live.co_tenants_told = CoTenantsChanged(alone=True)
        self._tenants.tell_co_tenants()
        attempt = self._memory.attempts[key]
        if attempt.allowed_s is not None:
            self._tenants.tell(key, LimitNow(allowed_s=attempt.allowed_s))
        if attempt.stop is not None:
            if live.stop_asked_s is None:
                live.stop_asked_s = now_s
            left_s = max(0.0, live.stop_asked_s + attempt.stop.deadline_s - now_s)
            self._tenants.tell(key, attempt.stop.order(left_s))
        elif attempt.save:
            self._tenants.tell(key, SaveNow())
            self._out.keep(notes.Kept(attempt=msgspec.structs.replace(attempt, save=False)))

    def handle_disconnection(self, key: AttemptKey) -> None:
        if live := self._live.get(key):
            live.connected = False

    # --- Time --------------------------------------------------------------------------------------

    @property
    def next_alarm_s(self) -> float:
        return min((min(q, o) for _, _, q, o in self._deadlines()), default=_NEVER)

    def tick(self, now_s: float) -> None:
        self._hold_to_bounds(now_s)
        for key, attempt, quiet_until_s, overdue_s in list(self._deadlines()):
            if now_s >= quiet_until_s:
                self._out.report(*reporting.assumed_step(attempt, self._tenants.host_id))
            if now_s >= overdue_s:
                self._teardown.clean(key, "its supervisor did not obey a stop request and was ended")

    def _deadlines(self) -> Iterator[tuple[AttemptKey, Attempt, float, float]]:
        for key, live in self._live.items():
            attempt = self._memory.attempts[key]
            quiet_until_s = live.quiet_until_s(attempt, self._tenants.config.settings.quiet_start_s)
            yield key, attempt, quiet_until_s, live.overdue_s(attempt)


def _differ(*pairs: tuple[str, str]) -> bool:
    """Whether the tokens of any pair are of two epochs, as far as both are known."""
    return any(one and other and one != other for one, other in pairs)


def _covers(asked: StopAsked | None, command: domain.StopAttempt) -> bool:
    """Whether a stop that was asked for already is at least as urgent: one without a save overrides one with,
    and both are overridden by one that leaves no time to end after SIGINT."""
    return asked is not None and (asked.save, asked.interrupt) <= (command.save, command.interrupt)
