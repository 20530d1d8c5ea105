"""What is not done for a job that only runs to be measured. Pure.

Rule: such a job takes what is free. Whatever a policy says, nobody is preempted for it: neither the victim's
preemption nor the placement on its devices is carried out.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.controller.domain.actions import AnyAction, Place, Preempt
from cotenant.controller.domain.ids import DeviceId, JobId
from cotenant.controller.engine.ledger import Ledger


def spared(ledger: Ledger, actions: Sequence[AnyAction]) -> list[AnyAction]:
    """Those of a decision that would make room for a job that only runs to be measured."""
    measured = [each for each in actions if isinstance(each, Place) and _only_measured(ledger, each.job_id)]
    if not measured:
        return []
    wanted = {device_id for each in measured for device_id in each.devices}
    preempting = [
        each
        for each in actions
        if isinstance(each, Preempt) and not wanted.isdisjoint(_held_by(ledger, each.job_id))
    ]
    taken = {device_id for each in preempting for device_id in _held_by(ledger, each.job_id)}
    return [*preempting, *(each for each in measured if not taken.isdisjoint(each.devices))]


def _only_measured(ledger: Ledger, job_id: JobId) -> bool:
    job = ledger.jobs.get(job_id)
    return job is not None and job.spec.profiling == "only"


def _held_by(ledger: Ledger, job_id: JobId) -> tuple[DeviceId, ...]:
    job = ledger.jobs.get(job_id)
    return job.placement.devices if job is not None and job.placement is not None else ()
