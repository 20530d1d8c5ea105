"""Beside whom `cotenant` may put a waiting job, and what it expects of pairs that were never observed.

Rule: the forecast for a pair never observed is the mean of the default speed and each kind's own record, only
where nothing is known of the pair itself. Observations, a trained model's prediction and the duty cycles of
the two all come before the record that a kind of job has beside others. Beside a job that names a bound the
pair is tried: whatever comes, the bound is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Final

import msgspec
import numpy as np

from cotenant.controller.domain import DeviceId, Job, Reason, because
from cotenant.controller.performance import DEFAULT_XI, Interference
from cotenant.controller.planning import SchedulingClass, peak_mib
from cotenant.controller.policies.castor.cost import CostSlots
from cotenant.controller.policies.sharing import Mask, Ratios, SubBatch

LIMIT_MIB_MIN: Final = 512
"""A job of unknown memory is not limited to less: hardly any training with torch fits into that."""


class RecordSlots(CostSlots):
    """Slots of a plan, with ratios by record; jobs of unknown length share as well.

    A pair that was never measured is tried where the partner names a bound, which the newcomer's pace keeps.
    A newcomer of unknown memory is then limited to what the partner leaves. Such a partner tries one newcomer
    at a time.
    """

    guesses = True

    def admission_mask(self, job: Job) -> Mask:
        """Not beside a task whose place the next one of its array takes, if the job was preempted before."""
        mask = super().admission_mask(job)
        if job.counts.preemptions:
            mask &= ~np.array([self._view.is_followed(slot.partner) for slot in self.everything()], np.bool_)
        return mask

    def why_not_again(self, job: Job, partner: Job) -> Reason | None:
        if job.counts.preemptions and self._view.is_followed(partner):
            return because("sharing-followed", partner.job_id)
        return super().why_not_again(job, partner)

    def pairs(self, jobs: Sequence[Job], partners: Sequence[Job]) -> list[list[Interference]]:
        found = super().pairs(jobs, partners)
        bounded = [self._names_bound(partner) for partner in partners]
        return [
            list(row if self._names_bound(job) else map(expect, row, bounded))
            for job, row in zip(jobs, found, strict=True)
        ]

    def batches_of(self, job: Job) -> tuple[SubBatch, ...]:
        found = super().batches_of(job)
        if found or peak_mib(job, 1) is not None or not self._has_bounded:
            return found
        return (SubBatch(1, job.batch_size or 0, LIMIT_MIB_MIN, 1.0),)

    def may_limit(self, job: Job, partner: Job) -> bool:
        return self._names_bound(partner) and self.interference(job, partner).trial is not None

    def ratios(self, jobs: Sequence[Job], classes: Sequence[SchedulingClass]) -> Ratios:
        found = super().ratios(jobs, classes)
        for row, job in enumerate(jobs):
            if peak_mib(job, 1) is None:
                found.allowed[row] &= [self.may_limit(job, slot.partner) for slot in self.everything()]
        return found

    def take(self, taken: tuple[DeviceId, ...]) -> None:
        joined = {self[self._at[device_id]].partner.number for device_id in taken if device_id in self._at}
        super().take(taken)
        for slot in self:
            if slot.partner.number in joined and self._names_bound(slot.partner):
                super().take(slot.devices)

    def _needs_mib(self, partner: Job) -> int:
        placed, needed = partner.placement, super()._needs_mib(partner)
        if not needed or placed is None or len(placed.devices) == 1 or not self._names_bound(partner):
            return needed
        staying = {job_id for device_id in placed.devices for job_id in self._plan.staying(device_id)}
        for job_id in sorted(staying - {partner.job_id}):
            if self._view.pairs.interference(partner, self._view.jobs[job_id]).trial is not None:
                self.closed = because("sharing-trial", partner.job_id, job_id)
                return 0
        return needed

    def _names_bound(self, job: Job) -> bool:
        return self._view.pairs.bound_of(job).is_own

    @cached_property
    def _has_bounded(self) -> bool:
        return any(self._names_bound(slot.partner) for slot in self.everything())


def expect(xi: Interference, is_bounded: bool) -> Interference:
    """The ratios of a pair whose second job may name a bound. A record knows nothing of bounds."""
    if not is_bounded:
        return record_ratios(xi)
    if xi.trial is None:
        return xi
    return msgspec.structs.replace(xi, first=xi.trial[0], second=xi.trial[1], over_bound=False)


def record_ratios(xi: Interference) -> Interference:
    """Replaces a pair's ratios, unless the pair itself is known or neither kind has a record."""
    if xi.source != "default" or (xi.first_speed is None and xi.second_speed is None):
        return xi
    return msgspec.structs.replace(xi, first=ratio(xi.first_speed), second=ratio(xi.second_speed))


@lru_cache(maxsize=1024)
def ratio(speed: float | None) -> float:
    """The interference ratio of a kind with this mean speed beside others."""
    return DEFAULT_XI if speed is None else 2.0 / (1.0 / DEFAULT_XI + speed)
