"""The engine: takes an event and the time, changes the state, and says what must be done.

Rule: `handle` is the only way the cluster's state changes. It never reads a clock, a socket or a file;
live and simulated runs are two short loops around it. Only the engine gives out devices, and it takes them
back only when every process of the gang on them is known to be gone.

    1. take in   the event changes the ledger           requests, hosts, reports, claims
    2. admit     who may wait for devices, in what order   stages: fair share, limits, lateness
    3. decide    the policy is asked                     current_policy
    4. guard     what may change its decision          stages: parts, lending, priorities, promises, bookings
    5. commit    what the ledger allows is carried out   committing
    6. settle    what follows from it                    stages: fair share, promises, bookings

Recovery calls `fold` with the recorded decision: the same six steps, and no policy is asked twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final, get_type_hints

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.committing import Committing
from cotenant.controller.engine.events import claims, hosts, reports, requests
from cotenant.controller.engine.explaining import Explaining
from cotenant.controller.engine.foresight import find_foresight
from cotenant.controller.engine.stages.admission import Admission
from cotenant.controller.engine.stages.bookings import BookingStage
from cotenant.controller.engine.stages.budgets import BudgetStage
from cotenant.controller.engine.stages.lateness import Lateness, SavedLateness
from cotenant.controller.engine.stages.lending import Lending
from cotenant.controller.engine.stages.parts import PartPlacing
from cotenant.controller.engine.stages.priority_guard import KeepingForPriority
from cotenant.controller.engine.stages.promise_room import SavedPromises
from cotenant.controller.engine.stages.promises import Promises
from cotenant.controller.engine.stages.stages import UNASKED, AdmissionStage, DecisionStage, SettlingStage
from cotenant.controller.engine.state.current_policy import CurrentPolicy, MakePolicy
from cotenant.controller.engine.state.dispatch import Alarm, Dispatch, EngineConfig
from cotenant.controller.engine.state.ledger import Ledger, SavedLedger
from cotenant.controller.knowledge import PairModel, PairTable
from cotenant.controller.policies.base import Parameters


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


class Engine:
    """Owns the cluster's state."""

    def __init__(
        self,
        make_policy: MakePolicy,
        config: EngineConfig | None = None,
        *,
        validate: bool = False,
        pairs: PairTable | None = None,
        foresight: PairModel | None = None,
    ) -> None:
        """Makes an engine without jobs. `pairs`: what was measured beforehand; recovery replaces it by what
        its snapshot holds. `foresight`: answers for pairs that were never seen; None: the configuration's."""
        self.config = config if config is not None else EngineConfig()
        self.decision: domain.Decision = domain.NOTHING
        self.forgotten: list[domain.Job] = []
        """Ended jobs that the last event pushed out of memory."""
        self.next_alarm_s: float | None = None
        """When `AlarmRang` is due, or None."""
        self.current = CurrentPolicy(make_policy, self.config.policy.first)
        """The policy that decides now; to be read only."""
        self.ledger = Ledger(self.current.policy.queue_key)
        """The state of the cluster; to be read only."""
        self.ledger.began_hour = self.config.began_hour
        if pairs is not None:
            self.ledger.pairs = pairs
            pairs.asked_for = self.ledger.phases.asked_for
        self.ledger.pairs.sharing = self.config.sharing
        self.ledger.pairs.share_max_of = {
            name: each.share_max for name, each in self.config.organisations.items() if each.share_max
        }
        self.ledger.pairs.foresight = (
            find_foresight(self.config.predictor) if foresight is None else foresight
        )
        self._dispatch = Dispatch(self.ledger, self.config)
        self._validate = validate
        self._admission = Admission(self._dispatch, self.config)
        self._lateness = Lateness(self._dispatch, self.config.policy.late_share)
        if self._lateness.share:
            self.ledger.phases.entered = []
        self.promises = Promises(self._dispatch, self.current)
        self.bookings = BookingStage(self._dispatch, self.current, self.promises)
        self._budgets = BudgetStage(self._dispatch)
        self._committing = Committing(self._dispatch, self.current, self._admission)
        self._take_turns()
        self._line_up()

    def _line_up(self) -> None:
        """The stages in their order (`stages.py`), as far as they are configured."""
        fair_share = self._admission.fair_share
        late = (self._lateness,) if self._lateness.share else ()
        self._admits: tuple[AdmissionStage, ...] = (*self._admission.stages, *late)
        self._guards: tuple[DecisionStage, ...] = (
            PartPlacing(self.ledger, self.current),
            Lending(self.ledger, self.current),
            KeepingForPriority(self.ledger, self.current),
            self.promises,
            self.bookings,
        )
        charges = () if fair_share is None else (fair_share,)
        self._settles: tuple[SettlingStage, ...] = (*charges, self._budgets, self.promises, self.bookings)

    # --- The one way in ----------------------------------------------------------------------------

    def handle(
        self, event: ev.AnyEvent, now_s: float, recorded: domain.Decision | None = None
    ) -> list[domain.AnyCommand]:
        """What must be done now that `event` has happened; the decision is kept in `decision`. `recorded`:
        what was decided when the event was handled first; then no policy is asked."""
        self._take_in(event, now_s)
        if self.ledger.phases.budgeted:
            self._budgets.settle()
        if self._admits:
            self._admit(event)
        if self.ledger.bookings.saved.open:
            self.bookings.attend()
        decision = self._decide(event) if recorded is None else recorded
        if self.ledger.phases.asked_for:
            decision = self._guard(event, decision, is_recorded=recorded is not None)
        self.decision = self._committing.commit(decision) if decision.actions else decision
        self._settle(event)
        return self._dispatch.out

    def fold(self, event: ev.AnyEvent, decision: domain.Decision, now_s: float) -> list[domain.AnyCommand]:
        """What `handle` did when `decision` was the answer; asks no policy."""
        return self.handle(event, now_s, decision)

    def _take_in(self, event: ev.AnyEvent, now_s: float) -> None:
        """Takes step 1: the ledger changes by what has happened, and by nothing else."""
        dispatch, jobs = self._dispatch, self.ledger.jobs
        self.ledger.begin(now_s)
        dispatch.out, dispatch.vacated = [], []
        self._committing.refusals, self.forgotten = [], []
        if type(event) is ev.PolicyChanged:
            self._change_policy(event.name, event.parameters)
            return
        HANDLERS[type(event)](dispatch, event)
        if type(event) is ev.JobArrived and event.spec.promised_s is not None and event.spec.job_id in jobs:
            self.promises.accept(jobs[event.spec.job_id])

    def _admit(self, event: ev.AnyEvent) -> None:
        """Takes step 2: who may wait for devices, and in which order, before any policy is asked."""
        phases = self.ledger.phases
        for stage in self._admits:
            assert phases.entered is not None, "a stage admits jobs whose changes nobody notes"
            stage.admit(event, phases.entered)
        phases.entered = []

    def _decide(self, event: ev.AnyEvent) -> domain.Decision:
        """Takes step 3: the policy sees the ledger and changes nothing."""
        return domain.NOTHING if type(event) in UNASKED else self.current.policy.decide(self.ledger, event)

    def _guard(self, event: ev.AnyEvent, decision: domain.Decision, *, is_recorded: bool) -> domain.Decision:
        """Takes step 4: what the policy wants goes through the stages. A recorded decision has been through
        them: those that remember see it again, and nothing of it changes."""
        if type(event) in UNASKED:
            return decision
        asked_for = self.ledger.phases.asked_for
        for stage in self._guards:
            if stage.serves not in asked_for:
                continue
            if not is_recorded:
                decision = stage.revise(event, decision)
            elif stage.remembers:
                stage.revise(event, decision)
        return decision

    def _settle(self, event: ev.AnyEvent) -> None:
        """Takes step 6, what follows: reserved jobs start, stages take in what was done, the policy
        learns."""
        ledger, dispatch, current = self.ledger, self._dispatch, self.current
        if dispatch.vacated and ledger.holdings.claims:
            dispatch.launch_reserved()
        for stage in self._settles:
            if stage.serves is None or stage.serves in ledger.phases.asked_for:
                stage.settle()
        if ledger.phases.has_more_ended:
            self.forgotten = ledger.phases.forget_ended(self.config.keep_ended)
        if self._validate:
            ledger.check()
        if current.learns and type(event) not in UNASKED:
            current.policy.observe(ledger, event, self.decision)
        self.next_alarm_s = dispatch.alarms[0].at_s if dispatch.alarms else None

    def _change_policy(self, name: str, parameters: Parameters) -> None:
        self.current.change(name, parameters)
        self.ledger.queue.reorder(self.current.policy.queue_key)
        self._take_turns()

    def _take_turns(self) -> None:
        """Under a policy that orders jobs by size they do not age: late ones are marked (`lateness.py`)."""
        before = self._dispatch.takes_turns
        self._dispatch.takes_turns = self._lateness.share > 0.0 and self.current.traits.orders_by_size
        if self._dispatch.takes_turns:
            self._lateness.look_again()
        elif before:
            for job in self.ledger.queue.jobs_in_order():
                self._dispatch.start_ageing(job)

    # --- Reading -----------------------------------------------------------------------------------

    @property
    def jobs(self) -> Mapping[domain.JobId, domain.Job]:
        return self.ledger.jobs

    @property
    def hosts(self) -> Mapping[domain.HostId, domain.Host]:
        return self.ledger.hosts

    @property
    def now_s(self) -> float:
        return self.ledger.now_s

    @property
    def arrived(self) -> int:
        """How many jobs have arrived in all, as far as this history knows."""
        return self.ledger.next_number - 1 - self.ledger.numbers_skipped

    def classes(self) -> domain.ClassReport | None:
        """The policy's report on its classes and their quota; None: it has none."""
        return self.current.classes(self.ledger)

    def policy_state(self) -> dict[str, str]:
        """What the policy has learned, or where it stands, for people."""
        return self.current.state_in_words(self.ledger)

    @property
    def promised_h(self) -> float | None:
        """How long a run of a spot job is promised; None: nothing is."""
        promised_s = self.current.traits.promised_s
        return None if promised_s is None else promised_s / 3600.0

    def decayed_usage(self, by: str, now_s: float) -> dict[str, float] | None:
        """Device-seconds by name as fair share counts them; None: it is off, or goes by something else."""
        share = self._admission.fair_share
        if share is None or share.by != by:
            return None
        return {name: share.usage(account, now_s) for name, account in self.ledger.accounts.items()}

    @property
    def refusals(self) -> list[domain.Reason]:
        """Why actions of the last decision were not carried out."""
        return self._committing.refusals

    def loads_seen(self) -> list[float]:
        """Seconds from launch to first step, of the last jobs that loaded here."""
        estimates = self.ledger.estimates
        return [*estimates.loads.get("", ()), *estimates.warm_loads.get("", ())]

    def tenants(self, device_id: domain.DeviceId) -> tuple[domain.JobId, ...]:
        return tuple(self.ledger.holdings.tenants(device_id))

    def partners(self, job_id: domain.JobId) -> tuple[domain.JobId, ...]:
        return self.ledger.holdings.partners(self.jobs[job_id])

    def explain(self, job_id: domain.JobId, now_s: float) -> list[domain.Reason]:
        """Why the job is where it is: for a queued one what would have to change, first things first."""
        return self.explaining(now_s).explain(self.jobs[job_id])

    def never_fits(self, spec: domain.JobSpec) -> domain.Reason | None:
        """Why a job like this could never start on the hosts known now; None if it could, or if no
        host has joined yet."""
        return self.explaining(self.now_s).never_fits(spec)

    def explaining(self, now_s: float) -> Explaining:
        """Explains jobs as of one moment."""
        return Explaining(self.ledger.as_of(now_s), self.current, self._admission, self._lateness)

    # --- Saving ------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Everything needed to go on from here; a value the caller may encode at leisure is not
        promised: encode it before the next `handle`."""
        return Snapshot(
            version=SNAPSHOT_VERSION,
            now_s=self.now_s,
            ledger=self.ledger.save(),
            alarms=sorted(self._dispatch.alarms),
            policy_name=self.current.name,
            policy_parameters=self.current.parameters,
            policy_state=self.current.policy.save(),
            promises=self.promises.saved,
            lateness=self._lateness.save(),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Takes over a snapshot; this engine must be new."""
        self._change_policy(snapshot.policy_name, snapshot.policy_parameters)
        self.current.policy.load(snapshot.policy_state)
        self.ledger.load(snapshot.ledger, snapshot.now_s)
        self.promises.restore(snapshot.promises)
        self._lateness.restore(snapshot.lateness)
        self._dispatch.alarms = list(snapshot.alarms)
        heapq.heapify(self._dispatch.alarms)
        self.next_alarm_s = self._dispatch.alarms[0].at_s if self._dispatch.alarms else None
        self._admission.restore()
        self._line_up()
        if snapshot.lateness.jobs and not self._lateness.share and self.current.traits.orders_by_size:
            for job in self.ledger.queue.jobs_in_order():  # Late jobs are marked no more.
                self._dispatch.start_ageing(job)
            self.next_alarm_s = self._dispatch.alarms[0].at_s if self._dispatch.alarms else None
        if self._validate:
            self.ledger.check()


def _handlers(*modules: ModuleType) -> dict[type, Callable[[Dispatch, Any], None]]:
    """The handlers of events: each `on_...(dispatch, event)` of these modules, by the event that it is
    annotated with."""
    found = [each for module in modules for name, each in vars(module).items() if name.startswith("on_")]
    return {get_type_hints(each)["event"]: each for each in found}


HANDLERS: Final = _handlers(requests, hosts, reports, claims)
"""Who takes in which event; a change of policy is the engine's own."""
