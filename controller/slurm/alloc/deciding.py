"""What is asked of Slurm now, what is given back, and why nothing more: pure, and always with the reason.

Rule: a host is asked for only when a job that could run now fits no free host, none that is asked for already
and none that becomes free soon. A request that no job needs any more is taken back, and an idle host is given
back. Jobs that wait for other jobs, are held or are over a limit of ours ask for nothing, and neither do jobs
that no host of this shape could run. Until the first host has shown that it is as declared, and after every
failure, there is one request at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Final, NamedTuple

import msgspec

from cotenant.controller.domain import (
    Allocation,
    AllocationQueue,
    Allocations,
    HostId,
    HostShape,
    JobId,
    JobSpec,
    SeenShape,
)
from cotenant.controller.planning import SchedulingClass, scheduling_class_of_spec

BACK_OFF_S: Final = 30.0
"""After the first failure; doubles with each."""
BACK_OFF_S_MAX: Final = 3600.0
SOON_S: Final = 60.0
"""Devices that become free within this time need not be asked for: Slurm takes as long."""
LOOKED_AT_MAX: Final = 1_000
"""Waiting jobs that are considered; those beyond hardly change how many hosts are asked for."""
SUBMITTED_AT_ONCE_MAX: Final = 10
JOBS_NAMED: Final = 3
COMING: Final = ("submitting", "pending", "starting")


class WaitingJob(NamedTuple):
    """A job that could run now, if it had devices."""

    job_id: JobId
    wants: SchedulingClass


class HostSpace(msgspec.Struct, kw_only=True):
    """Devices of one type on one host that a job could have."""

    host_id: HostId
    type: str
    free: int
    soon: int = 0
    """Further devices, free when jobs that are about to end have left."""
    memory_mib: int
    """Of each."""
    features: tuple[str, ...] = ()
    domain: str = ""
    stays_s: float

    def count(self, *, with_soon: bool) -> int:
        return self.free + self.soon if with_soon else self.free

    def take(self, count: int) -> None:
        at_once = min(count, self.free)
        self.free, self.soon = self.free - at_once, self.soon - (count - at_once)


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """All that a decision about one queue needs."""

    now_s: float
    queue: AllocationQueue
    allocations: tuple[Allocation, ...] = ()
    """Of this queue, and not over."""
    waiting: tuple[WaitingJob, ...] = ()
    """In the policy's order."""
    not_runnable: int = 0
    """Jobs that wait for other jobs, are held, or are over a limit."""
    spaces: tuple[HostSpace, ...] = ()
    """On hosts that take work."""
    widest: int = 0
    """Most devices on one host of those that are here."""
    idle_s: Mapping[HostId, float] = {}
    """Hosts that take work and have no job, and since when."""
    cleared: frozenset[HostId] = frozenset()
    """Hosts that take no more work and have no job any more."""
    problem: str = ""
    """Why Slurm cannot be asked."""


class AllocationPlan(msgspec.Struct, frozen=True, kw_only=True):
    submit: tuple[HostId, ...] = ()
    """Hosts by these names."""
    cancel: tuple[tuple[str, str], ...] = ()
    """Allocations, and why."""
    leave: tuple[tuple[HostId, str], ...] = ()
    """Hosts whose jobs are to save and go on elsewhere, and why."""
    why: str
    """What is asked for, or why nothing is: one sentence."""


def decide(now: Situation) -> AllocationPlan:
    queue = now.queue
    if now.problem:
        return AllocationPlan(why=f"nothing is asked for, because Slurm cannot be: {now.problem}")
    if queue.is_removed:
        return _removal(now)
    demand = HostDemand(now)
    # A job that should end soon prevents a request; as that is an estimate, it cancels none.
    cancel = [*_list_cleared(now), *HostDemand(now, with_soon=False).needless()]
    leave = _idle(now, demand)
    slots, why = _requests(now, demand)
    return AllocationPlan(submit=slots, cancel=tuple(cancel), leave=tuple(leave), why=why)


# --- Giving back -----------------------------------------------------------------------------------


