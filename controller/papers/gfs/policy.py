"""gfs: classes and a quota over any order, after GFS (ASPLOS '26), and gfs-rise, ours.

One layer. It decides which class comes first, how many devices spot jobs may take, and which spot jobs
leave for hp jobs; another policy decides who is first within a class, where a job goes and who shares with
whom: the paper's own scheduler (`scheduling.py`), any of the registry (`order=patient`), with the sharing
of a third (`share=castor-cost`). A decision is that of the first of these passes that finds something to
do:

1. hp: the order sees only hp jobs. Those that it does not place preempt spot jobs (Algorithm 2).
2. spot: the order sees the spot jobs that the quota admits: `running + request <= Q`, here as `request <=
   budget`. The layer takes back what it starts beyond the budget, and asks it again without those.
3. sharing, if there is one: what it puts beside other spot jobs, and pairs that it parts.

If a pass does something, the next one follows at once (a wake-up at the same moment) and sees the result.

Rule: an hp job is never preempted, whatever the order is; nobody shares with one, unless `sharing.hp` gives
hp jobs a bound: then spot jobs may be put beside them, and are held to it. A smaller quota preempts nobody.
A job that has aged is admitted whatever the quota is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.gfs import class_view
from cotenant.controller.papers.gfs.demand import whole
from cotenant.controller.papers.gfs.forecasting import REASON, DemandForecaster
from cotenant.controller.papers.gfs.parameters import ABOUT, GfsParameters
from cotenant.controller.papers.gfs.quota import inventory, spot_quota
from cotenant.controller.papers.gfs.scheduling import Criteria, LeastCost, Pts
from cotenant.controller.papers.gfs.state import GfsState, capacity_of, is_hp
from cotenant.controller.planning import Plan, View, why_impossible
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Parameters, Policy, Traits, is_quiet
from cotenant.controller.policies.entries import CLASSES, COMPARED, PolicyEntry

MakePolicy = Callable[[str, Parameters], Policy]
OWN: Final = frozenset(("quota-update", "next-class", REASON))
"""Reasons of wake-ups and computations that the policies below did not ask for."""
HELD_BACK: Final = frozenset(("quota-withheld", "quota-eta", "hosts-rest"))
"""Reasons of spot jobs that wait for another cause than a lack of devices."""
EVERYTHING: Final = 1 << 30
"""A budget without a limit: more devices than there are."""
RECENT_H: Final = 48
"""Hours of demand shown beside the forecast."""
PASSES_MAX: Final = 8
"""Passes at one moment: a policy whose actions are refused must not be asked for ever."""
BESIDE_HP: Final = "castor-cost"
"""What `gfs-rise` shares by where hp jobs may have co-tenants."""
ASKED_MAX: Final = 3
"""How often the order is asked again without those that exceed the budget."""


class SavedGfs(msgspec.Struct, frozen=True, kw_only=True):
    state: GfsState
    forecaster: bytes
    order: bytes
    share: bytes


class Gfs:
    def __init__(self, name: str, parameters: GfsParameters, make: MakePolicy) -> None:
        """Builds the policy and the policies below it. `make`: makes the policies that order and share.

        Raises:
            ValueError: there is no such policy, or it is a layer itself.
        """
        self.name, self.parameters = name, parameters
        self._state = GfsState()
        self._forecaster = DemandForecaster(parameters)
        self._order = self._below(parameters.order, make) if parameters.order else self._pts()
        self._share = self._below(parameters.share, make) if parameters.share else None
        self._beside_hp = self._below(BESIDE_HP, make) if parameters.quota == "rise" else None
        """Shares where hp jobs may have co-tenants, and no policy was named that does."""
        of_order = self._order.traits
        self.traits = Traits(
            preempts=True,
            shares=of_order.shares or self._share is not None or self._beside_hp is not None,
            has_classes=True,
            places_by_itself=isinstance(self._order, Pts) or of_order.places_by_itself,
            promised_s=parameters.promised_s,
        )

    def _below(self, name: str, make: MakePolicy) -> Policy:
        policy = make(name, {})
        if policy.traits.has_classes:
            raise ValueError(
                f"{self.name}: {name} has classes of its own; name an order or a sharing without"
            )
        return policy

    def _pts(self) -> Policy:
        return Pts(self.name, Criteria(self._state.evictions, self.parameters), self.parameters)

    def queue_key(self, job: domain.Job) -> tuple[float, ...]:
        return (0.0 if job.spec.job_class == "hp" else 1.0, *self._order.queue_key(job))

    # --- Deciding ----------------------------------------------------------------------------------

    def decide(self, view: View, event: ev.AnyEvent) -> domain.Decision:
        if is_quiet(view, event):
            return domain.NOTHING
        asides: list[domain.AnyAction] = []
        actions: Sequence[domain.AnyAction] = ()
        for decide in (self._hp_pass, self._spot_pass, self._share_pass):
            actions = decide(view, event)
            if any(
                isinstance(action, domain.Place | domain.Share | domain.Preempt | domain.Defer)
                for action in actions
            ):
                break
            asides += actions
            actions = ()
        found = [*actions, *(aside for aside in asides if aside not in actions)]
        if actions and view.queue and self._may_ask_again(view):
            found.append(domain.Wake(at_s=view.now_s, reason=domain.because("next-class")))
        if view.queue and self._state.wake_s <= view.now_s:
            every_s = self.parameters.interval_s
            next_s = (view.now_s // every_s + 1) * every_s
            found.append(domain.Wake(at_s=next_s, reason=domain.because("quota-update")))
        training = self._training(view)
        if training is not None:
            found.append(training)
        return domain.Decision(actions=tuple(found)) if found else domain.NOTHING

    def _training(self, view: View) -> domain.Compute | None:
        state = self._state
        return state.retraining.request(state.demand, view.began_hour, view.now_s, self.parameters)

    def _may_ask_again(self, view: View) -> bool:
        return self._state.passed_s != view.now_s or self._state.passes < PASSES_MAX

    def _hp_pass(self, view: View, event: ev.AnyEvent) -> Sequence[domain.AnyAction]:
        if not view.hp.waiting:
            return ()
        seen = self._hp_view(view)
        actions = self._order.decide(seen, event).actions
        plan, decided = class_view.replay_actions(view, actions), class_view.concerned_jobs(actions)
        for job in list(seen.queue.jobs_in_order()):
            if job.job_id not in decided:
                self._make_room(plan, job)
        return (*actions, *plan.actions)

    def _hp_view(self, view: View) -> class_view.ClassView:
        return class_view.ClassView(
            view,
            admits=is_hp,
            ends=lambda job: not job.aged and not is_hp(job),
            unseen=lambda job: False,
            may_share=lambda job: False,
        )

    def _make_room(self, plan: Plan, job: domain.Job) -> None:
        """Preempts for hp jobs; where free devices are enough, the order places them."""
        if plan.find_free(job) is None:
            LeastCost(self._state.evictions, self._state.checkpoints_s, self.parameters).take(plan, job)

    def _spot_pass(self, view: View, event: ev.AnyEvent) -> Sequence[domain.AnyAction]:
        budgets = self.budgets(view, event) if view.queue else {}
        left_out = set[domain.JobId]()
        kept: Sequence[domain.AnyAction] = ()
        for _ in range(ASKED_MAX):
            seen = self._spot_view(view, class_view.widest(budgets), left_out)
            asked = self._ask_order(seen, event, budgets).actions
            kept, excess = class_view.split_by_budget(view, asked, budgets)
            if not excess:
                break
            left_out |= excess
        return kept

    def _ask_order(
        self, seen: View, event: ev.AnyEvent, budgets: dict[str, class_view.Budget]
    ) -> domain.Decision:
        """Returns the decision of the policy that orders. PTS keeps to the budgets; another order may exceed
        them, and is asked again."""
        if isinstance(self._order, Pts):
            limits = {type: budget.gpus for type, budget in budgets.items()}
            return self._order.decide(seen, event, limits)
        return self._order.decide(seen, event)

    def _spot_view(self, view: View, widest: int, left_out: set[domain.JobId]) -> class_view.ClassView:
        offered = self._state.offered

        def admits(job: domain.Job) -> bool:
            if job.spec.job_class == "hp" or (job.job_id in left_out):
                return False
            return job.spec.gpus <= widest or job.aged

        return class_view.ClassView(
            view,
            admits=admits,
            ends=lambda job: not job.aged and job.spec.gpus > widest,
            unseen=lambda job: job.spec.gpus > offered,
            may_share=None if view.pairs.shares_hp else lambda job: not is_hp(job),
        )

    def _share_pass(self, view: View, event: ev.AnyEvent) -> Sequence[domain.AnyAction]:
        """What the sharing policy shares and parts, and nothing else: free devices are the order's to give. A
        job that takes no free device is within any budget."""
        share = self._sharing(view)
        if share is None:
            return ()
        seen = self._spot_view(view, EVERYTHING, set())
        placed: set[domain.JobId] = set()
        kept: list[domain.AnyAction] = []
        for action in share.decide(seen, event).actions:
            if isinstance(action, domain.Place):
                placed.add(action.job_id)
            elif not (isinstance(action, domain.Preempt) and action.for_job in placed):
                kept.append(action)
        return class_view.split_by_budget(view, kept, self.budgets(view, event))[0]

    def _sharing(self, view: View) -> Policy | None:
        """Returns the policy that shares, if one does here."""
        return self._share or (self._beside_hp if view.pairs.shares_hp else None)

    # --- The quota ---------------------------------------------------------------------------------

    def budgets(self, view: View, event: ev.AnyEvent | None = None) -> dict[str, class_view.Budget]:
        """Device type -> budget, as of now."""
        capacity = self._state.capacity
        if not capacity or isinstance(event, ev.FromHost):
            capacity = dict(capacity_of(view))
        anywhere = whole(view.hp.waiting, "")
        found = {}
        for type in view.free.types:
            free = view.free.total(type)
            waiting = anywhere + (whole(view.hp.waiting, type) if type else 0)
            if self.parameters.quota == "rise":
                rise = self._state.rise.get(type, 0)
                left = max(0, free - waiting - rise)
                found[type] = class_view.Budget(left, left, free, waiting, rise)
                continue
            total = capacity.get(type, 0)
            placed = whole(view.hp.placed, type)
            running = max(0, total - free - placed)
            demand = float(placed + waiting)
            known = self._state.forecast.get(type)
            reserved = known.reserved if known is not None else demand
            left_f = inventory(total, reserved)
            quota = spot_quota(left_f, self._state.eta, free, running)
            found[type] = class_view.Budget(max(0, quota - running), quota, int(left_f), waiting, 0)
        return found

    # --- Remembering -------------------------------------------------------------------------------

    def observe(self, view: View, event: ev.AnyEvent, decision: domain.Decision) -> None:
        state, parameters = self._state, self.parameters
        below = [action for action in decision.actions if action.reason.code not in OWN]
        theirs = decision if len(below) == len(decision.actions) else domain.Decision(actions=tuple(below))
        self._order.observe(view, event, theirs)
        if self._share is not None:
            self._share.observe(view, event, theirs)
        if decision.actions or not is_quiet(view, event):
            was_hp = any(
                is_hp(view.jobs.get(job_id)) for job_id in class_view.concerned_jobs(decision.actions)
            )
            if not view.queue:
                state.offered = EVERYTHING
            else:
                state.offered = 0 if was_hp else class_view.widest(self.budgets(view, event))
        for action in decision.actions:
            if isinstance(action, domain.Wake) and action.reason.code == "quota-update":
                state.wake_s = action.at_s
            elif action.reason.code == "next-class":
                state.passes = state.passes + 1 if state.passed_s == view.now_s else 1
                state.passed_s = view.now_s
            elif isinstance(action, domain.Compute) and action.reason.code == REASON:
                type = state.retraining.due(state.demand, self.parameters.retrain_h)
                state.retraining.was_asked(action, type or "", state.demand.hour)
        if isinstance(event, ev.Computed) and event.request_id == state.retraining.pending:
            self._take_training(view, event)
        state.note_event(view, event, decision)
        state.count_devices(view, event)
        if state.demand.see(view.now_s, view.hp.by_organisation):
            self._look_ahead(view)
        state.feed_back(view, parameters)

    def _take_training(self, view: View, event: ev.Computed) -> None:
        """Takes in the answer of a training. Without a model in it the one before stays in force."""
        retraining, why_not = self._state.retraining, event.error
        if not why_not:
            try:
                self._forecaster.use(retraining.pending_type, event.document or b"", view.now_s)
            except ValueError as problem:
                why_not = str(problem)
        retraining.was_answered(why_not)

    def _look_ahead(self, view: View) -> None:
        """A slot or an hour has ended."""
        state, parameters = self._state, self.parameters
        if parameters.quota == "rise":
            slots = state.demand.slots
            state.rise = {type: state.demand.rise(type, parameters.p, parameters.hours) for type in slots}
        if state.demand.slot % 6 == 0 or not state.forecast:
            state.forecast = self._forecaster.forecast(state.demand, view.now_s, view.began_hour)

    def explain(self, view: View, job: domain.Job) -> domain.Reason:
        if is_hp(job):
            return self._order.explain(self._hp_view(view), job)
        withheld = why_impossible(view, job) or self._why_withheld(view, job)
        if withheld is not None:
            return withheld
        if job.spec.gpus > self._state.offered and not job.aged:
            return domain.because("quota-update")
        return self._explain_order(view, job)

    def _why_withheld(self, view: View, job: domain.Job) -> domain.Reason | None:
        """Why the quota keeps a spot job waiting; None: it does not."""
        budgets = self.budgets(view)
        if not budgets or job.aged or job.spec.gpus <= class_view.widest(budgets):
            return None
        type = max(budgets, key=lambda each: (budgets[each].gpus, each))
        budget, hours = budgets[type], self.parameters.hours
        if self.parameters.quota == "rise":
            return domain.because(
                "quota-withheld",
                job.spec.gpus,
                budget.gpus,
                budget.inventory,
                budget.waiting,
                hours,
                budget.rise,
            )
        return domain.because(
            "quota-eta",
            job.spec.gpus,
            budget.gpus,
            budget.quota,
            budget.inventory,
            hours,
            self._state.eta,
        )

    def _explain_order(self, view: View, job: domain.Job) -> domain.Reason:
        return self._order.explain(self._spot_view(view, class_view.widest(self.budgets(view)), set()), job)

    def holds_back(self, view: View, job: domain.Job) -> bool:
        """Spot jobs keep to their quota, and off some hosts, whatever their priority. What the decision
        before this one offered them is no such rule: a new policy has offered nobody anything yet, and hp
        jobs that start leave no offer."""
        if is_hp(job) or why_impossible(view, job) is not None:
            return False
        withheld = self._why_withheld(view, job) or self._explain_order(view, job)
        return withheld.code in HELD_BACK

    def report(self, view: View) -> domain.ClassReport:
        """Reports to people what is kept back, and why."""
        state, waiting = self._state, sum(j.spec.gpus for j in view.queue.jobs_in_order() if not is_hp(j))
        capacity, pools = capacity_of(view), []
        for type, budget in sorted(self.budgets(view).items()):
            known, free = state.forecast.get(type), view.free.total(type)
            series = state.demand.hours.get(type, {}).values()
            pools.append(
                domain.PoolReport(
                    device_type=type,
                    capacity=capacity.get(type, 0),
                    free=free,
                    hp_placed=whole(view.hp.placed, type),
                    hp_waiting=budget.waiting,
                    spot_may_take=min(budget.gpus, free),
                    spot_waiting=waiting,
                    kept_back=max(0, free - budget.gpus),
                    forecast_median=tuple(known.median) if known is not None else (),
                    forecast_upper=tuple(known.upper) if known is not None else (),
                    forecast_note=self._note(type),
                    forecast_model=known.model if known is not None else "",
                    forecast_age_s=max(0.0, view.now_s - known.since_s) if known and known.model else None,
                    recent=tuple(map(sum, zip(*(each[-RECENT_H:] for each in series), strict=True))),
                )
            )
        return domain.ClassReport(
            guaranteed_h=float(self.parameters.hours),
            level=self.parameters.p,
            eta=state.eta if self.parameters.quota == "paper" else None,
            evicted=state.evictions.evicted,
            finished=state.evictions.finished,
            pools=tuple(pools),
        )

    def _note(self, type: str) -> str:
        """What people should know about a type's forecast."""
        state, known = self._state, self._state.forecast.get(type)
        if known is None:
            return "no hour has ended yet"
        if self.parameters.model or self.parameters.estimator != "forecast":
            return known.note
        of_training = state.retraining.note(state.demand, type, self.parameters)
        return "; ".join(filter(None, (known.note, of_training)))

    def take_over(self, before: Policy) -> None:
        """Takes over what the policy before it knows of demand."""
        if isinstance(before, Gfs):
            self._state.demand = before._state.demand
            self._state.retraining.requests = before._state.retraining.requests

    def save(self) -> bytes:
        return msgspec.msgpack.encode(
            SavedGfs(
                state=self._state,
                forecaster=self._forecaster.save(),
                order=self._order.save(),
                share=b"" if self._share is None else self._share.save(),
            )
        )

    def load(self, state: bytes) -> None:
        saved = msgspec.msgpack.decode(state, type=SavedGfs)
        self._state = saved.state
        self._forecaster.load(saved.forecaster)
        if not self.parameters.order:
            self._order = self._pts()
        self._order.load(saved.order)
        if self._share is not None:
            self._share.load(saved.share)


def _entry(name: str, group: str = COMPARED) -> PolicyEntry:
    def made(parameters: GfsParameters) -> Policy:
        return Gfs(name, parameters, registry.make)

    about, choose = ABOUT[name]
    return PolicyEntry(about, made, partial(GfsParameters.parse_variant, name), group=group, choose=choose)


GFS: Final = _entry("gfs", CLASSES)._replace(tools={"train": "python -m experiments.gfs.forecaster train"})
GFS_RISE: Final = _entry("gfs-rise", CLASSES)
GFS_E: Final = _entry("gfs-e")
GFS_D: Final = _entry("gfs-d")
GFS_S: Final = _entry("gfs-s")
GFS_P: Final = _entry("gfs-p")
GFS_SP: Final = _entry("gfs-sp")
"""The last five are gfs with one or two of its parts left out, as its paper judges them."""
