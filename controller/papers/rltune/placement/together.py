"""Any order, with the placements of its first waiting jobs chosen together.

Rule: the policy decides who starts. It is asked twice: as it is, and with the placements that a solver chose
for the first waiting jobs in its order, which `Plan.find_free` then gives them. The second answer counts only
if everybody starts who starts in the first, nobody more is preempted and nobody more shares; else the first
one does.

So a solver that finds nothing within its limit changes nothing; and both answers are ordinary decisions,
recorded as such: recovery asks no solver.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, cast

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.rltune.placement import candidates, program
from cotenant.controller.planning import HostType, Plan, SchedulingClass, View, is_possible
from cotenant.controller.policies.base import Policy, Traits, is_quiet, waiting_in_order
from cotenant.controller.policies.entries import PlacementRule

JOBS_MAX: Final = 10
LOOKED_AT_MAX: Final = 256
"""Waiting jobs, to find those that fit."""
ChosenDevices = Mapping[domain.JobId, tuple[domain.DeviceId, ...]]


def why_not(policy: Policy, library: str = program.LIBRARY) -> str:
    """Why a policy cannot be used with this; empty if it can."""
    if policy.traits.places_by_itself:
        return f"{policy.name} places jobs by a rule of its own, not by best fit"
    if importlib.util.find_spec(library) is None:
        return (
            f'it is solved with {library}, which is not installed: pip install ".[milp]" in the source folder'
        )
    return ""


class PlacedTogether:
    """A policy, and a solver for its placements."""

    def __init__(self, policy: Policy, solver: program.Solver | None = None) -> None:
        self.inner, self.name = policy, policy.name
        self._solver = solver if solver is not None else program.Highs()

    @property
    def traits(self) -> Traits:
        """The traits of the policy that decides."""
        return self.inner.traits

    def queue_key(self, job: domain.Job) -> tuple[float, ...]:
        return self.inner.queue_key(job)

    def decide(self, view: View, event: ev.AnyEvent) -> domain.Decision:
        first = self.inner.decide(view, event)
        if len(view.queue) < 2 or not view.free.everywhere or is_quiet(view, event):
            return first
        chosen = self._choose(view, event, first)
        if not chosen:
            return first
        second = self.inner.decide(cast(View, _ChosenView(view, chosen)), event)
        return _add_reasons(second, chosen) if is_no_worse(second, first) else first

    def observe(self, view: View, event: ev.AnyEvent, decision: domain.Decision) -> None:
        self.inner.observe(view, event, decision)

    def explain(self, view: View, job: domain.Job) -> domain.Reason:
        return self.inner.explain(view, job)

    def save(self) -> bytes:
        return self.inner.save()

    def load(self, state: bytes) -> None:
        self.inner.load(state)

    def _choose(self, view: View, event: ev.AnyEvent, first: domain.Decision) -> ChosenDevices:
        """Places for several jobs that are better than those of best fit; empty: there are none."""
        plan = Plan(view)
        places = candidates.free_places(plan)
        if sum(here.free > 0 for here in places.values()) < 2:
            return {}  # Nobody has a choice.
        groups, following = groups_of(
            plan, places, waiting_in_order(self.inner, view, event), first, self._is_strict
        )
        if sum(len(each.jobs) for each in groups) < 2 or all(len(each.choices) == 1 for each in groups):
            return {}
        found = self._solver.solve(program.PlacementProblem(groups, places, following))
        if found is None or is_best_fit(groups, found.picked):
            return {}
        return devices_of(plan, groups, found.picked)

    @property
    def _is_strict(self) -> bool:
        """Whether nobody passes a job that does not fit, or only who does not delay it."""
        return getattr(getattr(self.inner, "parameters", None), "backfill", "any") != "any"


def groups_of(
    plan: Plan,
    places: Mapping[HostType, candidates.FreePlace],
    ordered: Iterable[domain.Job],
    first: domain.Decision,
    is_strict: bool,
) -> tuple[Sequence[candidates.JobGroup], SchedulingClass | None]:
    """The first waiting jobs that best fit starts on what is free, or that would find devices were they
    alone; and the class of the next one, if there is one."""
    view, started = plan.view, starts_on_free(plan.view, first)
    placed = {
        action.job_id for action in first.actions if isinstance(action, domain.Place | domain.Share)
    } - started.keys()
    found = dict[tuple[SchedulingClass, Sequence[domain.HostId]], candidates.JobGroup]()
    count, is_blocked, may_pass = 0, False, not is_strict
    for job in islice(ordered, LOOKED_AT_MAX):
        devices, key = started.get(job.job_id, ()), (view.queue.class_of(job), job.avoid)
        if not devices and (is_blocked or job.job_id in placed):
            continue
        if key not in found:
            found[key] = candidates.JobGroup(key[0], [], candidates.choices_of(plan, places, job), {})
        group = found[key]
        if devices:
            group = found[key] = _count_best_fit(group, candidates.choice_of(view, devices))
        if group.choices:
            if count == JOBS_MAX:
                return [each for each in found.values() if each.jobs], key[0]
            found[key] = group._replace(
                jobs=[*group.jobs, candidates.Waiting(job, count, bool(devices), may_pass)]
            )
            count += 1
        if not devices and (is_strict or job.aged) and is_possible(view, job):
            is_blocked, may_pass = not group.choices, False
    return [each for each in found.values() if each.jobs], None


def _count_best_fit(group: candidates.JobGroup, choice: candidates.HostMix) -> candidates.JobGroup:
    """Counts one more job of the group on best fit's choice."""
    choices = group.choices if choice in group.choices else [choice, *group.choices]
    return group._replace(
        choices=choices, best_fit={**group.best_fit, choice: group.best_fit.get(choice, 0) + 1}
    )


