"""The engine: takes an event and the time, changes the state, and says what must be done.

Rule: `handle` is the only way the cluster's state changes. It never reads a clock, a socket or a file;
live and simulated runs are two short loops around it. Only the engine gives out devices, and it takes them
back only when every process of the gang on them is known to be gone.

    handle = apply the event -> ask the policy -> commit what the ledger allows

Recovery calls `fold` with the recorded decision instead, so that no policy is asked twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, get_type_hints

import msgspec

from cotenant.controller.domain import (
    LOADING,
    NOTHING,
    QUEUED,
    RESERVED,
    AnyAction,
    AnyCommand,
    ClassReport,
    Compute,
    ComputeRequest,
    Decision,
    Defer,
    DeviceId,
    Epoch,
    Hold,
    Host,
    HostId,
    Job,
    JobId,
    JobSpec,
    Past,
    Phase,
    Place,
    Preempt,
    Reason,
    Resize,
    Share,
    Wake,
    because,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import claims, hosts, parts, placing, reports, requests, resizing
from cotenant.controller.engine.admission import Admission
from cotenant.controller.engine.dispatch import Alarm, Dispatch, EngineConfig
from cotenant.controller.engine.lateness import Lateness, SavedLateness
from cotenant.controller.engine.ledger import Ledger, SavedLedger
from cotenant.controller.engine.placing import exceeds_hosts, spared
from cotenant.controller.engine.priority_guard import guard_priorities, why_kept, why_not_preempted
from cotenant.controller.engine.promises import Promises, SavedPromises
from cotenant.controller.knowledge import PairTable, StoredProfile
from cotenant.controller.planning import View
from cotenant.controller.policies.base import (
    Parameters,
    Policy,
    class_report,
    holds_back,
    learns,
    preempts,
    promised_s,
    shares,
    starts_nothing,
    state_in_words,
    take_over,
    takes_turns,
    why_impossible,
    why_waiting,
)

MakePolicy = Callable[[str, Parameters], Policy]


class Snapshot(msgspec.Struct, kw_only=True):
    """Everything the engine is, as of one journal entry."""

    version: int
    now_s: float
    ledger: SavedLedger
    alarms: list[Alarm]
    policy_name: str
    policy_parameters: Parameters
    policy_state: bytes
    promises: SavedPromises
    lateness: SavedLateness


SNAPSHOT_VERSION = 1
UNASKED: Final = frozenset(
    (ev.EpochBegan, ev.EtasTold, ev.ShadowChanged, ev.AllocationQueueChanged, ev.AllocationChanged)
)
"""Events about which no policy is asked."""
LACK_DEVICES: Final = frozenset(("first-no-devices", "behind-no-devices", "fragmented"))
"""Reasons of a job for which some devices are free and too few: whether it could share others comes after."""
NOT_OFFERED_SHOWN = 4
"""The most devices that `explain` names as not offered."""


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
        self.forgotten: list[Job] = []
        """Ended jobs that the last event pushed out of memory."""
        self.next_alarm_s: float | None = None
        """When `AlarmRang` is due, or None."""
        self.policy_name = self.config.policy.first
        self.policy_parameters: Parameters = {}
        self._make_policy = make_policy
        self._policy = make_policy(self.policy_name, {})
        self._policy_shares, self._policy_learns = shares(self._policy), learns(self._policy)
        self._ledger = Ledger(self._policy.queue_key)
        if pairs is not None:
            self._ledger.pairs = pairs
        if self.config.predictor is not None:
            from cotenant.controller.models.interference.predictor import (
                Predictor,  # numpy, for those who use it
            )

            self._ledger.pairs.foresight = Predictor(self.config.predictor)
        self._ledger.began_hour = self.config.began_hour
        self._dispatch = Dispatch(self._ledger, self.config)
        self._validate = validate
        self._admission = Admission(self._dispatch, self.config)
        self._lateness = Lateness(self._dispatch, self.config.policy.late_share)
        if self._lateness.share:
            self._ledger.entered = []
        self._take_turns()
        self._promises = Promises(self._dispatch)
        self._promises.preempts = preempts(self._policy)

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

    @property
    def epoch(self) -> Epoch:
        """The present one."""
        return self._ledger.epoch

    @property
    def epochs_past(self) -> Sequence[Past]:
        """Those before it, oldest first."""
        return self._ledger.epochs_past

    def view(self) -> View:
        return self._ledger

    def classes(self) -> ClassReport | None:
        """The policy's report on its classes and their quota; None: it has none."""
        return class_report(self._policy, self._ledger)

    def policy_state(self) -> dict[str, str]:
        """What the policy has learned, or where it stands, for people."""
        return state_in_words(self._policy, self._ledger)

    @property
    def promised_h(self) -> float | None:
        """How long a run of a spot job is promised; None: nothing is."""
        promised = getattr(self._policy, "promised_s", None)
        return None if promised is None else float(promised) / 3600.0

    def decayed_usage(self, by: str, now_s: float) -> dict[str, float] | None:
        """Device-seconds by name as fair share counts them; None: it is off, or goes by something else."""
        share = self._admission.fair_share
        if share is None or share.by != by:
            return None
        return {name: share.usage(account, now_s) for name, account in self._ledger.accounts.items()}

    @property
    def promises(self) -> SavedPromises:
        """Promised ends; to be read only."""
        return self._promises.saved

    def promise_for(self, specs: Sequence[JobSpec], now_s: float) -> list[float] | Reason:
        """By when these could be promised to end if they came now, or why nothing can be promised."""
        before_s, self._ledger.now_s = self._ledger.now_s, max(self._ledger.now_s, now_s)
        try:
            return self._promises.offer(specs)
        finally:
            self._ledger.now_s = before_s

    @property
    def pairs(self) -> PairTable:
        """Observations of pairs of kinds that shared; to be read only."""
        return self._ledger.pairs

    @property
    def known_profiles(self) -> Mapping[str, StoredProfile]:
        """Profiles kept for jobs to come, by key."""
        return self._ledger.profiles.known

    def loads_seen(self) -> list[float]:
        """Seconds from launch to first step, of the last jobs that loaded here."""
        estimates = self._ledger.estimates
        return [*estimates.loads.get("", ()), *estimates.warm_loads.get("", ())]

    def tenants(self, device_id: DeviceId) -> tuple[JobId, ...]:
        return tuple(self._ledger.tenants(device_id))

    def partners(self, job_id: JobId) -> tuple[JobId, ...]:
        return self._ledger.partners(self.jobs[job_id])

    def explain(self, job_id: JobId, now_s: float) -> list[Reason]:
        """Why the job is where it is: for a queued one what would have to change, first things first (what no
        host has, what is kept for whom, what the policy says, who goes before), then what led here."""
        job = self.jobs[job_id]
        if job.phase is not Phase.QUEUED:
            return [job.reason]
        before_s, self._ledger.now_s = self._ledger.now_s, max(self._ledger.now_s, now_s)
        try:
            ledger = self._ledger
            of_parts, behind = parts.why_waiting(ledger, job), self._admission.explain(job)
            turn = self._lateness.when(job) if self._dispatch.takes_turns else None
            turns = () if turn is None else (turn,)
            return [*self._causes(job), *of_parts, *behind, *turns, *self._not_offered(job), job.reason]
        finally:
            self._ledger.now_s = before_s

    def _causes(self, job: Job) -> list[Reason]:
        """What the policy says of a queued job, behind what would have to change before that matters."""
        impossible = why_impossible(self._ledger, job)
        if impossible is not None:
            return [impossible]
        says = self._policy.explain(self._ledger, job)
        kept = why_kept(self._ledger, job, self._holds_back)
        if kept is not None:
            return [kept] if says.code == "next-event" else [kept, says]
        if not (self._policy_shares and self._ledger.free.everywhere):
            return [says]
        lacks = why_waiting(self._ledger, job, self.policy_name)
        return [lacks, says] if lacks.code in LACK_DEVICES and lacks != says else [says]

    def _holds_back(self, job: Job) -> bool:
        return holds_back(self._policy, self._ledger, job)

    def _not_offered(self, job: Job) -> list[Reason]:
        """Devices that would suit the job and take no work now."""
        scheduling_class = self._ledger.scheduling_class(job)
        out = [
            device
            for device in self._ledger.devices.values()
            if not device.healthy and device.note and scheduling_class.gpu_type in ("", device.type)
        ]
        return [because("not-offered", d.device_id, d.note) for d in out[:NOT_OFFERED_SHOWN]]

    def never_fits(self, spec: JobSpec) -> Reason | None:
        """Why a job like this could never start on the hosts known now; None if it could, or if no
        host has joined yet."""
        if not self.hosts:
            return None
        probe = Job(spec=spec, number=0, submitted_s=self.now_s, reason=because("submitted", spec.user))
        reason = self._admission.never(spec) or why_impossible(self._ledger, probe)
        permanent = (
            "limit-never",
            "never-fits",
            "no-such-type",
            "no-such-feature",
            "needs-memory",
            "needs-cpus",
            "needs-host-memory",
            "needs-one-host",
        )
        return reason if reason is not None and reason.code in permanent else None

    # --- The one way in ----------------------------------------------------------------------------

    def fold(self, event: ev.AnyEvent, decision: Decision, now_s: float) -> list[AnyCommand]:
        """What `handle` did when `decision` was the answer; asks no policy."""
        return self.handle(event, now_s, decision)

    def handle(self, event: ev.AnyEvent, now_s: float, recorded: Decision | None = None) -> list[AnyCommand]:
        """Apply the event, ask the policy, commit its answer (kept in `decision`). `recorded`: what the
        answer was; then no policy is asked."""
        ledger, dispatch, promises = self._ledger, self._dispatch, self._promises
        ledger.begin(now_s)
        dispatch.out, dispatch.vacated, self.refusals, self.forgotten = [], [], [], []
        if type(event) is ev.PolicyChanged:
            self._set_policy(event.name, event.parameters)
        else:
            HANDLERS[type(event)](dispatch, event)
        if type(event) is ev.JobArrived and event.spec.job_id in ledger.jobs:
            if event.spec.promised_s is not None:
                promises.accept(ledger.jobs[event.spec.job_id])
            ledger.has_parts |= event.spec.gpu_fraction < 1.0
        if ledger.entered is not None:
            entered = self._admission.admit()
            if self._lateness.share and (entered or type(event) not in UNASKED):
                self._lateness.follow(event, entered, marks=dispatch.takes_turns)
        policy, is_asked = self._policy, type(event) not in UNASKED
        if recorded is not None:
            decision = recorded
        else:
            decision = policy.decide(ledger, event) if is_asked else NOTHING
            if ledger.has_parts and is_asked and not starts_nothing(policy):
                decision = parts.with_parts(ledger, event, decision)
            if decision.actions:
                decision = guard_priorities(ledger, decision, self._holds_back)
        if is_asked and promises.saved.open:
            guarded = promises.guarded(decision)  # In a replay too: it notes what was moved out of the way.
            if recorded is None:
                decision = guarded
        if decision.actions:
            decision = self._commit(decision)
        self.decision = decision
        if dispatch.vacated and ledger.holdings.claims:
            dispatch.launch_reserved()
        if self._admission.fair_share is not None:
            self._admission.fair_share.settle(ledger)
        if promises.saved.open:
            promises.settle()
        if ledger.has_more_ended:
            self.forgotten = ledger.forget_ended(self.config.keep_ended)
        if self._validate:
            ledger.check()
        if is_asked and self._policy_learns:
            policy.observe(ledger, event, decision)
        self.next_alarm_s = dispatch.alarms[0].at_s if dispatch.alarms else None
        return dispatch.out

    # --- Actions of the policy ---------------------------------------------------------------------

    def _commit(self, decision: Decision) -> Decision:
        """Carry out what the ledger allows. Returns the decision without what the hosts have no cores or main
        memory for: that is not recorded."""
        # An action alone takes nothing from anybody for somebody else.
        _, *others = decision.actions
        kept_back = spared(self._ledger, decision.actions) if others else ()
        beyond_hosts: list[AnyAction] = []
        for action in decision.actions:
            refusal: Reason | None = None
            match action:
                case _ if action in kept_back:
                    refusal = because("refused-profiling")
                case Place() | Share() | Resize() if (
                    refusal := exceeds_hosts(self._ledger, action)
                ) is not None:
                    beyond_hosts.append(action)
                case Place() | Share():
                    refusal = self._place(action)
                case Preempt():
                    refusal = self._preempt(action)
                case _:
                    refusal = self._carry_out(action)
            if refusal is not None:
                self.refusals.append(refusal)
        if not beyond_hosts:
            return decision
        kept = tuple(action for action in decision.actions if action not in beyond_hosts)
        return Decision(actions=kept)

    def _carry_out(self, action: Hold | Defer | Wake | Compute | Resize) -> Reason | None:
        """Do it if the ledger allows; else the reason why not."""
        match action:
            case Hold():
                job = self._ledger.jobs.get(action.job_id)
                if job is not None and job.phase is Phase.QUEUED:
                    self._ledger.explain(job, action.reason)
            case Defer():
                job = self._ledger.jobs.get(action.job_id)
                if job is None or job.phase is not QUEUED:
                    return because(
                        "refused-phase", f"to defer job {action.job_id}", job.phase if job else "gone"
                    )
                if not self.now_s <= action.until_s < float("inf"):
                    return because("refused-time", action.until_s)
                self._ledger.explain(job, action.reason)
                self._dispatch.wake_at(action.until_s, "wake", "", 0)
            case Wake():
                if not self.now_s <= action.at_s < float("inf"):
                    return because("refused-time", action.at_s)
                self._dispatch.wake_at(action.at_s, "wake", "", 0)
            case Compute():
                self._dispatch.out.append(
                    ComputeRequest(
                        command_id=self._dispatch.command_id(),
                        request_id=action.request_id,
                        kind=action.kind,
                        payload=action.payload,
                    )
                )
            case Resize():
                limits = self._admission.limits
                return resizing.resize(self._dispatch, limits, action, policy_shares=self._policy_shares)
        return None

    def _place(self, action: Place | Share) -> Reason | None:
        ledger = self._ledger
        if action.job_id not in ledger.jobs:
            return placing.check(ledger, action)
        job = ledger.jobs[action.job_id]
        if self._admission.limits is not None:
            over = self._admission.limits.check(job, placing.size_on(ledger, job, action.devices))
            if over is not None:
                return over
        found = placing.plain(ledger, job, action, policy_shares=self._policy_shares)
        if found is None:
            refusal = placing.check(ledger, action)
            if refusal is not None:
                return refusal
            placement = placing.placement(ledger, job, action, policy_shares=self._policy_shares)
            found = placement, placing.waits_for(ledger, job, placement)
        placement, victims = found
        if victims:
            ledger.reserve(job, placement, victims)
            ledger.holdings.claim(job, action.devices)
        else:
            self._dispatch.launch(job, placement)
        return None

    def _preempt(self, action: Preempt) -> Reason | None:
        refusal = why_not_preempted(self._ledger, action)
        if refusal is not None:
            return refusal
        job = self._ledger.jobs[action.job_id]
        if job.phase is RESERVED:
            self._dispatch.unreserve(job, action.reason, preempted=True)
            return None
        if job.phase is LOADING or self.now_s - job.phase_since_s < promised_s(self._policy):
            self._ledger.preempt_early(job)
        self._dispatch.stop(job, "preempted", action.reason, save=True)
        return None

    def _set_policy(self, name: str, parameters: Parameters) -> None:
        before, self._policy = self._policy, self._make_policy(name, parameters)
        take_over(self._policy, before)
        self._policy_shares, self._policy_learns = shares(self._policy), learns(self._policy)
        self.policy_name, self.policy_parameters = name, parameters
        self._ledger.reorder_queues(self._policy.queue_key)
        self._take_turns()
        self._promises.preempts = preempts(self._policy)

    def _take_turns(self) -> None:
        """Under a policy that takes turns jobs do not age: late ones are marked (`lateness.py`)."""
        before = self._dispatch.takes_turns
        self._dispatch.takes_turns = self._lateness.share > 0.0 and takes_turns(self._policy)
        if self._dispatch.takes_turns:
            self._lateness.look_again()
        elif before:
            for job in self._ledger.queued():
                self._dispatch.start_ageing(job)

    # --- Saving ------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Everything needed to go on from here; a value the caller may encode at leisure is not
        promised: encode it before the next `handle`."""
        return Snapshot(
            version=SNAPSHOT_VERSION,
            now_s=self.now_s,
            ledger=self._ledger.save(),
            alarms=sorted(self._dispatch.alarms),
            policy_name=self.policy_name,
            policy_parameters=self.policy_parameters,
            policy_state=self._policy.save(),
            promises=self._promises.saved,
            lateness=self._lateness.save(),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Takes over a snapshot; this engine must be new."""
        self._set_policy(snapshot.policy_name, snapshot.policy_parameters)
        self._policy.load(snapshot.policy_state)
        self._ledger.load(snapshot.ledger, snapshot.now_s)
        self._promises.restore(snapshot.promises)
        self._lateness.restore(snapshot.lateness)
        self._dispatch.alarms = list(snapshot.alarms)
        heapq.heapify(self._dispatch.alarms)
        self.next_alarm_s = self._dispatch.alarms[0].at_s if self._dispatch.alarms else None
        self._admission.restore()
        if snapshot.lateness.jobs and not self._lateness.share and takes_turns(self._policy):
            for job in self._ledger.queued():  # Lateness have been switched off.
                self._dispatch.start_ageing(job)
            self.next_alarm_s = self._dispatch.alarms[0].at_s if self._dispatch.alarms else None
        if self._validate:
            self._ledger.check()


def _handlers(*modules: ModuleType) -> dict[type, Callable[[Dispatch, Any], None]]:
    """Each `on_...(dispatch, event)` of these, by the event that it is annotated with."""
    found = [each for module in modules for name, each in vars(module).items() if name.startswith("on_")]
    return {get_type_hints(each)["event"]: each for each in found}


HANDLERS: Final = _handlers(requests, hosts, reports, claims)
"""Who takes in which event; a change of policy is the engine's own."""
