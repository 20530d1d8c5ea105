"""The engine: takes an event and the time, changes the state, and says what must be done.

Rule: `handle` is the only way the cluster's state changes. It never reads a clock, a socket or a file;
live and simulated runs are two short loops around it. Devices are given out here and nowhere else,
and they are given back only when every process of the gang on them is known to be gone.

    handle = apply the event -> ask the policy -> commit what the ledger allows

Recovery calls `fold` with the recorded decision instead, so that no policy is asked twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from cotenant.controller import placing, starting
from cotenant.controller.domain import events as ev
from cotenant.controller.domain.actions import (
    NOTHING,
    AnyAction,
    Compute,
    Decision,
    Defer,
    Hold,
    Place,
    Preempt,
    Resize,
    Share,
    Wake,
)  # fmt: skip
from cotenant.controller.domain.cluster import SUSPECT_AFTER, Host, HostState
from cotenant.controller.domain.commands import (
    AnyCommand,
    ForgetJob,
    SaveAttempt,
    StopAttempt,
    Think,
)  # fmt: skip
from cotenant.controller.domain.ids import AttemptNo, CommandId, DeviceId, HostId, JobId, natural_key
from cotenant.controller.domain.job import (
    ENDED,
    LEAVING,
    ON_DEVICES,
    WAITING,
    Change,
    CheckpointRecord,
    Job,
    JobSpec,
    Phase,
    StopCause,
)  # fmt: skip
from cotenant.controller.domain.pairs import PairTable
from cotenant.controller.domain.reasons import Reason, because
from cotenant.controller.domain.settings import PolicySettings
from cotenant.controller.domain.view import View
from cotenant.controller.estimating import (
    estimate_arrival,
    estimate_overheads,
    learn_duration,
    learn_load,
    learn_pause,
    learn_progress,
    observe_sharing,
    remaining_from,
)  # fmt: skip
from cotenant.controller.ledger import Ledger, Saved
from cotenant.controller.policies.base import Parameters, Policy, why_impossible

MakePolicy = Callable[[str, Parameters], Policy]
AlarmKind = Literal["deadline", "limit", "back-off", "age", "probation", "wake"]

DEADLINE_SLACK_S = 15.0
"""The supervisor ends a job at its deadline by itself; the engine insists this much later."""
PROBATION_S = 300.0
"""A suspect host is tried again with one attempt after this."""
CHECKPOINTS_KNOWN = 4
FINISHED = because("finished")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine is told once; part of the configuration hash."""

    policy: PolicySettings = PolicySettings()
    checkpoint_every_s: float = 600.0
    keep_ended: int = 10_000