def is_best_fit(groups: Sequence[candidates.JobGroup], picked: Mapping[program.Taking, int]) -> bool:
    """Whether the solution equals best fit's."""
    theirs = {(n, choice): count for n, each in enumerate(groups) for choice, count in each.best_fit.items()}
    return theirs == picked


def starts_on_free(view: View, decision: domain.Decision) -> dict[domain.JobId, tuple[domain.DeviceId, ...]]:
    """Who starts at once, and where."""
    return {
        action.job_id: action.devices
        for action in decision.actions
        if isinstance(action, domain.Place)
        and not any(view.holdings.tenants(device_id) for device_id in action.devices)
    }


def devices_of(
    plan: Plan, groups: Sequence[candidates.JobGroup], picked: Mapping[program.Taking, int]
) -> ChosenDevices:
    """Devices for the choices: who needs most memory of a device first, so that those who need less do not
    take what only these can use. Empty: they cannot all have them."""
    found: dict[domain.JobId, tuple[domain.DeviceId, ...]] = {}
    for number in sorted(range(len(groups)), key=lambda n: (-groups[n].scheduling_class.memory_mib, n)):
        group, trial = groups[number], plan.fork()
        choices = [choice for (of, choice), count in picked.items() if of == number for _ in range(count)]
        must = [each.job for each in group.jobs if each.must_start]
        more = [each.job for each in group.jobs if not each.must_start]
        for job, choice in zip([*must, *more], choices, strict=False):
            devices: list[domain.DeviceId] = []
            for (host_id, type), count in choice:
                fitting = trial.fitting(host_id, type, group.scheduling_class)
                if len(fitting) < count:
                    return {}
                devices += fitting[:count]
            trial.suppose_placed(job, tuple(devices))
            found[job.job_id] = tuple(devices)
        plan = trial
    return found


def is_no_worse(second: domain.Decision, first: domain.Decision) -> bool:
    """Everybody starts who would start; nobody more is preempted, shares, or is given other devices."""

    def started(decision: domain.Decision) -> set[domain.JobId]:
        return {
            action.job_id for action in decision.actions if isinstance(action, domain.Place | domain.Share)
        }

    def count(decision: domain.Decision, kind: type) -> int:
        return sum(isinstance(action, kind) for action in decision.actions)

    return started(second) >= started(first) and all(
        count(second, kind) <= count(first, kind) for kind in (domain.Preempt, domain.Share, domain.Resize)
    )


def _add_reasons(decision: domain.Decision, chosen: ChosenDevices) -> domain.Decision:
    """Returns the decision in which the reason of each start at a chosen place says so."""
    places = [action for action in decision.actions if isinstance(action, domain.Place)]
    moved = {action.job_id for action in places if chosen.get(action.job_id) == action.devices}
    actions = tuple(
        msgspec.structs.replace(
            action, reason=domain.because("placed-together", domain.render(action.reason), len(moved) - 1)
        )
        if isinstance(action, domain.Place) and action.job_id in moved and len(moved) > 1
        else action
        for action in decision.actions
    )
    return domain.Decision(actions=actions)


class _ChosenView:
    """The view, with places that were chosen beforehand."""

    def __init__(self, view: View, chosen: ChosenDevices) -> None:
        self._view, self.chosen = view, chosen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


MILP: Final = PlacementRule(PlacedTogether, why_not)