def _removal(now: Situation) -> AllocationPlan:
    """Plans the removal of a whole queue; hosts with jobs go when those have saved and left."""
    why = "the queue is removed"
    cancel, leave = list(_list_cleared(now)), []
    done = {name for name, _ in cancel}
    for each in now.allocations:
        if each.state in ("pending", "starting"):
            cancel.append((each.name, why))
        elif each.state == "working" and each.name not in done:
            leave.append((each.host_id, why))
    left = len(now.allocations)
    return AllocationPlan(
        cancel=tuple(cancel),
        leave=tuple(leave),
        why=f"it is being removed: {_count(left, 'allocation')} left" if left else "it is removed",
    )


def _list_cleared(now: Situation) -> Iterable[tuple[str, str]]:
    """Hosts that take no more work, and that nobody works on any more."""
    for each in now.allocations:
        if each.state == "working" and each.host_id in now.cleared:
            yield each.name, "its host has no more work"


def _idle(now: Situation, demand: HostDemand) -> list[tuple[HostId, str]]:
    found = []
    for each in now.allocations:
        idle_s = now.idle_s.get(each.host_id, 0.0)
        if each.state == "working" and idle_s >= now.queue.terms.idle_s and each.host_id not in demand.used:
            found.append((each.host_id, f"idle for {idle_s:.0f} s"))
    return found


# --- Asking ----------------------------------------------------------------------------------------


class HostDemand:
    """Waiting jobs laid out over what there is and what is to come, in order."""

    def __init__(self, now: Situation, *, with_soon: bool = True) -> None:
        self._now = now
        self._pending = [a for a in now.allocations if a.state in COMING]
        self._here = [copy(space) for space in now.spaces]
        self._coming = [declared_space(now.queue, each.host_id) for each in self._pending]
        self._widest = max(now.widest, declared_space(now.queue, HostId("")).free)
        self.used: set[HostId] = set()
        """Hosts that are here or asked for, and that a waiting job would have."""
        self.missing = 0
        """Further hosts to ask for."""
        self.for_jobs: list[JobId] = []
        """The jobs that need those hosts."""
        self.elsewhere: list[str] = []
        """For each waiting job that needs no request: where it fits."""
        self.unfit: list[tuple[JobId, str]] = []
        """Jobs that no host of this shape could run, and why."""
        for job in now.waiting[:LOOKED_AT_MAX]:
            self._lay_out(job, with_soon=with_soon)

    def needless(self) -> list[tuple[str, str]]:
        """Requests that no job needs, and that have waited in Slurm for as long as a host may be idle."""
        return [
            (each.name, "no waiting job needs it any more")
            for each in self._pending
            if each.state == "pending"
            and each.host_id not in self.used
            and self._now.now_s - each.asked_s >= self._now.queue.terms.idle_s
        ]

    def _lay_out(self, job: WaitingJob, *, with_soon: bool) -> None:
        everywhere = [*self._here, *self._coming]
        tries = [("is free", self._here, False), ("is asked for already", everywhere, with_soon)]
        if with_soon:
            tries.insert(1, ("becomes free soon", self._here, True))
        for what, spaces, soon_too in tries:
            if self._take(job, spaces, with_soon=soon_too):
                self.elsewhere.append(what)
                return
        queue = self._now.queue
        if why := why_unfit(queue, job.wants):
            self.unfit.append((job.job_id, why))
            return
        fresh: list[HostSpace] = []
        while len(fresh) < queue.terms.max_hosts:
            fresh.append(declared_space(queue, HostId("")))
            if self._take(job, [*everywhere, *fresh], with_soon=with_soon):
                self._coming += fresh
                self.missing += len(fresh)
                self.for_jobs.append(job.job_id)
                return
        self.unfit.append((job.job_id, f"needs more hosts than the {queue.terms.max_hosts} of --max-hosts"))

    def _take(self, job: WaitingJob, spaces: Sequence[HostSpace], *, with_soon: bool) -> bool:
        found = fit(job.wants, spaces, self._widest, with_soon=with_soon)
        for space, count in found:
            space.take(count)
            self.used.add(space.host_id)
        return bool(found)


