"""Limits: how many devices and jobs a user or an organisation may hold at once.

Rule: a job counts from the moment in which it may be given devices until it has left them. So a policy
preempts no job for one that may not run. What is over a limit waits outside the queue (blocked, with the
reason), and joins it as soon as it fits, the first in the policy's order before the others. An aged job is no
exception.

A waiting job that finds no devices now, such as one that a reservation keeps off them, keeps no other job of
its owner from idle devices: one that could start at once joins the queue beside it. Then more may wait than
may run, so the engine asks again for each start (`check`): what runs is within the limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.state.dispatch import Dispatch
from cotenant.controller.planning import Plan, SchedulingClass

TAKES = domain.ON_DEVICES | {domain.QUEUED, domain.RESERVED}
"""Phases in which a job counts."""
CODES = ("limit-devices", "limit-jobs")


class Owner(NamedTuple):
    """Whose jobs are counted together."""

    kind: Literal["user", "organisation", "class spot of organisation"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def owners_of(spec: domain.JobSpec) -> Iterator[Owner]:
    if spec.user:
        yield Owner("user", spec.user)
    if spec.organisation:
        yield Owner("organisation", spec.organisation)


def quotas_of(organisations: Mapping[str, domain.OrganisationSettings]) -> Mapping[str, int]:
    """Devices that jobs of class spot may hold, of the organisations that have such a quota."""
    return {name: each.quota_devices for name, each in organisations.items() if each.quota_devices}


def is_over_limit(job: domain.Job) -> bool:
    return job.phase is domain.Phase.BLOCKED and job.reason.code in CODES


class Limits:
    """Keeps jobs over a limit out of the queue."""

    def __init__(
        self,
        dispatch: Dispatch,
        settings: domain.LimitSettings,
        organisations: Mapping[str, domain.OrganisationSettings] | None = None,
    ) -> None:
        """Takes the limits of `settings` and the `organisations`: some have a quota of their own for their
        jobs of class spot."""
        self._dispatch, self._ledger, self._settings = dispatch, dispatch.ledger, settings
        self._quotas = quotas_of(organisations or {})
        self._taking: dict[Owner, dict[domain.JobId, domain.Job]] = {}
        """Jobs that count."""
        self._over: dict[Owner, dict[domain.JobId, domain.Job]] = {}
        """Jobs that are blocked for a limit."""
        self._owners: dict[domain.JobId, tuple[Owner, ...]] = {}
        """The owners under whom each job counts."""
        self._changes, self._looked = 0, (-1, 0)
        """Phase changes seen; how many they were, and how many devices free, when nobody was found who could
        start."""
        self._finds: dict[SchedulingClass, bool] = {}
        """Whether a job of the class finds free devices, as of this event."""

    def owners(self, spec: domain.JobSpec) -> Iterator[Owner]:
        yield from owners_of(spec)
        if spec.job_class == "spot" and spec.organisation in self._quotas:
            yield Owner("class spot of organisation", spec.organisation)

    def admit(self, event: ev.AnyEvent, changed: list[domain.Job]) -> None:
        """The phases of these jobs have changed: decides who may wait for devices now."""
        changed = list(changed)  # What is changed here joins them.
        left = [owner for job in changed for owner in self._note(job)]
        kept_out = [last for job in changed for last in self._make_fit(job)]
        owners = (owner for job in changed + kept_out for owner in self.owners(job.spec))
        for owner in dict.fromkeys((*owners, *left)):
            self._let_in(owner)
        self._changes += len(changed)
        free = self._ledger.free.everywhere
        if self._over and free and self._looked != (self._changes, free):
            self._finds.clear()
            for owner in list(self._over):
                self._let_in(owner, now=True)
            self._looked = (self._changes, free)

    def never(self, spec: domain.JobSpec) -> domain.Reason | None:
        """Why a job may never run, whatever ends."""
        for owner in self.owners(spec):
            most = self.limit(owner).devices
            if 0 < most < spec.size:
                return domain.because("limit-never", spec.size, str(owner), most)
        return None

    def count_taken(self, owner: Owner, *, now: bool = False) -> domain.JobLimit:
        """Devices and jobs of an owner that count. `now`: without those that wait and find no devices."""
        taking = self._taking.get(owner, {}).values()
        counted = [
            job for job in taking if not now or job.phase is not domain.QUEUED or self._finds_devices(job)
        ]
        return domain.JobLimit(devices=round(sum(job.devices_due for job in counted), 6), jobs=len(counted))

    def check(self, job: domain.Job, devices: float) -> domain.Reason | None:
        """Why a job may not be given so many devices beside those that its owners' other jobs hold."""
        for owner in self.owners(job.spec):
            most, taking = self.limit(owner), self._taking.get(owner, {}).values()
            held = [each for each in taking if each.phase is not domain.QUEUED and each is not job]
            would = round(sum(each.devices_due for each in held) + devices, 6)
            what = f"job {job.job_id}"
            if 0 < most.devices < would:
                return domain.because("refused-limit", what, str(owner), most.devices, would)
            if 0 < most.jobs <= len(held):
                return domain.because("refused-limit-jobs", what, str(owner), most.jobs)
        return None

    def why_over(self, job: domain.Job) -> domain.Reason | None:
        """Why a job is blocked for a limit, as of now."""
        over = self._why_not(job)
        return None if over is None else over[1]

    def limit(self, owner: Owner) -> domain.JobLimit:
        if owner.kind == "class spot of organisation":
            return domain.JobLimit(self._quotas[owner.name], 0)
        return self._settings.limit_for(owner.kind, owner.name)

    def _note(self, job: domain.Job) -> tuple[Owner, ...]:
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

    def _finds_devices(self, job: domain.Job) -> bool:
        """Whether enough devices are free for a waiting job."""
        scheduling_class = self._ledger.queue.class_of(job)
        if scheduling_class not in self._finds:
            self._finds[scheduling_class] = Plan(self._ledger).find_free(job) is not None
        return self._finds[scheduling_class]

    def _why_not(self, job: domain.Job, *, now: bool = False) -> tuple[Owner, domain.Reason] | None:
        """Which limit a job is over, together with all others that count. `now`: of a job that finds devices,
        together with those that hold theirs or find some."""
        for owner in self.owners(job.spec):
            most = self.limit(owner)
            if not (most.devices or most.jobs):
                continue
            taken, counts = self.count_taken(owner, now=now), job.spec.job_id in self._taking.get(owner, {})
            devices = round(taken.devices + (0 if counts else job.spec.size), 6)
            jobs = taken.jobs + (0 if counts else 1)
            if 0 < most.devices < devices:
                size = job.spec.size
                others = round(devices - size, 6)
                return owner, domain.because("limit-devices", str(owner), most.devices, others, size)
            if 0 < most.jobs < jobs:
                return owner, domain.because("limit-jobs", str(owner), most.jobs)
        return None

    def _make_fit(self, job: domain.Job) -> Iterator[domain.Job]:
        """A job counts that may not have. If that is too much, its owner's last jobs leave the queue: perhaps
        itself."""
        while job.phase in TAKES and (over := self._why_not(job)) is not None:
            waiting = [other for other in self._taking[over[0]].values() if other.phase is domain.QUEUED]
            if not waiting:
                return
            last = max(waiting, key=self._ledger.queue.order_key)
            _, reason = self._why_not(last) or over
            self._ledger.phases.change(last, domain.Change.BLOCK, reason)
            self._note(last)
            yield last

    def _let_in(self, owner: Owner, *, now: bool = False) -> None:
        """Lets in jobs of the owner that were over a limit, if there is room. `now`: those that could start
        now, beside jobs that wait and could not."""
        order_key = self._ledger.queue.order_key
        while True:
            most, taken = self.limit(owner), self.count_taken(owner, now=now)
            if 0 < most.devices <= taken.devices or 0 < most.jobs <= taken.jobs:
                return
            over = self._over.get(owner, {}).values()
            found = (job for job in over if not now or self._finds_devices(job))
            fitting = [job for job in found if self._why_not(job, now=now) is None]
            if not fitting:
                return
            first = min(fitting, key=order_key)
            self._ledger.phases.change(first, domain.Change.UNBLOCK, self._dispatch.submission_reason(first))
            self._note(first)
            self._dispatch.start_ageing(first)
