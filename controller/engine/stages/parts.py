"""Jobs that ask for a part of a device are put beside other parts, whatever the policy is. Pure.

Rule: a policy takes such a job for one of a whole device, and so gives it one that is free, or that others
leave for it. The engine then puts the job where it fits beside parts: on the divided device with the least
left that is enough (best fit; of equal ones where all are of its class). So a device is newly divided only if
no other has the part left. A job that the policy leaves waiting is put beside parts as well, in the order of
the queue, none behind an aged job that waits for devices: what it takes no whole job could have had.

The decision that is recorded says where every job went, so a recovery asks nothing of this.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Final

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.state.current_policy import CurrentPolicy
from cotenant.controller.engine.state.ledger import Ledger
from cotenant.controller.engine.state.phases import RareWish
from cotenant.controller.engine.state.placing import exceeds_hosts
from cotenant.controller.planning import HeldPart, first_aged, part_to_get, suits, why_no_part
from cotenant.controller.policies.base import is_quiet

LOOKAHEAD: Final = 256
"""Waiting jobs that are tried per event."""


class PartPlacing:
    """The stage that puts jobs that ask for a part beside others."""

    serves: RareWish = "part"
    remembers = False

    def __init__(self, ledger: Ledger, current: CurrentPolicy) -> None:
        self._ledger, self._current = ledger, current

    def revise(self, event: ev.AnyEvent, decision: domain.Decision) -> domain.Decision:
        """The decision, with every job that asks for a part moved to where it fits."""
        if self._current.traits.starts_nothing:
            return decision
        return place_parts(self._ledger, event, decision)


def place_parts(ledger: Ledger, event: ev.AnyEvent, decision: domain.Decision) -> domain.Decision:
    """The decision, with every job that asks for a part moved to where it fits."""
    if is_quiet(ledger, event):
        return decision
    fit, moved = BestFit(ledger), dict[domain.JobId, domain.Place]()
    for action in decision.actions:
        if isinstance(action, domain.Place):
            job = ledger.jobs.get(action.job_id)
            if job is None or job.phase is not domain.QUEUED or job.spec.gpu_fraction >= 1.0:
                continue
            beside = fit.place(job)
            if beside is not None:
                moved[job.job_id] = beside
            elif len(action.devices) == 1 and action.devices[0] in ledger.devices:
                fit.open(job, action.devices[0])
    placed = {action.job_id for action in decision.actions if isinstance(action, domain.Place)}
    joining = [
        beside
        for job in _waiting(ledger)
        if job.job_id not in placed and (beside := fit.place(job)) is not None
    ]
    if not moved and not joining:
        return decision
    actions = [_move(action, moved) for action in decision.actions if not _is_for(action, moved)]
    if moved:  # What was meant for them may be somebody else's.
        actions.append(domain.Wake(at_s=ledger.now_s, reason=domain.because("part-frees")))
    return domain.Decision(actions=(*actions, *joining))


def _move(action: domain.AnyAction, moved: dict[domain.JobId, domain.Place]) -> domain.AnyAction:
    return moved.get(action.job_id, action) if isinstance(action, domain.Place) else action


def _is_for(action: domain.AnyAction, moved: dict[domain.JobId, domain.Place]) -> bool:
    """Whether it makes room that is not needed."""
    return isinstance(action, domain.Preempt) and action.for_job in moved


def _waiting(ledger: Ledger) -> Iterator[domain.Job]:
    """Queued jobs that ask for parts, in the policy's order."""
    if not any(head.spec.gpu_fraction < 1.0 for head in ledger.queue.heads()):
        return
    aged = first_aged(ledger)
    for job in islice(
        (j for j in ledger.queue.jobs_in_order() if j.spec.gpu_fraction < 1.0 or j is aged), LOOKAHEAD
    ):
        if job.spec.gpu_fraction < 1.0:
            yield job
        if job is aged:
            return