def fit(
    wants: SchedulingClass, spaces: Sequence[HostSpace], widest: int, *, with_soon: bool
) -> list[tuple[HostSpace, int]]:
    """Where a job would go, with how many devices; empty: it does not fit. `widest`: a gang that one host
    could hold is not spread."""
    suited = [(space.count(with_soon=with_soon), space) for space in spaces if suits_space(wants, space)]
    suited.sort(key=lambda each: each[0])
    if wants.nodes > 1:
        each = wants.gpus // wants.nodes
        chosen = [(space, each) for count, space in suited if count >= each][: wants.nodes]
        return chosen if len(chosen) == wants.nodes else []
    for count, space in suited:
        if count >= wants.gpus:
            return [(space, wants.gpus)]
    if wants.nodes == 1 or wants.gpus <= widest:
        return []
    parts, left = [], wants.gpus
    for count, space in reversed(suited):
        if used := min(left, count):
            parts.append((space, used))
            left -= used
    return parts if not left else []


def suits_space(wants: SchedulingClass, space: HostSpace) -> bool:
    return (
        wants.gpu_type in ("", space.type)
        and space.memory_mib >= wants.memory_mib
        and space.stays_s >= wants.stay_s
        and set(wants.features) <= set(space.features)
        and wants.domain in ("", space.domain)
        and space.host_id not in wants.not_hosts
    )


ANY: Final = 1 << 40
"""More memory than anybody asks for."""


def declared_space(queue: AllocationQueue, host_id: HostId) -> HostSpace:
    """An empty host of this queue, as far as it is known; unknown properties suit every job, unknown features
    none."""
    shape, seen = queue.terms.shape, queue.seen
    return HostSpace(
        host_id=host_id,
        type=seen.type if seen else shape.type or ("cpu" if shape.kind == "cpu" else ""),
        free=seen.devices if seen else shape.devices,
        memory_mib=seen.memory_mib if seen else ANY,
        features=seen.features if seen else (),
        domain=seen.domain if seen else "",
        stays_s=queue.terms.time_limit_s - queue.terms.grace_s,
    )


def why_unfit(queue: AllocationQueue, wants: SchedulingClass) -> str:
    """Why no host of this queue's could be part of what the job needs; empty: one could."""
    space = declared_space(queue, HostId(""))
    each = wants.gpus // wants.nodes if wants.nodes else wants.gpus
    if wants.gpu_type not in ("", space.type) and space.type:
        return f"asks for {wants.gpu_type}, and hosts of {queue.name} have {space.type}"
    if wants.memory_mib > space.memory_mib:
        return f"needs {wants.memory_mib} MiB per device, and those of {queue.name} have {space.memory_mib}"
    if wants.nodes and each > space.free:
        return f"needs {each} devices on one host, and those of {queue.name} have {space.free}"
    if missing := sorted(set(wants.features) - set(space.features)):
        return f"asks for {', '.join(missing)}, which no host of {queue.name} has said that it has"
    if queue.seen is not None and wants.domain not in ("", space.domain):
        return f"has its checkpoints where hosts of {queue.name} cannot read them"
    if wants.stay_s > space.stays_s:
        return (
            f"needs {wants.stay_s} s to load and save, and a host of {queue.name} has {space.stays_s:.0f} s"
        )
    if all(queue.host(slot) in wants.not_hosts for slot in range(1, queue.terms.max_hosts + 1)):
        return f"has a working directory that hosts of {queue.name} lack"
    return ""


def could_be_asked(allocations: Allocations, spec: JobSpec) -> bool:
    """Whether some queue could bring hosts for a job like this."""
    wants = scheduling_class_of_spec(spec)
    return any(not queue.is_removed and not why_unfit(queue, wants) for queue in allocations.queues.values())


