"""Devices of idle jobs are lent to others, whatever the policy is, until the idle job works again. Pure.

Rule: devices are lent only to jobs that can be asked to leave them: of class spot, and known to resume. What
the policy leaves waiting is tried in the order of the queue. All that holds for sharing holds here (memory,
faults, users under MPS), but that the policy shares, and the idle job's own `--share never`.

The decision that is recorded says where every job went, so a recovery asks nothing of this.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import Final

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.state import placing
from cotenant.controller.engine.state.current_policy import CurrentPolicy
from cotenant.controller.engine.state.ledger import Ledger
from cotenant.controller.engine.state.phases import RareWish
from cotenant.controller.planning import why_alone
from cotenant.controller.policies.base import is_quiet

LENT: Final = "beside-idle"
"""Code of the reason of a placement beside an idle job."""
LOOKAHEAD: Final = 256
"""Waiting jobs that are tried per event."""


class Lending:
    """The stage that lends devices of idle jobs, and asks for them back."""

    serves: RareWish = "idle"
    remembers = False

    def __init__(self, ledger: Ledger, current: CurrentPolicy) -> None:
        self._ledger, self._current = ledger, current

    def revise(self, event: ev.AnyEvent, decision: domain.Decision) -> domain.Decision:
        """The decision, with jobs put beside idle ones, or asked to leave one that works again."""
        if type(event) is ev.IdleSeen and event.since_s is None:
            return self._take_back(event.job_id, event.attempt, decision)
        if type(event) is ev.SpecChanged and "idle" in event.changes:
            return self._take_back(event.job_id, None, decision)
        if self._current.traits.starts_nothing or is_quiet(self._ledger, event):
            return decision
        placed = {each.job_id for each in decision.actions if isinstance(each, domain.Place | domain.Share)}
        taken = {
            d
            for each in decision.actions
            if isinstance(each, domain.Place | domain.Share)
            for d in each.devices
        }
        gone = {each.job_id for each in decision.actions if isinstance(each, domain.Preempt)}
        free = self._lent(taken, gone)
        lent: list[domain.Share] = []
        for job in islice(self._ledger.queue.jobs_in_order(), LOOKAHEAD if free else 0):
            share = self._find(job, free) if job.job_id not in placed else None
            if share is not None:
                lent.append(share)
                for devices in free.values():
                    devices[:] = [each for each in devices if each not in share.devices]
        return domain.Decision(actions=(*decision.actions, *lent)) if lent else decision

    def _lent(
        self, taken: set[domain.DeviceId], gone: set[domain.JobId]
    ) -> dict[domain.HostId, list[domain.DeviceId]]:
        """Devices of idle jobs, by host, on which nobody else is or is to be."""
        ledger, found = self._ledger, defaultdict[domain.HostId, list[domain.DeviceId]](list)
        for job in ledger.running.training:
            if job.lends and job.placement is not None and job.job_id not in gone:
                for device_id in job.placement.devices:
                    if device_id not in taken and len(ledger.holdings.tenants(device_id)) == 1:
                        found[ledger.holdings.host_of(device_id)].append(device_id)
        return found

    def _find(self, job: domain.Job, free: dict[domain.HostId, list[domain.DeviceId]]) -> domain.Share | None:
        """Devices of one host for a waiting job; None: there are none for it."""
        count = job.spec.gpus_min
        if not job.preemptible or job.spec.gpu_fraction < 1.0 or job.spec.nodes > 1:
            return None
        if job.spec.profiling == "only":
            return None  # Beside another it would measure both.
        for devices in free.values():
            for at in range(len(devices) - count + 1):
                wanted = tuple(devices[at : at + count])
                idle = dict.fromkeys(t for each in wanted for t in self._ledger.holdings.tenants(each))
                reason = domain.because(LENT, " and ".join(idle))
                share = domain.Share(job_id=job.job_id, devices=wanted, reason=reason)
                if placing.check(self._ledger, share) is None:
                    return share
        return None

    def _take_back(
        self, job_id: domain.JobId, attempt: domain.AttemptNo | None, decision: domain.Decision
    ) -> domain.Decision:
        """Who was put beside the job because it was idle leaves, unless the policy might have done that.
        `attempt`: None: whichever it is."""
        ledger, job = self._ledger, self._ledger.jobs.get(job_id)
        if job is None or attempt not in (None, job.attempt.number) or job.placement is None:
            return decision
        alone = why_alone(job) is not None
        if self._current.traits.shares and not alone:
            return decision
        asked = {each.job_id for each in decision.actions if isinstance(each, domain.Preempt)}
        leave = [
            domain.Preempt(job_id=other.job_id, reason=domain.because("idle-works", job.job_id))
            for other in map(ledger.jobs.__getitem__, ledger.holdings.partners(job))
            if other.job_id not in asked
            and other.preemptible
            and other.phase in (domain.Phase.LOADING, domain.RUNNING)
            if alone or (other.placement is not None and other.placement.reason.code == LENT)
        ]
        return domain.Decision(actions=(*decision.actions, *leave)) if leave else decision
