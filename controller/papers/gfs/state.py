"""What GFS remembers: demand, forecast, eta, evictions, and what spot jobs were offered last.

Rule: only `observe` changes it, from the view after an event and the decision on it, so that recovery has the
same; a value that is saved whole.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from cotenant.controller import domain
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.gfs.demand import DemandHistory
from cotenant.controller.papers.gfs.evictions import Evictions
from cotenant.controller.papers.gfs.forecasting import PoolForecast, Retraining
from cotenant.controller.papers.gfs.parameters import GfsParameters
from cotenant.controller.papers.gfs.quota import next_eta
from cotenant.controller.planning import View

INTERVALS_MAX = 12
"""After a pause without events, at most so many updates are made up for."""


class GfsState(msgspec.Struct, kw_only=True):
    demand: DemandHistory = msgspec.field(default_factory=DemandHistory)
    evictions: Evictions = msgspec.field(default_factory=Evictions)
    capacity: dict[str, int] = {}
    """Healthy devices of hosts that take work, by type."""
    forecast: dict[str, PoolForecast] = {}
    retraining: Retraining = msgspec.field(default_factory=Retraining)
    rise: dict[str, int] = {}
    eta: float = 1.0
    eta_due_s: float = 0.0
    checkpoints_s: dict[domain.JobId, float] = {}
    """Running spot job -> when its last checkpoint became durable."""
    wake_s: float = -1.0
    """The wake-up for which the quota has asked."""
    offered: int = 0
    """The order has seen spot jobs of at most so many devices; wider ones are withheld."""
    passed_s: float = -1.0
    passes: int = 0
    """How many passes followed one another at that moment."""

    def note_event(self, view: View, event: ev.AnyEvent, decision: domain.Decision) -> None:
        """Takes in evictions, starts, ends and checkpoints."""
        now_s, jobs = view.now_s, view.jobs
        for action in decision.actions:
            job = (
                jobs.get(action.job_id)
                if isinstance(action, domain.Preempt | domain.Place | domain.Share)
                else None
            )
            if job is None:
                continue
            if isinstance(action, domain.Preempt):
                if job.phase in domain.LEAVING and is_hp(
                    jobs.get(action.for_job) if action.for_job else None
                ):
                    self.evictions.evict(now_s, sorted(set(job.attempt.hosts_left)))
            elif job.spec.job_class == "spot" and job.placement is not None:
                self.evictions.start(now_s, job.spent.wait_s)
        if isinstance(event, ev.AttemptEnded):
            job = jobs.get(event.job_id)
            self.checkpoints_s.pop(event.job_id, None)
            if (
                job is not None
                and job.phase is domain.Phase.DONE
                and job.spec.job_class == "spot"
                and job.ended_s == now_s
            ):
                self.evictions.finish(now_s)
        elif isinstance(event, ev.CheckpointDurable):
            job = jobs.get(event.job_id)
            if job is not None and job.phase is domain.RUNNING and job.preemptible:
                self.checkpoints_s[event.job_id] = now_s

    def feed_back(self, view: View, parameters: GfsParameters) -> None:
        """Updates eta, as often as it is due by now."""
        now_s, every_s = view.now_s, parameters.interval_s
        if now_s < self.eta_due_s:
            return
        hours_s = 3600.0 * parameters.hours
        first_s = max(self.eta_due_s, now_s - INTERVALS_MAX * every_s)
        for number in range(int((now_s - first_s) // every_s) + 1) if parameters.feedback else ():
            since_s = first_s + number * every_s - hours_s
            self.eta = next_eta(
                self.eta,
                rate=self.evictions.rate(since_s),
                p=parameters.p,
                wait_s=max(self.evictions.longest_wait_s(since_s), longest_wait_s(view)),
                theta_s=parameters.theta_s,
                power=every_s / hours_s,
            )
        self.eta_due_s = (now_s // every_s + 1) * every_s
        self.evictions.forget(now_s - hours_s - INTERVALS_MAX * every_s)

    def count_devices(self, view: View, event: ev.AnyEvent) -> None:
        """Drops the count when a host reports; counts anew at the next other event."""
        if isinstance(event, ev.FromHost | ev.PolicyChanged):
            self.capacity = {}
        elif not self.capacity:
            self.capacity = dict(capacity_of(view))


def is_hp(job: domain.Job | None) -> bool:
    return job is not None and job.spec.job_class == "hp"


def longest_wait_s(view: View) -> float:
    """The longest wait of the spot jobs that wait, in seconds."""
    return max(
        (
            job.spent.wait_s + view.now_s - job.phase_since_s
            for job in view.queue.jobs_in_order()
            if job.spec.job_class == "spot"
        ),
        default=0.0,
    )


def capacity_of(view: View) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for device in view.devices.values():
        host = view.hosts.get(device.host_id)
        if device.healthy and host is not None and host.takes_work:
            found[device.type] = found.get(device.type, 0) + 1
    return found
