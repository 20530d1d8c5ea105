"""Fair share: who has used more than twice as much as another stands behind.

Rule: the waiting jobs of one name have one level, whether or not a limit keeps them out of the
queue, and all of them get a new one at once. So of one person's equal jobs the first to arrive stays first.

Rule: usage is device-seconds, decayed by half every `half_life_s`; a device with two tenants
counts half for each, a part of one for itself. Users stand in levels, a factor of two apart: somebody who has
used more than twice as much as another is behind them, and within a level the policy's own order holds.
Slurm's fair share weighs usage against age and size; here it comes before the policy, and only a priority
before it. The arithmetic is exact between changes: with `rate` devices held since `at_s`, usage at t is

    u(t) = u(at) d + rate (half_life / ln 2) (1 - d),   d = 2^-((t - at) / half_life)
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Final, Literal

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.stages.limits import is_over_limit
from cotenant.controller.engine.state.dispatch import Dispatch
from cotenant.controller.engine.state.ledger import DecayedUsage, Ledger
from cotenant.controller.engine.state.phases import RareWish

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


def level_of(job: domain.Job) -> int:
    """The level at which a job was last ranked."""
    return job.rank + job.spec.priority * LEVELS


def decayed_usage(account: DecayedUsage | None, half_life_s: float, now_s: float) -> float:
    """Device-seconds that an account has used, decayed by half every `half_life_s`; none yet: 0."""
    if account is None:
        return 0.0
    kept = math.exp2((account.at_s - now_s) / half_life_s)
    return account.device_s * kept + account.devices * (half_life_s / math.log(2)) * (1.0 - kept)


class FairShare:
    """Charges users for devices, and ranks waiting jobs by their usage."""

    serves: RareWish | None = None

    def __init__(self, dispatch: Dispatch, half_life_s: float, by: Literal["user", "organisation"]) -> None:
        self._dispatch, self._ledger = dispatch, dispatch.ledger
        self.by: Final = by
        self._half_life_s = half_life_s
        self._every_s = min(LOOK_S_MAX, max(LOOK_S_MIN, half_life_s / LOOKS_PER_HALF_LIFE))
        self._changes = 0
        self._waiting: dict[str, dict[domain.JobId, domain.Job]] = {}
        """Jobs in the queue, or kept out of it by a limit, by who is charged."""
        self._names: dict[domain.JobId, str] = {}
        """The name under which each of them waits."""
        self._levels: dict[str, int] = {}
        """The level at which the jobs of a name wait."""

    def name_of(self, job: domain.Job) -> str:
        """Who is charged for a job."""
        return job.spec.user if self.by == "user" else job.spec.organisation

    def usage(self, account: DecayedUsage | None, now_s: float) -> float:
        """Decayed device-seconds at this moment."""
        return decayed_usage(account, self._half_life_s, now_s)

    def settle(self) -> None:
        """Devices may have changed hands at this moment: what was held until now is charged."""
        ledger = self._ledger
        if ledger.holdings.changes == self._changes:
            return
        self._changes = ledger.holdings.changes
        held = defaultdict[str, float](float)
        for job in (*ledger.running.training, *ledger.running.loading, *ledger.running.leaving):
            assert job.placement is not None, f"job {job.job_id} is {job.phase}"
            here = [
                tenants
                for tenants in map(ledger.holdings.tenants, job.placement.devices)
                if job.job_id in tenants
            ]
            part = job.placement.fraction
            held[self.name_of(job)] += (
                sum(1.0 / len(each) for each in here) if part == 1.0 else part * len(here)
            )
        accounts, now_s = ledger.accounts, ledger.now_s
        for name in sorted({*held, *(name for name, account in accounts.items() if account.devices)}):
            used_s = self.usage(accounts.get(name), now_s)
            accounts[name] = DecayedUsage(device_s=used_s, at_s=now_s, devices=held.get(name, 0.0))

    def why_behind(self, ledger: Ledger, job: domain.Job, first: domain.Job) -> domain.Reason:
        """The reason for a job that somebody with less usage goes before."""
        mine, other = self.name_of(job), self.name_of(first)
        used_h, other_h = (
            self.usage(ledger.accounts.get(name), ledger.now_s) / 3600.0 for name in (mine, other)
        )
        return domain.because("fair-share", mine, used_h, other, other_h, first.job_id)

    def admit(self, event: ev.AnyEvent, changed: list[domain.Job]) -> None:
        """Ranks jobs that begin to wait, and from time to time all waiting jobs, since usage goes on."""
        ledger, now_s = self._ledger, self._ledger.now_s
        for job in changed:
            self._note(job)
        waiting = [job for job in changed if job.job_id in self._names]
        if ledger.rank_again_s is not None and now_s >= ledger.rank_again_s:
            ledger.rank_again_s = None
            self._levels.clear()
            waiting = [job for theirs in self._waiting.values() for job in theirs.values()]
        if ledger.rank_again_s is None and self._waiting:
            ledger.rank_again_s = now_s + self._every_s
            self._dispatch.wake_at(ledger.rank_again_s, "wake", "", 0)
        for job in waiting:
            name = self._names[job.job_id]
            if name not in self._levels:
                self._levels[name] = level(self.usage(ledger.accounts.get(name), now_s))
            ledger.records.rank(job, rank_of(job.spec.priority, self._levels[name]))

    def restore(self) -> None:
        """The ledger has taken over a saved state: the ranks in it say at which levels names wait."""
        for job in self._ledger.jobs.values():
            self._note(job)
            if job.job_id in self._names:
                self._levels[self._names[job.job_id]] = level_of(job)

    def _note(self, job: domain.Job) -> None:
        """Counts a job under the name that is charged for it, if it waits now."""
        job_id, name = job.job_id, self.name_of(job)
        before = self._names.pop(job_id, None)
        if before is not None:
            del self._waiting[before][job_id]
        if job.phase is domain.QUEUED or is_over_limit(job):
            self._names[job_id] = name
            self._waiting.setdefault(name, {})[job_id] = job
        if before is not None and not self._waiting[before]:
            del self._waiting[before]
            self._levels.pop(before, None)
