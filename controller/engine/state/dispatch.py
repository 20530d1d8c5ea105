"""Starts, stops and requeues jobs: what that changes in the ledger, sends and schedules.

Rule: only this module gives out devices. It only collects commands; a command leaves when the event that it
answers is durable. Nobody takes an alarm out of the heap; when it rings, the engine ignores it if it is out
of date (other attempt, other phase).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from math import inf
from typing import Literal

import msgspec

from cotenant.controller import domain
from cotenant.controller.engine.state.estimating import give_profile, known_profile
from cotenant.controller.engine.state.ledger import ASIDE, Ledger
from cotenant.controller.performance import UNBOUNDED, InterferenceModel, modelled_from


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine is told once; part of the configuration hash."""

    policy: domain.PolicySettings = domain.PolicySettings()
    limits: domain.LimitSettings = domain.LimitSettings()
    organisations: dict[str, domain.OrganisationSettings] = {}
    checkpoint_every_s: float = 600.0
    profile_s: float = 0.0
    """T_prof of the profile in place; 0 = none."""
    keep_ended: int = 10_000
    began_hour: int = 0
    """The hour, counted from 1970 in UTC, in which the journal's time began; 0 = unknown."""
    sharing: domain.SharingSettings = domain.NO_BOUNDS
    reservations: domain.ReservationSettings = domain.ReservationSettings()
    idle: domain.IdleSettings = domain.IdleSettings()
    """What is done about idle jobs that do not say so themselves."""
    lengths_by_command: bool = True
    """False: how long a job took says nothing of the next one with its command."""
    predictor: InterferenceModel | str | None = None
    """The whole model, so that a replay needs no file, or the name of another package's; None = the
    duty-cycle rule."""


AlarmKind = Literal[
    "deadline",
    "limit",
    "back-off",
    "age",
    "probation",
    "wake",
    "reunite",
    "promise",
    "leave",
    "judge",
    "turn",
    "booking",
    "budget",
]


