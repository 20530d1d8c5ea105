"""What a policy sees: the cluster, read-only, at no cost.

Rule: a view is the ledger's own indexes read-only. Nothing is copied; a policy that wants
to try something out does so on a `Plan`, which overlays the view.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from cotenant.controller.domain import (
    Device,
    DeviceId,
    Host,
    HostId,
    Job,
    JobId,
    JobSpec,
    ResumeCounts,
    room_left,
)
from cotenant.controller.performance import Interference, ShareBound


class SchedulingClass(msgspec.Struct, frozen=True, order=True):
    """The conditions that a placement must satisfy. Waiting jobs of one class can stand in for each other, so
    the ledger keeps one ordered queue per class, and a policy that fails for one job of a class need not try
    the others."""

    gpus: int
    nodes: int
    gpu_type: str
    features: tuple[str, ...]
    memory_mib: int
    domain: str
    """Where its checkpoint can be read; empty = anywhere."""
    not_hosts: tuple[HostId, ...]
    """Hosts that lack its working directory."""
    fraction: float
    cpus: int = 0
    """Cores on each of its hosts."""
    host_memory_mib: int = 0
    stay_s: int = 0
    """How long a host must stay at least; here and below 0 as long as no host is known to go away and nothing
    is reserved."""
    undisturbed_s: int = 0
    """How long it must have its devices once it has begun; 0: it can be asked to leave them at any time."""
    user: str = ""
    """Whose it is, where that user has reserved devices."""

    @property
    def asks_hosts(self) -> bool:
        """Whether it needs any cores or main memory of a host."""
        return self.cpus > 0 or self.host_memory_mib > 0


def scheduling_class_of(job: Job) -> SchedulingClass:
    """The scheduling class of a job as it waits now."""
    newest = job.newest_checkpoint if job.progress.checkpoints else None
    return scheduling_class_of_spec(job.spec, newest.domain if newest else "", job.workdir_missing)


def staying_class_of(job: Job) -> SchedulingClass:
    """The scheduling class of a job where hosts go away or devices are reserved: its load and its save must
    fit in before that, and all of it if it cannot be preempted."""
    stay_s = ceil(job.estimate.load_s + job.estimate.pause_s)
    undisturbed_s = min(ENDLESS_S, ceil(hard_s(job, 0.0)))
    return msgspec.structs.replace(scheduling_class_of(job), stay_s=stay_s, undisturbed_s=undisturbed_s)


ENDLESS_S: Final = 1e9
"""What a job needs that has no time limit and cannot be preempted."""


def hard_s(job: Job, now_s: float, *, is_apart: bool = False) -> float:
    """How long a job may still hold its devices whatever anybody wants; 0: it can be asked to leave them.
    `is_apart`: its hosts would not see each other's checkpoints, so that it cannot resume."""
    if job.preemptible and job.spec.promised_s is None and not is_apart:
        return 0.0
    limit_left_s = job.limit_left_s(now_s)
    return ENDLESS_S if limit_left_s is None else limit_left_s + job.estimate.pause_s


class KeptFrom(NamedTuple):
    """From when on a device is reserved for a user's jobs."""

    from_s: float
    """`LENT`: it is, and its owner does not use it."""
    user: str

    def bars(self, scheduling_class: SchedulingClass, now_s: float) -> bool:
        """Whether a job of the class may not have the device now."""
        if scheduling_class.user == self.user:
            return False
        needs_s = scheduling_class.undisturbed_s
        if self.from_s == LENT:
            return needs_s > 0
        return now_s + (needs_s or scheduling_class.stay_s) > self.from_s


def is_barred(
    kept: Mapping[DeviceId, tuple[KeptFrom, ...]],
    device_id: DeviceId,
    scheduling_class: SchedulingClass,
    now_s: float,
) -> bool:
    """Whether a reservation keeps jobs of the class from a device."""
    return device_id in kept and any(each.bars(scheduling_class, now_s) for each in kept[device_id])


LENT: Final = -1.0


def scheduling_class_of_spec(
    spec: JobSpec, domain: str = "", not_hosts: tuple[HostId, ...] = ()
) -> SchedulingClass:
    """The scheduling class of a job as submitted."""
    container = spec.launch.container
    return SchedulingClass(
        spec.gpus_min,
        spec.nodes,
        spec.gpu_type,
        spec.features if container is None else (*spec.features, container.feature),
        spec.memory_mib or 0,
        domain,
        not_hosts,
        spec.gpu_fraction,
        spec.cpus,
        spec.host_memory_mib,
    )