class Alarm(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Something to look at again; stale ones (other attempt, other phase) are ignored when they ring."""

    at_s: float
    kind: str
    subject: str
    attempt: int


class Snapshot(msgspec.Struct, kw_only=True):
    """Everything the engine is, as of one journal entry."""

    version: int
    now_s: float
    ledger: Saved
    alarms: list[Alarm]
    policy_name: str
    policy_parameters: Parameters
    policy_state: bytes


SNAPSHOT_VERSION = 1


class Engine:
    """Owns the cluster's state."""

    def __init__(
        self,
        make_policy: MakePolicy,
        config: EngineConfig | None = None,
        *,
        validate: bool = False,
        pairs: PairTable | None = None,
    ) -> None:
        """`pairs`: what was measured beforehand; recovery replaces it by what its snapshot holds."""
        self.config = config if config is not None else EngineConfig()
        self.decision: Decision = NOTHING
        self.refusals: list[Reason] = []
        """Why actions of the last decision were not carried out."""
        self.policy_name = self.config.policy.name
        self.policy_parameters: Parameters = {}
        self._make_policy = make_policy
        self._policy = make_policy(self.policy_name, {})
        self._ledger = Ledger(lambda job: self._policy.queue_key(job))
        if pairs is not None:
            self._ledger.pairs = pairs
        self._alarms: list[Alarm] = []
        self._out: list[AnyCommand] = []
        self._vacated: list[DeviceId] = []
        """By this event."""
        self._validate = validate

    # --- Reading -----------------------------------------------------------------------------------

    @property
    def jobs(self) -> Mapping[JobId, Job]:
        return self._ledger.jobs

    @property
    def hosts(self) -> Mapping[HostId, Host]:
        return self._ledger.hosts

    @property
    def now_s(self) -> float:
        return self._ledger.now_s

    @property
    def next_number(self) -> int:
        """The number the next submitted job will get."""
        return self._ledger.next_number

    def view(self) -> View:
        return self._ledger

    def tenants(self, device_id: DeviceId) -> tuple[JobId, ...]:
        return tuple(self._ledger.tenants(device_id))

    def partners(self, job_id: JobId) -> tuple[JobId, ...]:
        return self._ledger.partners(self.jobs[job_id])

    def next_alarm_s(self) -> float | None:
        """When `AlarmRang` is due, or None."""
        return self._alarms[0].at_s if self._alarms else None

    def explain(self, job_id: JobId, now_s: float) -> list[Reason]:
        """Why the job is where it is: for a queued one the policy's present answer, then what led here."""
        job = self.jobs[job_id]
        if job.phase is not Phase.QUEUED:
            return [job.reason]
        before_s, self._ledger.now_s = self._ledger.now_s, max(self._ledger.now_s, now_s)
        try:
            return [why_impossible(self._ledger, job) or self._policy.explain(self._ledger, job), job.reason]
        finally:
            self._ledger.now_s = before_s

    def never_fits(self, spec: JobSpec) -> Reason | None:
        """Why a job like this could never start on the hosts known now; None if it could, or if no
        host has joined yet."""
        if not self.hosts:
            return None
        probe = Job(spec=spec, number=0, submitted_s=self.now_s, reason=because("submitted", spec.user))
        reason = why_impossible(self._ledger, probe)
        permanent = ("never-fits", "no-such-type", "no-such-feature", "needs-memory")
        return reason if reason is not None and reason.code in permanent else None

    # --- The one way in ----------------------------------------------------------------------------

    def handle(self, event: ev.AnyEvent, now_s: float) -> list[AnyCommand]:
        """Apply the event, ask the policy, commit its answer (kept in `decision`)."""
        self._apply(event, now_s)
        decision = self._policy.decide(self._ledger, event)
        self._commit(decision)
        self._policy.observe(self._ledger, event, decision)
        return self._out

    def fold(self, event: ev.AnyEvent, decision: Decision, now_s: float) -> list[AnyCommand]:
        """What `handle` did when `decision` was the answer; asks no policy."""
        self._apply(event, now_s)
        if decision.policy_state is not None:
            self._policy.load(decision.policy_state)
        self._commit(decision)
        self._policy.observe(self._ledger, event, decision)
        return self._out

    def _apply(self, event: ev.AnyEvent, now_s: float) -> None:
        self._ledger.begin(now_s)
        self._out, self.refusals = [], []
        _HANDLERS[type(event)](self, event)

    def _commit(self, decision: Decision) -> None:
        self.decision = decision
        for action in decision.actions:
            refusal = self._carry_out(action)
            if refusal is not None:
                self.refusals.append(refusal)
        self._launch_reserved()
        while len(self._ledger.ended) > self.config.keep_ended:
            self._ledger.forget_job(next(iter(self._ledger.ended)))
        if self._validate:
            self._ledger.check()

    # --- Actions of the policy ---------------------------------------------------------------------

    def _carry_out(self, action: AnyAction) -> Reason | None:
        """Do it if the ledger allows; else the reason why not."""
        match action:
            case Place() | Share():
                return self._place(action)
            case Preempt():
                return self._preempt(action)
            case Hold():
                job = self._ledger.jobs.get(action.job_id)
                if job is not None and job.phase is Phase.QUEUED:
                    job.reason = action.reason
            case Defer():
                job = self._ledger.jobs.get(action.job_id)
                if job is None or job.phase is not Phase.QUEUED:
                    return because(
                        "refused-phase", f"to defer job {action.job_id}", job.phase if job else "gone"
                    )
                if not self.now_s <= action.until_s < float("inf"):
                    return because("refused-time", action.until_s)
                job.reason = action.reason
                self._alarm(action.until_s, "wake", "", 0)
            case Wake():
                if not self.now_s <= action.at_s < float("inf"):
                    return because("refused-time", action.at_s)
                self._alarm(action.at_s, "wake", "", 0)
            case Compute():
                self._out.append(
                    Think(
                        command_id=self._command_id(),
                        request_id=action.request_id,
                        kind=action.kind,
                        payload=action.payload,
                    )
                )
            case Resize():
                return because("refused-phase", f"to resize job {action.job_id}", "not elastic yet")
        return None

    def _place(self, action: Place | Share) -> Reason | None:
        ledger = self._ledger
        refusal = placing.check(ledger, action)
        if refusal is not None:
            return refusal
        job = ledger.jobs[action.job_id]
        job.placement = placing.placement(ledger, job, action)
        victims = [t for d in action.devices for t in ledger.tenants(d) if ledger.jobs[t].phase in LEAVING]
        if victims:
            job.waits_for = tuple(dict.fromkeys(victims))
            ledger.change(job, Change.RESERVE, because("waits-for-victims", ", ".join(job.waits_for)))
            ledger.holdings.claim(job, action.devices)
        else:
            self._launch(job)
        return None

    def _preempt(self, action: Preempt) -> Reason | None:
        job = self._ledger.jobs.get(action.job_id)
        if job is None or job.phase not in (Phase.LOADING, Phase.RUNNING, Phase.RESERVED):
            return because("refused-phase", f"to preempt job {action.job_id}", job.phase if job else "gone")
        if job.spec.job_class == "hp":
            return because("refused-class", job.job_id)
        if job.phase is Phase.RESERVED:
            job.aborted_preemptions += 1
            self._unreserve(job, action.reason)
            return None
        if not job.preemptible:
            return because("refused-resumable", job.job_id)
        self._stop(job, "preempted", action.reason, save=True)
        return None

    # --- Starting and stopping ---------------------------------------------------------------------

    def _launch(self, job: Job) -> None:
        """Free devices (or devices with a co-tenant that stays) become this job's; its hosts are told."""
        ledger, placement = self._ledger, job.placement
        assert placement is not None
        parts = ledger.holdings.parts(placement.devices)
        hosts = tuple(parts)
        job.attempt = AttemptNo(job.attempt + 1)
        job.waits_for, job.stop_cause, job.stop_reason, job.outcome = (), "", None, ""
        job.visited = tuple(dict.fromkeys((*job.visited, *hosts))) if job.visited else hosts
        job.started_hosts, job.exit_code, job.step_s = (), None, None
        job.start_step = job.step = job.durable_step
        job.hosts_left = hosts
        job.capable, job.known_to_resume = (), job.step > 0
        if job.first_start_s is None:
            job.first_start_s = ledger.now_s
        job.slowdown, job.remaining_at_s = ledger.stretch(job, placement.accumulation_steps), ledger.now_s
        ledger.change(job, Change.LAUNCH, placement.reason)
        ledger.holdings.occupy(job, parts)
        partners = ledger.partners(job)
        if partners:
            self._share(job, partners)
        self._send_start(job)
        if job.spec.time_limit_s is not None:
            left_s = job.spec.time_limit_s - job.load_s - job.run_s
            self._alarm(self.now_s + max(0.0, left_s), "limit", job.job_id, job.attempt)

    def _send_start(self, job: Job, only: HostId | None = None) -> None:
        every_s = self.config.checkpoint_every_s
        for command in starting.start_commands(self._ledger, job, every_s, self._command_id):
            if only in (None, command.host_id):
                self._out.append(command)

    def _launch_reserved(self) -> None:
        """Start reserved jobs whose victims have all left; only devices that were vacated can tell."""
        if not self._vacated:
            return
        vacated, self._vacated = self._vacated, []
        for job_id in self._ledger.holdings.claimants(vacated):
            job = self._ledger.jobs[job_id]
            job.waits_for = tuple(v for v in job.waits_for if self._still_on(v, job))
            if not job.waits_for:
                self._ledger.holdings.unclaim(job)
                self._launch(job)

    def _still_on(self, victim_id: JobId, job: Job) -> bool:
        victim = self._ledger.jobs.get(victim_id)
        if victim is None or not victim.hosts_left:
            return False
        assert job.placement is not None
        return any(victim_id in self._ledger.tenants(d) for d in job.placement.devices)

    def _unreserve(self, job: Job, reason: Reason, change: Change = Change.UNRESERVE) -> None:
        self._ledger.holdings.unclaim(job)
        job.placement, job.waits_for = None, ()
        self._ledger.change(job, change, reason)
        if change is Change.UNRESERVE:
            self._start_ageing(job)

    def _stop(self, job: Job, cause: StopCause, reason: Reason, *, save: bool) -> None:
        """Ask a job to leave its devices: with a save if it can and is past loading."""
        if job.phase is Phase.STOPPING or (job.phase is Phase.CHECKPOINTING and save):
            if cause == "cancelled":
                job.stop_cause, job.stop_reason = cause, reason
            return
        save = save and job.resumable
        job.stop_cause, job.stop_reason = cause, reason
        if job.phase is Phase.LOADING:
            if cause == "preempted":
                job.futile_preemptions += 1
                job.futile_s += self.now_s - job.phase_since_s
            save = False
        change = Change.SAVE_AND_STOP if save else Change.STOP
        self._ledger.change(job, change, reason)
        deadline_s = self.config.policy.stop_deadline_s
        if save:
            self._alarm(self.now_s + deadline_s + DEADLINE_SLACK_S, "deadline", job.job_id, job.attempt)
        for host_id in job.hosts_left:
            self._send_stop(job, host_id, save)

    def _send_stop(self, job: Job, host_id: HostId, save: bool) -> None:
        self._out.append(
            StopAttempt(
                command_id=self._command_id(),
                host_id=host_id,
                job_id=job.job_id,
                attempt=job.attempt,
                save=save,
                deadline_s=self.config.policy.stop_deadline_s if save else 0.0,
                reason=job.stop_reason or job.reason,
            )
        )

    def _fence(self, host_id: HostId, job_id: JobId, attempt: AttemptNo) -> None:
        """End an attempt that nobody should be running any more."""
        self._out.append(
            StopAttempt(
                command_id=self._command_id(),
                host_id=host_id,
                job_id=job_id,
                attempt=attempt,
                save=False,
                deadline_s=0.0,
                reason=because("fenced", host_id),
            )
        )

    def _share(self, job: Job, partners: tuple[JobId, ...]) -> None:
        """A job has come to devices that others hold: everybody concerned has a new pace."""
        ledger = self._ledger
        for other_id in partners:
            other = ledger.jobs[other_id]
            other.co_tenants = tuple(dict.fromkeys((*other.co_tenants, job.job_id)))
            job.co_tenants = tuple(dict.fromkeys((*job.co_tenants, other_id)))
        for one in (job, *(ledger.jobs[p] for p in partners)):
            self._repace(one)

    def _repace(self, job: Job) -> None:
        if job.phase not in ON_DEVICES:
            return

        def update(job: Job) -> None:
            job.remaining_s = job.remaining_now_s(self.now_s)
            job.remaining_at_s = self.now_s
            job.slowdown = self._ledger.expected_slowdown(job)

        self._ledger.rekey(job, update)

    # --- Events from users -------------------------------------------------------------------------

    def _on_arrived(self, event: ev.JobArrived) -> None:
        ledger, spec, now_s = self._ledger, event.spec, self._ledger.now_s
        if spec.job_id in ledger.jobs:
            return  # The same submission, journalled twice.
        number = ledger.next_number
        ledger.next_number += 1
        job = Job(
            spec=spec,
            number=number,
            submitted_s=now_s,
            phase_since_s=now_s,
            reason=because("submitted", spec.user or "somebody"),
            resumable=spec.resumable is True,
            profile=spec.profile,
        )
        job.remaining_s, job.estimate_source = estimate_arrival(ledger.estimates, spec)
        job.expected_load_s, job.expected_pause_s = estimate_overheads(ledger.estimates, spec)
        if job.profile is not None and (alone := job.profile.at(1)) is not None:
            job.solo_step_s = alone.step_s
        if spec.hold:
            job.phase = Phase.HELD
            job.reason = because("held-by", spec.user or "its owner")
        ledger.add_job(job)
        if not spec.hold and not self._queue_or_block(job):
            self._ended(job)

    def _queue_or_block(self, job: Job) -> bool:
        """A queued job with an open dependency is blocked; with a failed one it is cancelled: False."""
        if not job.spec.after:
            self._start_ageing(job)
            return True
        waits = None
        for dependency in job.spec.after:
            other = self._ledger.jobs.get(dependency.job_id)
            if other is None or other.phase is Phase.DONE:
                continue
            if other.phase in ENDED:
                if dependency.need == "ok":
                    reason = because("after-failed", other.job_id, other.phase)
                    self._ledger.change(job, Change.CANCEL, reason)
                    return False
                continue
            self._ledger.waiting_on.setdefault(other.job_id, set()).add(job.job_id)
            waits = waits or (other.job_id, " well" if dependency.need == "ok" else "")
        if waits is not None:
            self._ledger.change(job, Change.BLOCK, because("after-job", *waits))
        else:
            self._start_ageing(job)
        return True

    def _start_ageing(self, job: Job) -> None:
        if self.config.policy.ageing_s > 0 and not job.aged:
            due_s = self.now_s + max(0.0, self.config.policy.ageing_s - job.queued_s)
            self._alarm(due_s, "age", job.job_id, job.attempt)

    def _on_cancel(self, event: ev.CancelRequested) -> None:
        job = self._ledger.jobs.get(event.job_id)
        if job is None or job.phase in ENDED:
            return
        reason = because("cancelled-by", event.by)
        if job.phase is Phase.RESERVED:
            self._unreserve(job, reason, Change.CANCEL)
            self._ended(job)
        elif job.phase in WAITING:
            self._ledger.change(job, Change.CANCEL, reason)
            self._ended(job)
        else:
            self._stop(job, "cancelled", reason, save=False)

    def _on_hold(self, event: ev.HoldRequested) -> None:
        job = self._ledger.jobs.get(event.job_id)
        if job is None:
            return
        if job.phase is Phase.RESERVED:
            self._unreserve(job, because("held-by", event.by), Change.HOLD)
        elif job.phase in (Phase.QUEUED, Phase.BLOCKED):
            self._ledger.change(job, Change.HOLD, because("held-by", event.by))

    def _on_release(self, event: ev.ReleaseRequested) -> None:
        job = self._ledger.jobs.get(event.job_id)
        if job is None or job.phase is not Phase.HELD:
            return
        job.infra_failures = 0
        job.workdir_missing = ()
        self._ledger.change(job, Change.RELEASE, self._submitted(job))
        if not self._queue_or_block(job):
            self._ended(job)

    def _on_preempt(self, event: ev.PreemptRequested) -> None:
        job = self._ledger.jobs.get(event.job_id)
        if job is not None and job.phase in (Phase.RUNNING, Phase.LOADING) and job.resumable:
            self._stop(job, "user", because("preempted-by-user", event.by), save=True)

    def _on_checkpoint(self, event: ev.CheckpointRequested) -> None:
        job = self._ledger.jobs.get(event.job_id)
        if job is None or job.phase is not Phase.RUNNING or not job.resumable:
            return
        assert job.placement is not None
        first = self._ledger.holdings.host_of(job.placement.devices[0])
        self._out.append(
            SaveAttempt(command_id=self._command_id(), host_id=first, job_id=job.job_id, attempt=job.attempt)
        )

    def _on_policy(self, event: ev.PolicyChanged) -> None:
        self._policy = self._make_policy(event.name, event.parameters)
        self.policy_name, self.policy_parameters = event.name, event.parameters
        self._ledger.reorder_queues()

    # --- Events from hosts -------------------------------------------------------------------------

    def _on_joined(self, event: ev.HostJoined) -> None:
        """Register the host, then make both sides agree on which attempts run there."""
        ledger = self._ledger
        known = ledger.hosts.get(event.report.host_id)
        changed = known is not None and known.report != event.report
        host = ledger.put_host(event.report)
        host.silent = host.lost = False
        host.reason = self._host_reason(host)
        ledger.refresh_host(host)
        if changed:
            self._drop_reservations(host.host_id, because("host-changed", host.host_id))
        self._heard_again(host.host_id)
        running = {(a.job_id, a.attempt) for a in event.attempts if a.running}
        listed = {(a.job_id, a.attempt) for a in event.attempts}
        ours = {(j.job_id, j.attempt): j for j in ledger.holdings.on_host(host.host_id)}
        for job_id, attempt in sorted(running - ours.keys()):
            self._fence(host.host_id, job_id, attempt)
        for key, job in ours.items():
            if key not in listed and host.host_id not in job.started_hosts and job.phase is Phase.LOADING:
                self._send_start(job, only=host.host_id)
            elif key not in listed:
                self._fence(host.host_id, *key)
            elif job.phase in LEAVING:
                self._send_stop(job, host.host_id, job.phase is Phase.CHECKPOINTING)
        # It may never have heard that a job is over.
        for job_id in dict.fromkeys((*(seen.job_id for seen in event.attempts), *event.keeps)):
            kept = ledger.jobs.get(job_id)
            if kept is None or kept.phase in ENDED:
                self._forget(host.host_id, job_id)

    def _on_silent(self, event: ev.HostSilent) -> None:
        self._flag_host(event.host_id, silent=True)
        for job in self._ledger.holdings.on_host(event.host_id):
            job.reason = self._silence(job, event.host_id)
        self._drop_reservations(event.host_id, because("not-answering", event.host_id))

    def _on_back(self, event: ev.HostBack) -> None:
        self._flag_host(event.host_id, silent=False)
        self._heard_again(event.host_id)

    def _silence(self, job: Job, host_id: HostId) -> Reason:
        return because("host-silent-lease" if job.ends_with_lease else "host-silent", host_id)

    def _heard_again(self, host_id: HostId) -> None:
        """What was said of its jobs while it was silent is not true any more."""
        for job in self._ledger.holdings.on_host(host_id):
            if job.reason in (self._silence(job, host_id), because("host-silent", host_id)):
                assert job.placement is not None
                job.reason = job.stop_reason or job.placement.reason

    def _host_reason(self, host: Host) -> Reason | None:
        """Why it gets no new work, for as long as it is heard."""
        if host.drained_by:
            return because("drained", host.host_id)
        if host.state is HostState.SUSPECT:
            return because("suspect", host.host_id, host.failures_in_row)
        return None

    def _flag_host(self, host_id: HostId, *, silent: bool) -> None:
        host = self._ledger.hosts.get(host_id)
        if host is not None:
            host.silent = silent
            self._ledger.refresh_host(host)

    def _on_lost(self, event: ev.HostLost) -> None:
        """Its resumable jobs go on elsewhere; the others keep waiting unless an admin said so."""
        host = self._ledger.hosts.get(event.host_id)
        if host is None:
            return
        host.lost = True
        host.reason = because("host-lost", event.host_id, event.by)
        self._ledger.refresh_host(host)
        for job in self._ledger.holdings.on_host(event.host_id):
            if job.ends_with_lease or event.by != "lease":
                if not job.stop_cause:
                    job.stop_cause, job.stop_reason = "lost", host.reason
                self._left_host(job, event.host_id, "infra-failed", f"host {event.host_id} is lost")
            else:
                job.reason = because("host-silent", event.host_id)
        self._drop_reservations(event.host_id, host.reason)
        if event.by != "lease":
            self._give_up_checkpoints(host.checkpoint_domain)

    def _give_up_checkpoints(self, domain: str) -> None:
        """An admin said that a host will not come back; what only it could read is lost with it."""
        if any(host.checkpoint_domain == domain and not host.lost for host in self.hosts.values()):
            return

        def without(job: Job) -> None:
            job.checkpoints = tuple(c for c in job.checkpoints if c.domain != domain)
            if job.phase not in ON_DEVICES:
                job.step = job.durable_step
                job.remaining_s = remaining_from(self._ledger.estimates, job, job.step, self.now_s)

        for job in self.jobs.values():
            if job.phase not in ENDED and any(c.domain == domain for c in job.checkpoints):
                self._ledger.rekey(job, without)

    def _drop_reservations(self, host_id: HostId, reason: Reason) -> None:
        for job_id in self._ledger.holdings.claimants():
            job = self._ledger.jobs[job_id]
            if host_id in starting.hosts_of(self._ledger, job):
                self._unreserve(job, reason)

    def _on_drained(self, event: ev.HostDrained) -> None:
        host = self._ledger.hosts.get(event.host_id)
        if host is not None:
            host.drained_by, host.reason = event.by, because("drained", event.host_id)
            self._ledger.refresh_host(host)
            self._drop_reservations(event.host_id, host.reason)

    def _on_resumed(self, event: ev.HostResumed) -> None:
        host = self._ledger.hosts.get(event.host_id)
        if host is not None:
            host.drained_by, host.failures_in_row = "", 0
            host.reason = host.reason if host.lost else None
            self._ledger.refresh_host(host)

    # --- Events from attempts ----------------------------------------------------------------------

    def _current(self, job_id: JobId, attempt: AttemptNo) -> Job | None:
        """The job, if this is its attempt on devices; stale words change nothing."""
        job = self._ledger.jobs.get(job_id)
        if job is None or job.attempt != attempt or job.phase not in ON_DEVICES:
            return None
        return job

    def _on_started(self, event: ev.AttemptStarted) -> None:
        job = self._current(event.job_id, event.attempt)
        if job is not None and event.host_id in job.hosts_left and event.host_id not in job.started_hosts:
            job.started_hosts = (*job.started_hosts, event.host_id)

    def _on_capabilities(self, event: ev.CapabilitiesSeen) -> None:
        job = self._current(event.job_id, event.attempt)
        if job is None or event.host_id not in job.hosts_left:
            return
        can = event.resumable and job.spec.resumable is not False and len(self._domains(job)) <= 1
        if not can:
            job.resumable, job.capable, job.known_to_resume = False, (), False
        elif event.host_id not in job.capable:
            job.capable = (*job.capable, event.host_id)
            everywhere = set(job.capable) >= set(starting.hosts_of(self._ledger, job))
            job.resumable = job.resumable or everywhere
        job.accumulates, job.accumulates_note = event.accumulates, event.accumulates_note
        job.resumable_note = event.resumable_note
        if job.phase is Phase.LOADING and event.step != job.step:  # Not the step we thought it would find.
            self._ledger.rekey(job, lambda j: self._resumed_at(j, event.step))

    def _resumed_at(self, job: Job, step: int) -> None:
        job.remaining_s = remaining_from(self._ledger.estimates, job, step, self.now_s)
        job.start_step = job.step = step

    def _domains(self, job: Job) -> set[str]:
        """The checkpoint domains a gang writes to; over more than one it cannot resume."""
        hosts = starting.hosts_of(self._ledger, job)
        return {self._ledger.hosts[host_id].checkpoint_domain for host_id in hosts}

    def _on_first_step(self, event: ev.FirstStepDone) -> None:
        job = self._current(event.job_id, event.attempt)
        if job is None or job.phase is not Phase.LOADING:
            return
        assert job.placement is not None
        job.infra_failures, job.avoid = 0, ()
        for host_id in job.hosts_left:
            self._clear_suspicion(self._ledger.hosts[host_id])
        learn_load(self._ledger.estimates, job, self.now_s - job.phase_since_s)
        job.remaining_at_s = self.now_s
        job.step = max(job.step, event.step)
        self._ledger.change(job, Change.FIRST_STEP, job.placement.reason)

    def _clear_suspicion(self, host: Host) -> None:
        if host.failures_in_row:
            host.failures_in_row = 0
            host.reason = host.reason if host.lost else self._host_reason(host)
            self._ledger.refresh_host(host)

    def _on_progress(self, event: ev.ProgressSeen) -> None:
        job = self._current(event.job_id, event.attempt)
        if job is None or event.step < job.step:
            return
        self._ledger.rekey(job, lambda j: learn_progress(self._ledger, j, event, self.now_s))
        observe_sharing(self._ledger, job)

    def _on_trouble(self, event: ev.TroubleSeen) -> None:
        """Nothing changes: it is kept in the job's history, for the user."""

    def _on_durable(self, event: ev.CheckpointDurable) -> None:
        job = self._ledger.jobs.get(event.job_id)
        host = self._ledger.hosts.get(event.host_id)
        if job is None or host is None or job.attempt != event.attempt or job.phase in ENDED:
            return
        # Nobody could put the parts of a gang over several domains together: they bind it to no host.
        if job.phase is Phase.RESERVED or (
            len(self._domains(job)) > 1 if job.phase in ON_DEVICES else not job.resumable
        ):
            return
        record = CheckpointRecord(
            attempt=event.attempt, step=event.step, domain=host.checkpoint_domain, exact=event.exact
        )
        if record in job.checkpoints:
            return
        # Also a late word of a host that was given up: the job still waits, and may as well go on from there.
        self._ledger.rekey(job, lambda j: self._learn_checkpoint(j, record))

    def _learn_checkpoint(self, job: Job, record: CheckpointRecord) -> None:
        known = sorted((*job.checkpoints, record), key=lambda c: (c.attempt, c.step))
        job.checkpoints = tuple(known[-CHECKPOINTS_KNOWN:])
        if job.phase not in ON_DEVICES and job.durable_step > job.step:
            job.remaining_s = remaining_from(self._ledger.estimates, job, job.durable_step, self.now_s)
            job.step = job.durable_step

    def _on_ended(self, event: ev.AttemptEnded) -> None:
        job = self._current(event.job_id, event.attempt)
        if job is None or event.host_id not in job.hosts_left:
            return
        job.step = max(job.step, event.step)
        if event.exit_code is not None:
            job.exit_code = event.exit_code
        if event.workdir_missing:
            job.workdir_missing = tuple(dict.fromkeys((*job.workdir_missing, event.host_id)))
        self._left_host(job, event.host_id, event.outcome, event.detail, event.workdir_missing)

    def _left_host(
        self, job: Job, host_id: HostId, outcome: ev.Outcome, detail: str, workdir_missing: bool = False
    ) -> None:
        """The gang's processes on one host are gone (or count as gone)."""
        host = self._ledger.hosts[host_id]
        co_tenants = self._ledger.partners(job)
        self._vacated += self._ledger.holdings.vacate(job, host_id)
        job.hosts_left = tuple([h for h in job.hosts_left if h != host_id])
        if not job.outcome or _SEVERITY[outcome] >= _SEVERITY[job.outcome.partition(": ")[0]]:
            job.outcome = f"{outcome}: {detail}" if detail else outcome
        for other_id in co_tenants:
            self._repace(self._ledger.jobs[other_id])
        if outcome == "infra-failed" and not job.stop_cause and not workdir_missing:
            self._blame(host, job)
        elif outcome == "finished":
            self._clear_suspicion(host)
        if not job.hosts_left:
            self._settle(job)
        elif outcome != "finished" and job.phase not in LEAVING:
            reason = job.stop_reason or because("gang-peer-ended", host_id)
            self._stop(job, job.stop_cause or "peer", reason, save=False)

    def _blame(self, host: Host, job: Job) -> None:
        if host.host_id in job.avoid:
            return  # It failed here before and never got going since: that may be its own doing.
        host.failures_in_row += 1
        job.avoid = tuple(dict.fromkeys((*job.avoid, host.host_id)))[-3:]
        if host.failures_in_row >= SUSPECT_AFTER:
            host.reason = because("suspect", host.host_id, host.failures_in_row)
            self._ledger.refresh_host(host)
            self._drop_reservations(host.host_id, host.reason)
            self._alarm(self.now_s + PROBATION_S, "probation", host.host_id, 0)

    # --- The end of an attempt ---------------------------------------------------------------------

    def _settle(self, job: Job) -> None:
        """All hosts have reported: decide what becomes of the job."""
        outcome, _, detail = job.outcome.partition(": ")
        cause, reason = job.stop_cause, job.stop_reason
        if outcome == "finished":
            self._finish(job)
        elif cause == "cancelled":
            assert reason is not None
            self._end(job, Change.CANCEL, reason)
        elif cause == "time-limit":
            assert reason is not None
            self._end(job, Change.FAIL, reason)
        elif cause in ("preempted", "user"):
            assert reason is not None
            job.preemptions += 1
            if job.phase is Phase.CHECKPOINTING:
                learn_pause(self._ledger.estimates, job, self.now_s - job.phase_since_s)
            self._requeue(job, Change.LEAVE, reason)
        elif cause == "lost":
            assert reason is not None
            self._requeue(job, Change.LEAVE, reason)
        elif outcome == "user-failed":
            self._user_failed(job, detail)
        else:
            self._infra_failed(job, detail or outcome)

    def _finish(self, job: Job) -> None:
        learn_duration(self._ledger.estimates, job, self.now_s)
        self._end(job, Change.FINISH, FINISHED)
        job.remaining_s = 0.0

    def _user_failed(self, job: Job, detail: str) -> None:
        job.user_failures += 1
        if job.user_failures <= job.spec.retries:
            self._requeue(job, Change.LEAVE, because("user-failed", detail))
        else:
            self._end(job, Change.FAIL, because("user-failed", detail))

    def _infra_failed(self, job: Job, detail: str) -> None:
        policy = self.config.policy
        if job.workdir_missing and why_impossible(self._ledger, job) is not None:
            missing = because("workdir-missing", job.spec.launch.workdir, ", ".join(job.workdir_missing))
            self._requeue(job, Change.LEAVE_HELD, missing)
            return
        job.infra_failures += 1
        if job.infra_failures > policy.infra_retries:
            self._requeue(job, Change.LEAVE_HELD, because("held-infra", job.infra_failures, detail))
            return
        wait_s = policy.back_off_s * 2 ** (job.infra_failures - 1)
        self._requeue(job, Change.LEAVE_BLOCKED, because("back-off", wait_s, detail))
        self._alarm(self.now_s + wait_s, "back-off", job.job_id, job.attempt)

    def _requeue(self, job: Job, change: Change, reason: Reason) -> None:
        """Wait again, from the last durable step."""
        left_s = remaining_from(self._ledger.estimates, job, job.durable_step, self.now_s)
        self._ledger.requeue(job, change, reason, left_s)
        if change is Change.LEAVE:
            self._start_ageing(job)

    def _end(self, job: Job, change: Change, reason: Reason) -> None:
        self._ledger.change(job, change, reason)
        job.placement = None
        self._ended(job)

    def _ended(self, job: Job) -> None:
        """Its hosts may forget it; jobs that waited for it may go, or are cancelled with it (and those that
        waited for them: a list of work, since a chain can be longer than the stack is deep)."""
        ended = [job]
        for one in ended:
            for host_id in one.visited:
                self._forget(host_id, one.job_id)
            waiting_on = self._ledger.waiting_on.pop(one.job_id, None)
            for waiting_id in sorted(waiting_on, key=natural_key) if waiting_on else ():
                waiting = self._ledger.jobs.get(waiting_id)
                if waiting is not None and waiting.phase is Phase.BLOCKED:
                    self._ledger.change(waiting, Change.UNBLOCK, self._submitted(waiting))
                    if not self._queue_or_block(waiting):
                        ended.append(waiting)

    def _forget(self, host_id: HostId, job_id: JobId) -> None:
        self._out.append(ForgetJob(command_id=self._command_id(), host_id=host_id, job_id=job_id))

    def _submitted(self, job: Job) -> Reason:
        return because("submitted", job.spec.user or "somebody")

    # --- Learning, thinking, time ------------------------------------------------------------------

    def _on_profile(self, event: ev.ProfileLearned) -> None:
        job = self._ledger.jobs.get(event.job_id)
        if job is None:
            return

        def update(job: Job) -> None:
            job.profile = event.profile
            alone = event.profile.at(1)
            job.solo_step_s = alone.step_s if alone else job.solo_step_s

        self._ledger.rekey(job, update)

    def _on_pair(self, event: ev.PairObserved) -> None:
        first, second = self._ledger.jobs.get(event.first), self._ledger.jobs.get(event.second)
        if first is not None and second is not None:
            self._ledger.pairs.observe(first, second, event.first_xi)
            self._ledger.pairs.observe(second, first, event.second_xi)

    def _on_computed(self, event: ev.Computed) -> None:
        """Nothing to keep: the policy sees the event itself."""

    def _on_alarm(self, event: ev.AlarmRang) -> None:
        while self._alarms and self._alarms[0].at_s <= self.now_s:
            self._ring(heapq.heappop(self._alarms))

    def _ring(self, alarm: Alarm) -> None:
        if alarm.kind == "probation":
            host = self._ledger.hosts.get(HostId(alarm.subject))
            if host is not None and host.failures_in_row >= SUSPECT_AFTER:
                host.failures_in_row = SUSPECT_AFTER - 1
                self._ledger.refresh_host(host)
            return
        job = self._ledger.jobs.get(JobId(alarm.subject))
        if job is None or job.attempt != alarm.attempt:
            return
        if alarm.kind == "deadline" and job.phase is Phase.CHECKPOINTING:
            waited_s = self.config.policy.stop_deadline_s
            cause = job.stop_cause
            self._stop(job, cause, because("checkpoint-deadline", waited_s, job.durable_step), save=False)
        elif alarm.kind == "limit" and job.phase in (Phase.LOADING, Phase.RUNNING):
            self._stop(job, "time-limit", because("time-limit", job.spec.time_limit_s or 0.0), save=True)
        elif alarm.kind == "back-off" and job.phase is Phase.BLOCKED:
            self._ledger.change(job, Change.UNBLOCK, job.reason)
            if not self._queue_or_block(job):
                self._ended(job)
        elif alarm.kind == "age" and job.phase is Phase.QUEUED and not job.aged:
            self._ledger.rekey(job, _set_aged)
            job.reason = because("aged", self.config.policy.ageing_s)

    def _alarm(self, at_s: float, kind: AlarmKind, subject: str, attempt: int) -> None:
        heapq.heappush(self._alarms, Alarm(at_s, kind, subject, attempt))

    def _command_id(self) -> CommandId:
        command_id = self._ledger.next_command
        self._ledger.next_command += 1
        return CommandId(command_id)

    # --- Saving ------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Everything needed to go on from here; a value the caller may encode at leisure is not
        promised: encode it before the next `handle`."""
        return Snapshot(
            version=SNAPSHOT_VERSION,
            now_s=self.now_s,
            ledger=self._ledger.save(),
            alarms=sorted(self._alarms),
            policy_name=self.policy_name,
            policy_parameters=self.policy_parameters,
            policy_state=self._policy.save(),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Take over a snapshot; this engine must be new."""
        self._policy = self._make_policy(snapshot.policy_name, snapshot.policy_parameters)
        self._policy.load(snapshot.policy_state)
        self.policy_name, self.policy_parameters = snapshot.policy_name, snapshot.policy_parameters
        self._ledger.load(snapshot.ledger, snapshot.now_s)
        self._alarms = list(snapshot.alarms)
        heapq.heapify(self._alarms)
        if self._validate:
            self._ledger.check()


def _set_aged(job: Job) -> None:
    job.aged = True


_SEVERITY: dict[str, int] = {
    "finished": 1,
    "never-started": 2,
    "stopped": 3,
    "infra-failed": 4,
    "user-failed": 5,
}
"""Of a gang's hosts the worst outcome counts; a user's failure explains its peers' failures."""

_HANDLERS: dict[type, Callable[..., None]] = {
    ev.JobArrived: Engine._on_arrived,
    ev.CancelRequested: Engine._on_cancel,
    ev.HoldRequested: Engine._on_hold,
    ev.ReleaseRequested: Engine._on_release,
    ev.PreemptRequested: Engine._on_preempt,
    ev.CheckpointRequested: Engine._on_checkpoint,
    ev.PolicyChanged: Engine._on_policy,
    ev.HostJoined: Engine._on_joined,
    ev.HostSilent: Engine._on_silent,
    ev.HostBack: Engine._on_back,
    ev.HostLost: Engine._on_lost,
    ev.HostDrained: Engine._on_drained,
    ev.HostResumed: Engine._on_resumed,
    ev.AttemptStarted: Engine._on_started,
    ev.CapabilitiesSeen: Engine._on_capabilities,
    ev.FirstStepDone: Engine._on_first_step,
    ev.ProgressSeen: Engine._on_progress,
    ev.CheckpointDurable: Engine._on_durable,
    ev.TroubleSeen: Engine._on_trouble,
    ev.AttemptEnded: Engine._on_ended,
    ev.ProfileLearned: Engine._on_profile,
    ev.PairObserved: Engine._on_pair,
    ev.Computed: Engine._on_computed,
    ev.AlarmRang: Engine._on_alarm,
}