class Alarm(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Something to look at again; stale ones (other attempt, other phase) are ignored when they ring."""

    at_s: float
    kind: str
    subject: str
    attempt: int


DEADLINE_SLACK_S = 15.0
"""The supervisor ends a job at its deadline by itself; the engine insists this much later."""

FINISH_S = 600.0
"""A job whose budget is used has so long to save, and for what its script does after its loop."""


class Dispatch:
    """The ledger, the alarms, and the commands of the present event."""

    def __init__(self, ledger: Ledger, config: EngineConfig) -> None:
        self.ledger = ledger
        self.config = config
        self.alarms: list[Alarm] = []
        self.out: list[domain.AnyCommand] = []
        self.takes_turns = False
        """Late jobs are marked by `lateness.py`; else they age by themselves."""
        self.vacated: list[domain.DeviceId] = []
        """Since this event began."""

    def launch(self, job: domain.Job, placement: domain.Placement) -> None:
        """Free devices (or devices with a co-tenant that stays) become this job's; its hosts are told."""
        ledger = self.ledger
        gang = ledger.holdings.gang(placement.devices)
        ledger.records.begin_attempt(job, placement, gang, ledger.epoch.token)
        ledger.holdings.occupy(job, gang)
        partners = ledger.holdings.partners(job) if ledger.holdings.shared_count else ()
        if partners:
            self.share(job, partners)
        self.out += start_commands(ledger, job, gang, self.config, self.command_id, bool(partners))
        self._watch_limit(job)

    def _watch_limit(self, job: domain.Job) -> float:
        """The time that the job has left."""
        left_s = job.limit_left_s(self.ledger.now_s)
        if left_s is None:
            return inf
        self.wake_at(self.ledger.now_s + left_s, "limit", job.job_id, job.attempt.number)
        return left_s

    def change_limit(self, job: domain.Job) -> None:
        """A job on devices has another time limit. Its hosts hear of it where they act before its end."""
        left_s = self._watch_limit(job)
        job.attempt.allowed_s = self.ledger.now_s - job.attempt.began_s + left_s
        for host_id in job.attempt.started_hosts:
            self.send_limit(job, host_id)

    def send_limit(self, job: domain.Job, host_id: domain.HostId) -> None:
        """Says a changed time limit to a host of the attempt. One that has not started it yet hears it then;
        one that joins anew, again."""
        is_told = job.spec.launch.slurm is not None and host_id in job.attempt.hosts_left
        if job.attempt.allowed_s is None or not is_told:
            return
        self.out.append(
            domain.LimitAttempt(
                command_id=self.command_id(),
                host_id=host_id,
                job_id=job.job_id,
                attempt=job.attempt.number,
                allowed_s=job.attempt.allowed_s,
                job_epoch=job.epoch,
            )
        )

    def send_start_again(self, job: domain.Job, host_id: domain.HostId) -> None:
        """Sends one host of the gang its start command again."""
        assert job.placement is not None
        gang, partners = self.ledger.holdings.gang(job.placement.devices), self.ledger.holdings.partners(job)
        starts = start_commands(self.ledger, job, gang, self.config, self.command_id, bool(partners))
        self.out += [start for start in starts if start.host_id == host_id]

    def launch_reserved(self) -> None:
        """Start reserved jobs whose victims have all left; only devices that were vacated can tell."""
        for job_id in self.ledger.holdings.claimants(self.vacated):
            job = self.ledger.jobs[job_id]
            if job.phase is not domain.RESERVED:
                continue  # It still leaves the devices it had.
            assert job.placement is not None
            here = [t for device_id in job.placement.devices for t in self.ledger.holdings.tenants(device_id)]
            # After a resize it waits for whoever is there.
            job.waits_for = tuple([job_id for job_id in job.waits_for or here if job_id in here])
            if not job.waits_for:
                self.launch(job, job.placement)  # On the devices it has a claim on.

    def unreserve(
        self,
        job: domain.Job,
        reason: domain.Reason,
        change: domain.Change = domain.Change.UNRESERVE,
        *,
        preempted: bool = False,
    ) -> None:
        self.ledger.holdings.unclaim(job)
        self.ledger.records.lose_reservation(job, change, reason, preempted=preempted)
        if change is domain.Change.UNRESERVE:
            self.enqueue(job)

    def drop_reservations(
        self,
        host_id: domain.HostId,
        reason: domain.Reason,
        devices: Collection[domain.DeviceId] | None = None,
    ) -> None:
        """Drops the reservations of jobs that wait for devices of the host; only for these devices, if any
        are named."""
        for job_id in self.ledger.holdings.claimants():
            job = self.ledger.jobs[job_id]
            placement = job.resize_to or job.placement
            gang = self.ledger.holdings.gang(placement.devices) if placement else ()
            here = [device_id for member in gang if member.host_id == host_id for device_id in member.devices]
            if here and (devices is None or not set(devices).isdisjoint(here)):
                if job.phase is domain.RESERVED:
                    self.unreserve(job, reason)
                else:
                    self.give_up_resize(job)

    def give_up_resize(self, job: domain.Job) -> None:
        """Drops the claim of a resize: when its processes are gone the job waits or is over."""
        self.ledger.holdings.unclaim(job)
        job.resize_to = None

    def stop(
        self,
        job: domain.Job,
        cause: domain.StopCause,
        reason: domain.Reason,
        *,
        save: bool,
        interrupt: bool = False,
    ) -> None:
        """Ask a job to leave its devices: with a save if it can and is past loading; `interrupt`: by SIGINT,
        with time to end by itself."""
        if job.phase is domain.STOPPING or (job.phase is domain.CHECKPOINTING and save):
            if cause == "cancelled":
                self.ledger.records.blame_stop(job, cause, reason)
                if job.attempt.sent_sigint and not interrupt:
                    job.attempt.sent_sigint = False
                    for host_id in job.attempt.hosts_left:
                        self.send_stop(job, host_id, save=False)
            return
        save = save and job.progress.resumable and job.phase is not domain.LOADING
        self.ledger.records.stop(job, cause, reason, save=save, interrupt=interrupt)
        if save:
            self.wake_at(
                self.ledger.now_s + self._deadline_s(job) + DEADLINE_SLACK_S,
                "deadline",
                job.job_id,
                job.attempt.number,
            )
        for host_id in job.attempt.hosts_left:
            self.send_stop(job, host_id, save)

    def send_stop(self, job: domain.Job, host_id: domain.HostId, save: bool) -> None:
        interrupt = job.attempt.sent_sigint and not save
        self.out.append(
            domain.StopAttempt(
                command_id=self.command_id(),
                host_id=host_id,
                job_id=job.spec.job_id,
                attempt=job.attempt.number,
                save=save,
                deadline_s=self._deadline_s(job) if save else domain.INTERRUPT_S if interrupt else 0.0,
                reason=job.attempt.stop_reason or job.reason,
                epoch=job.attempt.epoch,
                job_epoch=job.epoch,
                interrupt=interrupt,
                finish=save and job.attempt.stop_cause == "budget",
            )
        )

    def _deadline_s(self, job: domain.Job) -> float:
        deadline_s = self.config.policy.stop_deadline_s
        return max(deadline_s, FINISH_S) if job.attempt.stop_cause == "budget" else deadline_s

    def fence(self, host_id: domain.HostId, job: domain.Job) -> None:
        """Ask about an attempt that its host does not mention: if it never started there, it never will."""
        self.out.append(
            domain.StopAttempt(
                command_id=self.command_id(),
                host_id=host_id,
                job_id=job.job_id,
                attempt=job.attempt.number,
                save=False,
                deadline_s=0.0,
                reason=domain.because("fenced", host_id),
                epoch=job.attempt.epoch,
                job_epoch=job.epoch,
            )
        )

    def hold_back(self, job: domain.Job) -> bool:
        """A queued job that must not have devices yet is blocked until it may."""
        why = self.ledger.must_wait(job) if job.phase is domain.Phase.QUEUED else None
        if why is not None:
            self._block(job, why)
        return why is not None

    def _block(self, job: domain.Job, why: domain.Reason) -> None:
        self.ledger.phases.change(job, domain.Change.BLOCK, why)
        if self.ledger.now_s < self.ledger.hold_until_s:
            self.wake_at(self.ledger.hold_until_s, "back-off", job.job_id, job.attempt.number)
        elif why.code == "begins-later":
            assert job.spec.begin_s is not None
            self.wake_at(job.spec.begin_s, "back-off", job.job_id, job.attempt.number)

    def enqueue(self, job: domain.Job) -> None:
        """A job has joined the queue: it ages from now on, if it may already have devices."""
        why = self.ledger.must_wait(job)
        if why is not None:
            self._block(job, why)
        else:
            self.start_ageing(job)

    def fill_array(self, job: domain.Job) -> None:
        """A task of an array with a limit may have left a place to another."""
        task = self.ledger.next_of_array(job) if job.phase in ASIDE else None
        if task is not None:
            self.ledger.phases.change(task, domain.Change.UNBLOCK, self.submission_reason(task))
            self.queue_or_block(task)

    def share(self, job: domain.Job, partners: tuple[domain.JobId, ...]) -> None:
        """A job has come to devices that others hold: everybody concerned has a new pace."""
        ledger = self.ledger
        for other_id in partners:
            ledger.records.share(job, ledger.jobs[other_id])
        for one in (job, *(ledger.jobs[p] for p in partners)):
            self.repace(one)

    def repace(self, job: domain.Job) -> None:
        if job.phase in domain.ON_DEVICES:
            self.ledger.records.repace(job, self.ledger.expected_slowdown(job))

    def queue_or_block(self, job: domain.Job) -> bool:
        """A queued job with an open dependency is blocked; with a failed one it is cancelled: False."""
        waits = None
        for dependency in job.spec.after:
            other = self.ledger.jobs.get(dependency.job_id)
            if other is None or other.phase is domain.Phase.DONE:
                continue
            if other.phase in domain.ENDED:
                if dependency.need == "ok":
                    reason = domain.because("after-failed", other.job_id, other.phase)
                    self.ledger.phases.change(job, domain.Change.CANCEL, reason)
                    return False
                continue
            self.ledger.waiting_on.setdefault(other.job_id, set()).add(job.job_id)
            waits = waits or (other.job_id, " well" if dependency.need == "ok" else "")
        if waits is not None:
            self.ledger.phases.change(job, domain.Change.BLOCK, domain.because("after-job", *waits))
        else:
            self.enqueue(job)
            # Its like may have been profiled since it came.
            if (
                job.measured.profile is None
                and job.attempt.number == 0
                and job.spec.after
                and job.phase is domain.Phase.QUEUED
            ):
                profile = known_profile(self.ledger, job.spec)
                if profile is not None:
                    give_profile(self.ledger, job, profile)
        return True

    def start_ageing(self, job: domain.Job) -> None:
        ageing_s, now_s = self.config.policy.ageing_s, self.ledger.now_s
        if ageing_s > 0 and not job.aged and not self.takes_turns:
            due_s = max(now_s, now_s + ageing_s - job.spent.queued_s - (now_s - job.phase_since_s))
            self.wake_at(due_s, "age", job.job_id, job.attempt.number)

    def current(self, job_id: domain.JobId, attempt: domain.AttemptNo) -> domain.Job | None:
        """The job, if this is its attempt on devices; stale messages change nothing."""
        if job_id not in self.ledger.jobs:
            return None
        job = self.ledger.jobs[job_id]
        return job if job.attempt.number == attempt and job.phase in domain.ON_DEVICES else None

    def wake_at(self, at_s: float, kind: AlarmKind, subject: str, attempt: int) -> None:
        heapq.heappush(self.alarms, Alarm(at_s, kind, subject, attempt))

    def command_id(self) -> domain.CommandId:
        command_id = self.ledger.next_command
        self.ledger.next_command += 1
        return domain.CommandId(command_id)

    def submission_reason(self, job: domain.Job) -> domain.Reason:
        return domain.because("submitted", job.spec.user or "somebody")


def hosts_of(ledger: Ledger, job: domain.Job) -> tuple[domain.HostId, ...]:
    """The hosts of a placement in rank order, whether or not their devices are still offered."""
    assert job.placement is not None
    return tuple(member.host_id for member in ledger.holdings.gang(job.placement.devices))


def is_profiled(ledger: Ledger, job: domain.Job, shared: bool) -> bool:
    """Whether this attempt is profiled in place: the job's own first one, on devices it has to itself, unless
    a profile of its like is complete; and one in parts of which the needs are only modelled, or that has its
    profile from jobs with other numbers, as soon as it is alone.

    Of an elastic job the steps on each number of devices are learned as it trains. A job that is there for
    its profile is measured in whichever attempt; it has nothing else to do.
    """
    profile, is_only = job.measured.profile, job.spec.profiling == "only"
    if job.spec.profiling == "never" or job.spec.is_elastic:
        return False
    if job.spec.gpu_fraction < 1.0 and not is_only:
        return False  # What it takes on a part of a device says little of its like.
    if job.placement is not None and modelled_from(profile, job.placement.accumulation_steps):
        return True
    if profile is not None and profile.runs_alike:
        return not shared
    is_known = job.measured.profile_given and not ledger.profiles.is_unfinished(profile)
    return not shared and not is_known and (job.attempt.number == 1 or is_only)


def memory_cap_mib(job: domain.Job) -> int | None:
    """What a worker may use of its device, by the job's placement; None: all of it."""
    placement = job.placement
    limited = placement is not None and (placement.capped or placement.beside)
    return placement.memory_mib if placement is not None and limited else None


def is_need_unknown(job: domain.Job) -> bool:
    """Whether a job is limited to what its co-tenants leave, since nobody knows what it needs."""
    placement = job.placement
    return bool(placement and placement.beside and job.needed_mib(placement.accumulation_steps) is None)


def _host_limit_mib(ledger: Ledger, job: domain.Job, devices: int) -> int:
    """Main memory that a job may use on a host where it has so many devices; 0: no limit."""
    asked_mib, placement = job.spec.host_memory_mib, job.placement
    assert placement is not None
    if not is_need_unknown(job) or ledger.devices[placement.devices[0]].kind != "cpu":
        return asked_mib
    left_mib = devices * (placement.memory_mib or 0)
    return min(asked_mib, left_mib) if asked_mib else left_mib


def launch_of(job: domain.Job) -> domain.Launch:
    """How the next attempt is launched. A job that did not go on as it was left begins where that was
    proven, or at its beginning; it is not saved any more."""
    if not job.progress.went_otherwise:
        return job.spec.launch
    newest = job.newest_checkpoint
    return job.spec.launch.save_no_more("" if newest is None else f"a{newest.attempt}-s{newest.step}")


def start_commands(
    ledger: Ledger,
    job: domain.Job,
    gang: tuple[domain.GangMember, ...],
    config: EngineConfig,
    command_id: Callable[[], domain.CommandId],
    shared: bool,
) -> list[domain.StartAttempt]:
    """The commands that start the job's current attempt, one per host of its gang; `shared`: it has a
    co-tenant."""
    spec, placement = job.spec, job.placement
    assert placement is not None
    first = ledger.hosts[gang[0].host_id].report
    # Derived from the attempt, so that a repeated command names the same port.
    port = first.port_first + (job.number * 31 + job.attempt.number) % first.port_count
    newest = job.newest_checkpoint if job.progress.checkpoints else None
    is_capped = shared or placement.capped or placement.beside
    profile_s = config.profile_s if config.profile_s and is_profiled(ledger, job, shared) else 0.0
    limit_left_s = job.limit_left_s(ledger.now_s) if job.spec.launch.slurm else None
    bound = ledger.pairs.bound_of(job) if ledger.pairs.has_bounds else UNBOUNDED
    step_batch = (
        (spec.batch_size, spec.gpus_max)
        if spec.gpus_max > spec.gpus_min and spec.batch_size is not None
        else None
    )
    return [
        domain.StartAttempt(
            command_id=command_id(),
            host_id=member.host_id,
            job_id=spec.job_id,
            attempt=job.attempt.number,
            launch=launch_of(job),
            gang=gang,
            master_address=first.address if len(gang) > 1 else "127.0.0.1",
            master_port=port,
            sub_batch=placement.sub_batch,
            accumulation_steps=placement.accumulation_steps,
            memory_cap_mib=placement.memory_mib if is_capped else None,
            host_memory_mib=_host_limit_mib(ledger, job, len(member.devices)),
            cpus=spec.cpus,
            resume_step=newest.step if newest else 0,
            checkpoint_every_s=config.checkpoint_every_s,
            profile_s=profile_s,
            name=spec.name,
            user=spec.user,
            job_class=spec.job_class,
            epoch=job.attempt.epoch,
            job_epoch=job.epoch,
            time_left_s=limit_left_s,
            step_batch=step_batch,
            fraction=placement.fraction,
            share_bound=bound if bound.max != inf else None,
        )
        for member in gang
    ]
