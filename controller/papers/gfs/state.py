"""What GFS remembers: demand, forecast, eta, evictions, and what spot jobs were offered last; and the quota
that follows from it: how many devices spot jobs may hold (section 3.3, eqs. 9 to 11, and ours by the rise
of demand).

Rule: only `observe` changes it, from the view after an event and the decision on it, so that recovery has the
same; a value that is saved whole.

Source of the quota: eq. 9 as its text has it: f = C - min(C, demand), 0 where demand exceeds C (printed with
max). Eq. 10: Q = min(f eta, S0 + Sa); Sa are all spot jobs that run: a run's promise begins with it. Departs
from eq. 11 in that eta stays within 0.1 to 2, that q = 1 - p stands where it prints p (it uses e as a rate
and p as the rate that it must not exceed; its text: the eviction rate must not exceed 1 - p), and in that
each factor is raised to the power interval / H: the evidence is that of H hours and is looked at every five
minutes; applied whole each time eta swings between its bounds.

Source of the evictions (how often spot jobs had to leave for hp jobs, where and when; and how many were let
finish): sections 3.3.2 (e and l of the past H hours), 3.4.2 (eq. 15: evictions of a node; F and G of eq. 18).
Departs from the paper: the waits of jobs that still wait count in l.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cotenant.controller.domain import (
    LEAVING,
    RUNNING,
    Decision,
    HostId,
    Job,
    JobId,
    Phase,
    Place,
    Preempt,
    Share,
)
from cotenant.controller.domain import events as ev
from cotenant.controller.papers.gfs.demand import DemandHistory
from cotenant.controller.papers.gfs.forecasting import PoolForecast, Retraining
from cotenant.controller.papers.gfs.parameters import GfsParameters
from cotenant.controller.planning import View

SHORT_S = 3600.0
LONG_S = 86_400.0
KEPT_MAX = 50_000


class Evictions(msgspec.Struct, kw_only=True):
    """Times of evictions and runs in seconds; the last is the newest."""

    evicted_s: list[float] = []
    finished_s: list[float] = []
    started: list[tuple[float, float]] = []
    """When spot jobs started, and how long they had waited."""
    on_host: dict[HostId, list[float]] = {}
    evicted: int = 0
    """F, since the beginning."""
    finished: int = 0
    """G."""

    def evict(self, now_s: float, hosts: Iterable[HostId]) -> None:
        self.evicted += 1
        self.evicted_s.append(now_s)
        for host_id in hosts:
            times_s = self.on_host.setdefault(host_id, [])
            times_s.append(now_s)
            del times_s[: bisect_right(times_s, now_s - LONG_S)]

    def finish(self, now_s: float) -> None:
        self.finished += 1
        self.finished_s.append(now_s)

    def start(self, now_s: float, waited_s: float) -> None:
        self.started.append((now_s, waited_s))

    def forget(self, before_s: float) -> None:
        """Forgets what lies before this time; nobody asks for it any more."""
        for times_s in (self.evicted_s, self.finished_s):
            del times_s[: max(bisect_right(times_s, before_s), len(times_s) - KEPT_MAX)]
        while self.started and (self.started[0][0] <= before_s or len(self.started) > KEPT_MAX):
            del self.started[0]
        for host_id, times_s in list(self.on_host.items()):
            if times_s[-1] <= before_s - LONG_S:
                del self.on_host[host_id]

    def rate(self, since_s: float) -> float:
        """e: evictions / runs that ended; 0 where none did."""
        evicted = len(self.evicted_s) - bisect_right(self.evicted_s, since_s)
        finished = len(self.finished_s) - bisect_right(self.finished_s, since_s)
        return evicted / (evicted + finished) if evicted + finished else 0.0

    def longest_wait_s(self, since_s: float) -> float:
        return max((waited_s for at_s, waited_s in self.started if at_s > since_s), default=0.0)

    def of_host(self, host_id: HostId, now_s: float, gamma: float, long_h: float) -> float:
        """Eq. 15."""
        times_s = self.on_host.get(host_id)
        if not times_s:
            return 0.0
        short = len(times_s) - bisect_right(times_s, now_s - SHORT_S)
        long = len(times_s) - bisect_right(times_s, now_s - LONG_S)
        return gamma * short + (1.0 - gamma) * long / long_h


ETA_MIN: Final = 0.1
ETA_MAX: Final = 2.0


def inventory(capacity: int, demand: float) -> float:
    """f(p, H): what is left of the capacity when the demand comes true."""
    return capacity - min(float(capacity), demand)


def spot_quota(inventory_gpus: float, eta: float, idle: int, running: int) -> int:
    """Q of eq. 10."""
    return int(min(inventory_gpus * eta, idle + running))


def next_eta(eta: float, *, rate: float, p: float, wait_s: float, theta_s: float, power: float) -> float:
    """Eq. 11."""
    q = 1.0 - p
    if rate > 1.5 * q:
        factor = q / rate
    elif rate < 0.5 * q and wait_s > theta_s:
        factor = 1.5 - rate / q
    else:
        return eta
    return float(min(ETA_MAX, max(ETA_MIN, eta * factor**power)))


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
    checkpoints_s: dict[JobId, float] = {}
    """Running spot job -> when its last checkpoint became durable."""
    wake_s: float = -1.0
    """The wake-up for which the quota has asked."""
    offered: int = 0
    """The order has seen spot jobs of at most so many devices; wider ones are withheld."""
    passed_s: float = -1.0
    passes: int = 0
    """How many passes followed one another at that moment."""

    def happened(self, view: View, event: ev.AnyEvent, decision: Decision) -> None:
        """Takes in evictions, starts, ends and checkpoints."""
        now_s, jobs = view.now_s, view.jobs
        for action in decision.actions:
            job = jobs.get(action.job_id) if isinstance(action, Preempt | Place | Share) else None
            if job is None:
                continue
            if isinstance(action, Preempt):
                if job.phase in LEAVING and is_hp(jobs.get(action.for_job) if action.for_job else None):
                    self.evictions.evict(now_s, sorted(set(job.hosts_left)))
            elif job.spec.job_class == "spot" and job.placement is not None:
                self.evictions.start(now_s, job.wait_s)
        if isinstance(event, ev.AttemptEnded):
            job = jobs.get(event.job_id)
            self.checkpoints_s.pop(event.job_id, None)
            if (
                job is not None
                and job.phase is Phase.DONE
                and job.spec.job_class == "spot"
                and job.ended_s == now_s
            ):
                self.evictions.finish(now_s)
        elif isinstance(event, ev.CheckpointDurable):
            job = jobs.get(event.job_id)
            if job is not None and job.phase is RUNNING and job.preemptible:
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


def is_hp(job: Job | None) -> bool:
    return job is not None and job.spec.job_class == "hp"


def longest_wait_s(view: View) -> float:
    """Of spot jobs that wait."""
    return max(
        (
            job.wait_s + view.now_s - job.phase_since_s
            for job in view.queued()
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
