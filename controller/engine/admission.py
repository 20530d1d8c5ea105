"""Who may wait for devices, and before whom: fair share ranks jobs, then limits of users and organisations
admit them in that order, before any policy is asked.

Rule: where neither is configured, this module does nothing. Both follow from the state and the time alone, so
that recovery arrives at the same; a controller with other settings admits by those.

Rule of limits: a job counts from the moment in which it may be given devices until it has left them. So
whatever a policy chooses from the queue stays within the limits, and it preempts no job for one that may not
run. What is over a limit waits outside the queue (blocked, with the reason), and joins it as soon as it fits,
the first in the policy's order before the others. An aged job is no exception.

Rule of ranks: the waiting jobs of one name have one level, whether or not a limit keeps them out of the
queue, and all of them get a new one at once. So of one person's equal jobs the first to arrive stays first.

Rule of fair share: usage is device-seconds, decayed by half every `half_life_s`; a device with two tenants
counts half for each, a part of one for itself. Users stand in levels, a factor of two apart: somebody who has
used more than twice as much as another is behind them, and within a level the policy's own order holds.
Slurm's fair share weighs usage against age and size; here it comes before the policy, and only a priority
before it. The arithmetic is exact between changes: with `rate` devices held since `at_s`, usage at t is

    u(t) = u(at) d + rate (half_life / ln 2) (1 - d),   d = 2^-((t - at) / half_life)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from cotenant.controller.domain import (
    ENDED,
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
from cotenant.controller.engine.dispatch import Dispatch, EngineConfig
from cotenant.controller.engine.ledger import DecayedUsage, Ledger

USERS_SHOWN: Final = 5


class Admission:
    """Fair share ranks, then limits admit the first in that order."""

    def __init__(self, dispatch: Dispatch, config: EngineConfig) -> None:
        half_life_s = config.policy.fair_share_half_life_s
        self._dispatch, self._ledger, self._config = dispatch, dispatch.ledger, config
        self.fair_share = FairShare(half_life_s, config.policy.fair_share_by) if half_life_s else None
        limited = config.limits.any or quotas_of(config.organisations)
        self.limits = Limits(config.limits, config.organisations) if limited else None
        if self.fair_share is not None or self.limits is not None:
            self._ledger.entered = []

    def admit(self) -> list[Job]:
        """After an event: decides who may wait for devices now, and in which order.

        Returns the jobs whose phase the event and this have changed."""
        ledger = self._ledger
        if ledger.entered is None:
            return []
        changed, ledger.entered = ledger.entered, []
        if self.fair_share is not None:
            self.fair_share.rank(self._dispatch, changed)
        if self.limits is not None:
            self.limits.admit(self._dispatch, changed)
        changed, ledger.entered = [*changed, *ledger.entered], []
        return changed

    def never(self, spec: JobSpec) -> Reason | None:
        """Why a job would be over a limit all by itself."""
        return None if self.limits is None else self.limits.never(spec)

    def explain(self, job: Job) -> list[Reason]:
        """Who is before a queued job, and because of whom it waits, beyond what its policy says."""
        ledger = self._ledger
        found: list[Reason] = []
        first = next(ledger.heads(), None)
        if first is not None and not first.aged and first.rank < job.rank:
            if first.spec.priority > job.spec.priority:
                found.append(because("priority", first.job_id, first.spec.priority, job.spec.priority))
            elif self.fair_share is not None:
                found.append(self.fair_share.why_behind(ledger, job, first))
        held: dict[str, int] = {}
        for other in ledger.on_devices():
            user = other.spec.user or "somebody"
            held[user] = held.get(user, 0) + len(other.placement.devices if other.placement else ())
        if held.keys() - {job.spec.user}:
            most_first = sorted(held.items(), key=lambda each: (-each[1], each[0]))
            shown = [f"{user} ({devices})" for user, devices in most_first[:USERS_SHOWN]]
            more = len(held) - len(shown)
            found.append(because("held-by-users", ", ".join(shown) + (f" and {more} more" if more else "")))
        return found

    def restore(self) -> None:
        """The ledger has taken over a saved state, perhaps one of other settings."""
        ledger = self._ledger
        if self.limits is None and any(is_over_limit(job) for job in ledger.jobs.values()):
            self.limits, ledger.entered = Limits(self._config.limits), []  # It lets them all in.
        if ledger.entered is not None:
            ledger.entered = [job for job in ledger.jobs.values() if job.phase not in ENDED]
        if self.fair_share is not None:
            self.fair_share.restore(ledger)
        else:
            ledger.rank_again_s = None
            for job in list(ledger.queued()):
                ledger.rank(job, rank_of(job.spec.priority))


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
        self, settings: LimitSettings, organisations: Mapping[str, OrganisationSettings] | None = None
    ) -> None:
        """`organisations`: some have a quota of their own for their jobs of class spot."""
        self._settings = settings
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

    def admit(self, dispatch: Dispatch, changed: Iterable[Job]) -> None:
        """The phases of these jobs have changed: decides who may wait for devices now."""
        changed = list(changed)
        left = [owner for job in changed for owner in self._note(job)]
        kept_out = [last for job in changed for last in self._make_fit(dispatch, job)]
        owners = (owner for job in changed + kept_out for owner in self.owners(job.spec))
        for owner in dict.fromkeys((*owners, *left)):
            self._let_in(dispatch, owner)

    def never(self, spec: JobSpec) -> Reason | None:
        """Why a job may never run, whatever ends."""
        for owner in self.owners(spec):
            most = self.limit(owner).devices
            if 0 < most < spec.size:
                return because("limit-never", spec.size, str(owner), most)
        return None

    def taken(self, owner: Owner) -> JobLimit:
        """Devices and jobs of an owner that count now."""
        taking = self._taking.get(owner, {})
        return JobLimit(devices=round(sum(job.devices_due for job in taking.values()), 6), jobs=len(taking))

    def check(self, job: Job, devices: float) -> Reason | None:
        """Why an elastic job may not be given so many, more than it counts for."""
        for owner in self.owners(job.spec) if devices > job.devices_due else ():
            most, taken = self.limit(owner).devices, self.taken(owner).devices
            would = round(taken + devices - job.devices_due, 6)
            if 0 < most < would:
                what = f"job {job.job_id}"
                return because("refused-limit", what, str(owner), most, would)
        return None

    def limit(self, owner: Owner) -> JobLimit:
        if owner.kind == "class spot of organisation":
            return JobLimit(self._quotas[owner.name], 0)
        return self._settings.of(owner.kind, owner.name)

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
            taken, counts = self.taken(owner), job.spec.job_id in self._taking.get(owner, {})
            devices = round(taken.devices + (0 if counts else job.spec.size), 6)
            jobs = taken.jobs + (0 if counts else 1)
            if 0 < most.devices < devices:
                size = job.spec.size
                others = round(devices - size, 6)
                return owner, because("limit-devices", str(owner), most.devices, others, size)
            if 0 < most.jobs < jobs:
                return owner, because("limit-jobs", str(owner), most.jobs)
        return None

    def _make_fit(self, dispatch: Dispatch, job: Job) -> Iterator[Job]:
        """A job has joined the queue. If that is too much, its owner's last jobs leave the queue: perhaps
        itself."""
        while job.phase is QUEUED and (why := self._why_not(job)) is not None:
            owner, reason = why
            waiting = [other for other in self._taking[owner].values() if other.phase is QUEUED]
            last = max(waiting, key=dispatch.ledger.order_key)
            dispatch.ledger.change(last, Change.BLOCK, reason)
            self._note(last)
            yield last

    def _let_in(self, dispatch: Dispatch, owner: Owner) -> None:
        """Lets in jobs of the owner that were over a limit, if there is room now."""
        order_key = dispatch.ledger.order_key
        while True:
            most, taken = self.limit(owner), self.taken(owner)
            if 0 < most.devices <= taken.devices or 0 < most.jobs <= taken.jobs:
                return
            fitting = [job for job in self._over.get(owner, {}).values() if self._why_not(job) is None]
            if not fitting:
                return
            first = min(fitting, key=order_key)
            dispatch.ledger.change(first, Change.UNBLOCK, dispatch.submitted(first))
            self._note(first)
            dispatch.start_ageing(first)


LEVELS: Final = 64
"""Up to one device-second is level 0; each level is twice the one before."""
LOOKS_PER_HALF_LIFE: Final = 64.0
LOOK_S_MIN, LOOK_S_MAX = 1.0, 300.0


def level(device_s: float) -> int:
    """The level of a usage: where one usage is more than twice another, its level is higher."""
    return 0 if device_s <= 1.0 else min(LEVELS - 1, 1 + math.floor(math.log2(device_s)))


def rank_of(priority: int, level: int = 0) -> int:
    """Where a job stands before the policy's order counts: by priority, then by level."""
    return level - priority * LEVELS