class BestFit:
    """Divided devices, as they will be after the placements made here."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._added = defaultdict[domain.DeviceId, list[HeldPart]](list)

    def place(self, job: domain.Job) -> domain.Place | None:
        """Places the job beside other parts. None: no divided device has its part left."""
        best: tuple[float, bool, domain.DeviceId] | None = None
        for device_id in self._candidates(job):
            held = self._held_parts(device_id)
            if why_no_part(job, self._ledger.devices[device_id], held) is None and self._has_room(
                job, device_id
            ):
                left = 1.0 - sum(each.fraction for each in held)
                key = (round(left, 6), self._is_of_another_class(job, held), device_id)
                best = key if best is None else min(best, key)
        if best is None:
            return None
        left, _, device_id = best
        mine = self.open(job, device_id)
        why = domain.because("part-beside", mine.fraction, device_id, 1.0 - left)
        return domain.Place(job_id=job.job_id, devices=(device_id,), reason=why)

    def _has_room(self, job: domain.Job, device_id: domain.DeviceId) -> bool:
        """Whether its host has the cores and memory for the job: moved to where it is refused, the job would
        be asked about again for ever."""
        there = domain.Place(job_id=job.job_id, devices=(device_id,), reason=domain.because("part-frees"))
        return exceeds_hosts(self._ledger, there) is None

    def open(self, job: domain.Job, device_id: domain.DeviceId) -> HeldPart:
        """Gives the job its part of this device."""
        mine = part_to_get(job, self._ledger.devices[device_id])
        self._added[device_id].append(mine)
        return mine

    def _candidates(self, job: domain.Job) -> Iterator[domain.DeviceId]:
        """Divided devices on which the job could be; hosts of its last failures only if there is no other."""
        ledger = self._ledger
        scheduling_class = ledger.queue.class_of(job)
        found: dict[bool, list[domain.DeviceId]] = {False: [], True: []}
        for device_id in dict.fromkeys((*ledger.holdings.divided, *self._added)):
            device = ledger.devices[device_id]
            host = ledger.hosts[device.host_id]
            is_open = device.healthy and host.takes_work and ledger.holdings.claimed_by(device_id) is None
            if not is_open or not domain.is_type_for(scheduling_class.gpu_type, device.type):
                continue
            if suits(host, scheduling_class) and not self._is_being_left(device_id):
                found[host.host_id in job.avoid].append(device_id)
        return iter(found[False] or found[True])

    def _is_being_left(self, device_id: domain.DeviceId) -> bool:
        """Whether what was placed here waits until others have left a device that they had to themselves."""
        return device_id not in self._ledger.holdings.divided and bool(
            self._ledger.holdings.tenants(device_id)
        )

    def _held_parts(self, device_id: domain.DeviceId) -> list[HeldPart]:
        return [*self._ledger.holdings.parts(device_id), *self._added.get(device_id, ())]

    def _is_of_another_class(self, job: domain.Job, held: list[HeldPart]) -> bool:
        jobs, wanted = self._ledger.jobs, job.spec.job_class
        return any(jobs[each.job_id].spec.job_class != wanted for each in held)

    def why_not(self, job: domain.Job) -> list[domain.Reason]:
        """Why each divided device has no part for the job, the one with most left first."""
        found = []
        for device_id in self._candidates(job):
            held = self._held_parts(device_id)
            why = why_no_part(job, self._ledger.devices[device_id], held)
            if why is not None:
                found.append((sum(each.fraction for each in held), device_id, why))
        return [why for _, _, why in sorted(found, key=lambda each: each[:2])]


def why_waiting(ledger: Ledger, job: domain.Job) -> list[domain.Reason]:
    """Says of a job that waits for a part why none of the divided devices has it, or why the job gets no part
    at all."""
    if job.spec.gpu_fraction >= 1.0 or job.phase is not domain.QUEUED:
        return []
    reasons = BestFit(ledger).why_not(job)
    if not reasons:
        nowhere = [why_no_part(job, device, ()) for device in ledger.devices.values() if device.healthy]
        return [why for why in nowhere[:1] if why is not None and all(nowhere)]
    return [domain.because("part-waits", len(reasons), job.spec.gpu_fraction, domain.render(reasons[0]))]