def suits(host: Host, scheduling_class: SchedulingClass) -> bool:
    """Whether a host, were it empty, may run a job of this class, leaving its devices aside."""
    if scheduling_class.domain and host.checkpoint_domain != scheduling_class.domain:
        return False
    if scheduling_class.not_hosts and host.host_id in scheduling_class.not_hosts:
        return False
    if host.left_s < scheduling_class.stay_s:
        return False
    cpus, memory_mib = scheduling_class.cpus, scheduling_class.host_memory_mib
    if (cpus or memory_mib) and not room_left(host.report, ()).holds(cpus, memory_mib):
        return False
    return not scheduling_class.features or set(scheduling_class.features) <= set(host.report.features)


class FreeHosts(Protocol):
    """Hosts that can take work, by how many of their devices of one type are free."""

    @property
    def types(self) -> Sequence[str]: ...

    @property
    def everywhere(self) -> int:
        """Free devices of all types on all hosts."""

    def most(self, type: str) -> int:
        """The greatest number of free devices on one host."""

    def total(self, type: str) -> int:
        """Free devices on all hosts."""

    def hosts_with_free(self, type: str, count: int) -> Iterable[HostId]:
        """Hosts with exactly `count` free devices, in host order."""

    def tightest(self, type: str, gpus: int) -> HostId | None:
        """Finds, of the hosts with at least so many free devices, the one with the fewest, ties in host
        order."""

    @property
    def devices(self) -> Mapping[tuple[HostId, str], Sequence[DeviceId]]:
        """A host's free devices of a type, in device order; of every host and type, mostly none."""


class HpDemand(Protocol):
    """Devices that jobs of class hp ask for; a part of one counts as such."""

    @property
    def waiting(self) -> Mapping[str, float]:
        """Demand of queued jobs, by the type that they ask for (empty: any)."""

    @property
    def placed(self) -> Mapping[str, float]:
        """Demand of jobs that have devices or a reservation, by type."""

    @property
    def by_organisation(self) -> Mapping[tuple[str, str], float]:
        """The sum of placed and waiting demand, by type and organisation."""


class QueueView(Protocol):
    """Waiting jobs, in the policy's order."""

    def __len__(self) -> int:
        """The number of jobs that wait."""

    def heads(self) -> Iterator[Job]:
        """The first job of each scheduling class."""

    def jobs_of_class(self, scheduling_class: SchedulingClass) -> Sequence[Job]:
        """The jobs of one class."""

    def jobs_in_order(self) -> Iterator[Job]:
        """All of them, merged lazily."""

    def newcomers(self) -> Sequence[Job]:
        """The jobs that did not wait before this event."""

    def class_of(self, job: Job) -> SchedulingClass:
        """`scheduling_class_of(job)`, remembered for jobs that wait."""

    def order_key(self, job: Job) -> tuple[Any, ...]:
        """The key of where a waiting job stands: aged jobs first, then by rank, then the policy's key, then
        arrival."""


class RunningView(Protocol):
    """Jobs that hold devices."""

    @property
    def training(self) -> Sequence[Job]:
        """RUNNING jobs by predicted end, which is also the order of their remaining time now as long as each
        runs alone: nothing has to be sorted again as time passes. Of two equal ones the first to arrive
        stands last; unknown ends are last of all. Cheap from both sides (`reversed`)."""

    @property
    def loading(self) -> Sequence[Job]:
        """LOADING jobs by remaining time, which does not move while they load; ties as in `training`."""

    @property
    def leaving(self) -> Collection[Job]:
        """CHECKPOINTING and STOPPING jobs, in no order."""

    @property
    def paced(self) -> Mapping[int, Job]:
        """The jobs, by number, that are RUNNING and go slower or faster than alone at the whole batch; only
        they may stand elsewhere in the order of remaining time than in the order of ends."""

    def jobs_by_end(self) -> Sequence[Job]:
        """All of them, by predicted end; unknown ends are last."""