def level_of(job: Job) -> int:
    """The level at which a job was last ranked."""
    return job.rank + job.spec.priority * LEVELS


class FairShare:
    """Charges users for devices, and ranks waiting jobs by their usage."""

    def __init__(self, half_life_s: float, by: Literal["user", "organisation"]) -> None:
        self.by: Final = by
        self._half_life_s = half_life_s
        self._every_s = min(LOOK_S_MAX, max(LOOK_S_MIN, half_life_s / LOOKS_PER_HALF_LIFE))
        self._changes = 0
        self._waiting: dict[str, dict[JobId, Job]] = {}
        """Jobs in the queue, or kept out of it by a limit, by who is charged."""
        self._names: dict[JobId, str] = {}
        """The name under which each of them waits."""
        self._levels: dict[str, int] = {}
        """The level at which the jobs of a name wait."""

    def name_of(self, job: Job) -> str:
        """Who is charged for a job."""
        return job.spec.user if self.by == "user" else job.spec.organisation

    def usage(self, account: DecayedUsage | None, now_s: float) -> float:
        """Decayed device-seconds at this moment."""
        if account is None:
            return 0.0
        kept = math.exp2((account.at_s - now_s) / self._half_life_s)
        return account.device_s * kept + account.devices * (self._half_life_s / math.log(2)) * (1.0 - kept)

    def settle(self, ledger: Ledger) -> None:
        """Devices may have changed hands at this moment: what was held until now is charged."""
        if ledger.holdings.changes == self._changes:
            return
        self._changes = ledger.holdings.changes
        held = defaultdict[str, float](float)
        for job in (*ledger.running(), *ledger.loading(), *ledger.leaving()):
            assert job.placement is not None, f"job {job.job_id} is {job.phase}"
            here = [
                tenants for tenants in map(ledger.tenants, job.placement.devices) if job.job_id in tenants
            ]
            part = job.placement.fraction
            held[self.name_of(job)] += (
                sum(1.0 / len(each) for each in here) if part == 1.0 else part * len(here)
            )
        accounts, now_s = ledger.accounts, ledger.now_s
        for name in sorted({*held, *(name for name, account in accounts.items() if account.devices)}):
            used_s = self.usage(accounts.get(name), now_s)
            accounts[name] = DecayedUsage(device_s=used_s, at_s=now_s, devices=held.get(name, 0.0))

    def why_behind(self, ledger: Ledger, job: Job, first: Job) -> Reason:
        """The reason for a job that somebody with less usage goes before."""
        mine, other = self.name_of(job), self.name_of(first)
        used_h, other_h = (
            self.usage(ledger.accounts.get(name), ledger.now_s) / 3600.0 for name in (mine, other)
        )
        return because("fair-share", mine, used_h, other, other_h, first.job_id)

    def rank(self, dispatch: Dispatch, changed: Iterable[Job]) -> None:
        """Ranks jobs that begin to wait, and from time to time all waiting jobs, since usage goes on."""
        ledger, now_s = dispatch.ledger, dispatch.ledger.now_s
        changed = list(changed)
        for job in changed:
            self._note(job)
        waiting = [job for job in changed if job.job_id in self._names]
        if ledger.rank_again_s is not None and now_s >= ledger.rank_again_s:
            ledger.rank_again_s = None
            self._levels.clear()
            waiting = [job for theirs in self._waiting.values() for job in theirs.values()]
        if ledger.rank_again_s is None and self._waiting:
            ledger.rank_again_s = now_s + self._every_s
            dispatch.wake_at(ledger.rank_again_s, "wake", "", 0)
        for job in waiting:
            name = self._names[job.job_id]
            if name not in self._levels:
                self._levels[name] = level(self.usage(ledger.accounts.get(name), now_s))
            ledger.rank(job, rank_of(job.spec.priority, self._levels[name]))

    def restore(self, ledger: Ledger) -> None:
        """The ledger has taken over a saved state: the ranks in it say at which levels names wait."""
        for job in ledger.jobs.values():
            self._note(job)
            if job.job_id in self._names:
                self._levels[self._names[job.job_id]] = level_of(job)

    def _note(self, job: Job) -> None:
        """Counts a job under the name that is charged for it, if it waits now."""
        job_id, name = job.job_id, self.name_of(job)
        before = self._names.pop(job_id, None)
        if before is not None:
            del self._waiting[before][job_id]
        if job.phase is QUEUED or is_over_limit(job):
            self._names[job_id] = name
            self._waiting.setdefault(name, {})[job_id] = job
        if before is not None and not self._waiting[before]:
            del self._waiting[before]
            self._levels.pop(before, None)
