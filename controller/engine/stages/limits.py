"""Limits: how many devices and jobs a user or an organisation may hold at once.

Rule: a job counts from the moment in which it may be given devices until it has left them. So
whatever a policy chooses from the queue stays within the limits, and it preempts no job for one that may not
run. What is over a limit waits outside the queue (blocked, with the reason), and joins it as soon as it fits,
the first in the policy's order before the others. An aged job is no exception.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from cotenant.controller.domain import (
    ON_DEVICES,
    QUEUED,
    RESERVED,
    Change,
    Job,
    JobId,
    JobLimit,
    JobSpec,
    LimitSettings,
    OrganisationSettings,
    Phase,
    Reason,
    because,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.state.dispatch import Dispatch

TAKES = ON_DEVICES | {QUEUED, RESERVED}
"""Phases in which a job counts."""
CODES = ("limit-devices", "limit-jobs")


class Owner(NamedTuple):
    """Whose jobs are counted together."""

    kind: Literal["user", "organisation", "class spot of organisation"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def owners_of(spec: JobSpec) -> Iterator[Owner]:
    if spec.user:
        yield Owner("user", spec.user)
    if spec.organisation:
        yield Owner("organisation", spec.organisation)


def quotas_of(organisations: Mapping[str, OrganisationSettings]) -> Mapping[str, int]:
    """Devices that jobs of class spot may hold, of the organisations that have such a quota."""
    return {name: each.quota_devices for name, each in organisations.items() if each.quota_devices}


def is_over_limit(job: Job) -> bool:
    return job.phase is Phase.BLOCKED and job.reason.code in CODES


class Limits:
    """Keeps jobs over a limit out of the queue."""

    def __init__(
        self,
        dispatch: Dispatch,
        settings: LimitSettings,
        organisations: Mapping[str, OrganisationSettings] | None = None,
    ) -> None:
        """Takes the limits of `settings` and the `organisations`: some have a quota of their own for their
        jobs of class spot."""
        self._dispatch, self._ledger, self._settings = dispatch, dispatch.ledger, settings
        self._quotas = quotas_of(organisations or {})
        self._taking: dict[Owner, dict[JobId, Job]] = {}
        """Jobs that count."""
        self._over: dict[Owner, dict[JobId, Job]] = {}
        """Jobs that are blocked for a limit."""
        self._owners: dict[JobId, tuple[Owner, ...]] = {}
        """The owners under whom each job counts."""

    def owners(self, spec: JobSpec) -> Iterator[Owner]:
        yield from owners_of(spec)
        if spec.job_class == "spot" and spec.organisation in self._quotas:
            yield Owner("class spot of organisation", spec.organisation)

    def admit(self, event: ev.AnyEvent, changed: list[Job]) -> None:
        """The phases of these jobs have changed: decides who may wait for devices now."""
        changed = list(changed)  # What is changed here joins them.
        left = [owner for job in changed for owner in self._note(job)]
        kept_out = [last for job in changed for last in self._make_fit(job)]
        owners = (owner for job in changed + kept_out for owner in self.owners(job.spec))
        for owner in dict.fromkeys((*owners, *left)):
            self._let_in(owner)

    def never(self, spec: JobSpec) -> Reason | None:
        """Why a job may never run, whatever ends."""
        for owner in self.owners(spec):
            most = self.limit(owner).devices
            if 0 < most < spec.size:
                return because("limit-never", spec.size, str(owner), most)
        return None

    def count_taken(self, owner: Owner) -> JobLimit:
        """Devices and jobs of an owner that count now."""
        taking = self._taking.get(owner, {})
        return JobLimit(devices=round(sum(job.devices_due for job in taking.values()), 6), jobs=len(taking))

    def check(self, job: Job, devices: float) -> Reason | None:
        """Why an elastic job may not be given so many, more than it counts for."""
        for owner in self.owners(job.spec) if devices > job.devices_due else ():
            most, taken = self.limit(owner).devices, self.count_taken(owner).devices
            would = round(taken + devices - job.devices_due, 6)
            if 0 < most < would:
                what = f"job {job.job_id}"
                return because("refused-limit", what, str(owner), most, would)
        return None

    def limit(self, owner: Owner) -> JobLimit:
        if owner.kind == "class spot of organisation":
            return JobLimit(self._quotas[owner.name], 0)
        return self._settings.limit_for(owner.kind, owner.name)

    def _note(self, job: Job) -> tuple[Owner, ...]:
        """Counts a job where it belongs now; returns the owners for whom it no longer counts."""
        job_id, over, owners = job.spec.job_id, is_over_limit(job), tuple(self.owners(job.spec))
        left = tuple(owner for owner in self._owners.pop(job_id, ()) if owner not in owners)
        if over or job.phase in TAKES:
            self._owners[job_id] = owners
        for owner in (*owners, *left):
            for index, belongs in ((self._taking, job.phase in TAKES), (self._over, over)):
                if belongs and owner not in left:
                    index.setdefault(owner, {})[job_id] = job
                elif owner in index:
                    index[owner].pop(job_id, None)
                    if not index[owner]:
                        del index[owner]
        return left

    def _why_not(self, job: Job) -> tuple[Owner, Reason] | None:
        """Which limit a job is over, together with all others that count."""
        for owner in self.owners(job.spec):
            most = self.limit(owner)
            if not (most.devices or most.jobs):
                continue
            taken, counts = self.count_taken(owner), job.spec.job_id in self._taking.get(owner, {})
            devices = round(taken.devices + (0 if counts else job.spec.size), 6)
            jobs = taken.jobs + (0 if counts else 1)
            if 0 < most.devices < devices:
                size = job.spec.size
                others = round(devices - size, 6)
                return owner, because("limit-devices", str(owner), most.devices, others, size)
            if 0 < most.jobs < jobs:
                return owner, because("limit-jobs", str(owner), most.jobs)
        return None

    def _make_fit(self, job: Job) -> Iterator[Job]:
        """A job has joined the queue. If that is too much, its owner's last jobs leave the queue: perhaps
        itself."""
        while job.phase is QUEUED and (why := self._why_not(job)) is not None:
            owner, reason = why
            waiting = [other for other in self._taking[owner].values() if other.phase is QUEUED]
            last = max(waiting, key=self._ledger.queue.order_key)
            self._ledger.phases.change(last, Change.BLOCK, reason)
            self._note(last)
            yield last

    def _let_in(self, owner: Owner) -> None:
        """Lets in jobs of the owner that were over a limit, if there is room now."""
        order_key = self._ledger.queue.order_key
        while True:
            most, taken = self.limit(owner), self.count_taken(owner)
            if 0 < most.devices <= taken.devices or 0 < most.jobs <= taken.jobs:
                return
            fitting = [job for job in self._over.get(owner, {}).values() if self._why_not(job) is None]
            if not fitting:
                return
            first = min(fitting, key=order_key)
            self._ledger.phases.change(first, Change.UNBLOCK, self._dispatch.submission_reason(first))
            self._note(first)
            self._dispatch.start_ageing(first)