class HoldingsView(Protocol):
    """A view of who has which device."""

    def tenants(self, device_id: DeviceId) -> Sequence[JobId]:
        """Jobs that hold the device now, leaving ones included."""

    def claimed_by(self, device_id: DeviceId) -> JobId | None:
        """The reserved job that gets the device next, if any."""

    def claimants(self) -> Sequence[JobId]:
        """Reserved jobs, in order of arrival."""

    def shareable(self) -> Sequence[DeviceId]:
        """Healthy devices with one tenant (leaving or not), no claim and room for another, in order."""

    def asking_on(self, host_id: HostId) -> Sequence[Job]:
        """Jobs that ask for cores or main memory and have processes on the host, or a claim on devices of
        it; by arrival."""


class PairsView(Protocol):
    """How much jobs slow each other."""

    @property
    def shares_hp(self) -> bool:
        """Whether jobs of class hp may have a co-tenant under policies with classes, within a bound."""

    def bound_of(self, job: Job) -> ShareBound:
        """What sharing may cost the job."""

    def interference(self, first: Job, second: Job) -> Interference:
        """The best known ratios for a pair, with their source."""

    def expect(self, first: Job, second: Job) -> Interference:
        """The ratios that would be assumed of the pair had it never been observed."""

    def interferences(self, jobs: Sequence[Job], partners: Sequence[Job]) -> Sequence[Sequence[Interference]]:
        """`interference` of each of these beside each of those, in the time of a few asked for alone."""


class ResumesView(Protocol):
    """How resumes have come out, by kind of job: one user's command and code."""

    def counts(self, job: Job) -> ResumeCounts:
        """Those of the job's kind."""

    def others(self, job: Job) -> ResumeCounts:
        """Those of jobs that differ from it in numbers only."""

    @property
    def kinds(self) -> int:
        """The number of kinds that were ever resumed and showed what came of it."""

    @property
    def kinds_refuted(self) -> int:
        """The kinds of them that did not go on as they were left."""


class SizesView(Protocol):
    """A view of what hosts could hold."""

    def ever(self, scheduling_class: SchedulingClass) -> int:
        """Most devices a job of this class could ever get on the hosts known, drained ones included."""

    def now(self, scheduling_class: SchedulingClass) -> int:
        """The most devices that a job of this class could get on the hosts that take new work at present,
        were they empty."""

    def on_host(self, scheduling_class: SchedulingClass, type: str) -> int:
        """Most healthy devices of a type on one host that is neither lost nor drained, busy or not: above
        this a gang is spread."""


class View(Protocol):
    """The cluster at one moment."""

    @property
    def now_s(self) -> float:
        """Seconds since the journal began."""

    @property
    def began_hour(self) -> int:
        """The hour, counted from 1970, in which the journal's time began; 0: not known."""

    @property
    def jobs(self) -> Mapping[JobId, Job]:
        """All jobs that are remembered, ended ones included."""

    @property
    def hosts(self) -> Mapping[HostId, Host]:
        """All hosts that have joined."""

    @property
    def devices(self) -> Mapping[DeviceId, Device]:
        """All devices of these hosts."""

    @property
    def queue(self) -> QueueView:
        """The queue of jobs that wait."""

    @property
    def running(self) -> RunningView:
        """The jobs that hold devices."""

    @property
    def holdings(self) -> HoldingsView:
        """Who has which device, and who gets it next."""

    @property
    def free(self) -> FreeHosts:
        """Which devices are free."""

    @property
    def pairs(self) -> PairsView:
        """How much jobs slow each other."""

    @property
    def resumes(self) -> ResumesView:
        """How resumes have come out, by kind of job."""

    @property
    def sizes(self) -> SizesView:
        """What hosts could hold, were they empty."""

    @property
    def hp(self) -> HpDemand:
        """What jobs of class hp ask for."""

    @property
    def kept(self) -> Mapping[DeviceId, tuple[KeptFrom, ...]]:
        """Devices that will be reserved for one user's jobs, or that such a user has lent; those that are
        reserved now count as unhealthy."""

    def is_followed(self, job: Job) -> bool:
        """Whether another task of its array waits for the place that it has (`--array 0-9%2`)."""

    @property
    def chosen(self) -> Mapping[JobId, tuple[DeviceId, ...]]:
        """Where waiting jobs go if these devices are free when they are asked, because somebody has looked
        at several of them together; empty: each goes where `Plan.find_free` says."""