def _requests(now: Situation, demand: HostDemand) -> tuple[tuple[HostId, ...], str]:
    """Returns the names by which hosts are asked for, and why so many or none."""
    queue = now.queue
    if queue.paused:
        return (), f"nothing is asked for: paused ({queue.paused}); `cotenant alloc resume {queue.name}`"
    if not demand.missing:
        return (), f"nothing is asked for: {_why_nothing(now, demand)}"
    open_, waiting = len(now.allocations), sum(a.state in ("submitting", "pending") for a in now.allocations)
    jobs = _name_jobs(demand.for_jobs)
    if open_ >= queue.terms.max_hosts:
        return (), (
            f"{jobs} would need {_count(demand.missing, 'host')} more, and all {queue.terms.max_hosts} of "
            "--max-hosts are there or asked for"
        )
    if waiting >= queue.terms.backlog:
        return (
            (),
            f"{_count(waiting, 'request')} wait in Slurm already, which is --backlog {queue.terms.backlog}",
        )
    if now.now_s < queue.retry_at_s:
        return (), (
            f"{_count(queue.failures, 'request')} in a row brought no host ({queue.failure}): the next one "
            f"in {queue.retry_at_s - now.now_s:.0f} s"
        )
    unproven = queue.seen is None or queue.failures > 0
    if unproven and any(a.state in COMING for a in now.allocations):
        return (), "a request is under way, and others wait until it has brought a host as declared"
    most = (
        1
        if unproven
        else min(queue.terms.max_hosts - open_, queue.terms.backlog - waiting, SUBMITTED_AT_ONCE_MAX)
    )
    taken = {each.host_id for each in now.allocations}
    names = [queue.host(slot) for slot in range(1, queue.terms.max_hosts + 1)]
    slots = tuple(name for name in names if name not in taken)[: min(most, demand.missing)]
    return slots, f"asks for {_count(len(slots), 'host')} for {jobs}"


def _why_nothing(now: Situation, demand: HostDemand) -> str:
    if demand.unfit:
        job_id, why = demand.unfit[0]
        more = f" (and {len(demand.unfit) - 1} more fit no host)" if len(demand.unfit) > 1 else ""
        return f"job {job_id} {why}{more}"
    if demand.elsewhere:
        where = " or ".join(dict.fromkeys(demand.elsewhere))
        return f"{_count(len(demand.elsewhere), 'waiting job')} fit on what {where}"
    if now.not_runnable:
        return (
            f"{_count(now.not_runnable, 'job')} cannot run yet (they wait for other jobs, are held, or are "
            "over a limit)"
        )
    return "no job waits"


def _name_jobs(jobs: Sequence[JobId]) -> str:
    shown = ", ".join(jobs[:JOBS_NAMED])
    more = f" and {len(jobs) - JOBS_NAMED} more" if len(jobs) > JOBS_NAMED else ""
    return f"{'job' if len(jobs) == 1 else 'jobs'} {shown}{more}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


# --- What became of it -----------------------------------------------------------------------------


def note_failure(queue: AllocationQueue, why: str, now_s: float) -> AllocationQueue:
    """A request brought no host."""
    wait_s = min(BACK_OFF_S * 2.0 ** min(queue.failures, 20), BACK_OFF_S_MAX)
    return msgspec.structs.replace(queue, failures=queue.failures + 1, failure=why, retry_at_s=now_s + wait_s)


def proven(queue: AllocationQueue, seen: SeenShape) -> tuple[AllocationQueue, str]:
    """A host has joined; and what is to be said of it, if anything. One that has fewer devices than declared
    pauses its queue: jobs for more would ask for hosts for ever."""
    known = msgspec.structs.replace(queue, seen=seen, failures=0, failure="", retry_at_s=0.0)
    wrong = shape_problem(queue.terms.shape, seen)
    if not wrong:
        return known, "" if queue.seen is not None else f"the first host is as declared: {describe(seen)}"
    return msgspec.structs.replace(known, paused=wrong), wrong


def shape_problem(shape: HostShape, seen: SeenShape) -> str:
    if seen.devices < shape.devices:
        return f"a host has {describe(seen)}, and --shape says {shape.devices}"
    if shape.type not in ("", seen.type):
        return f"a host has {describe(seen)}, and --shape says {shape.type}"
    return ""


def describe(seen: SeenShape) -> str:
    return f"{_count(seen.devices, 'device')} of type {seen.type}"
