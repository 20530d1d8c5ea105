"""Devices that become free by themselves: before a time, with the jobs to which they are promised
(`ExpectedReleases`); and when enough of them do for a gang, which is what waiting costs (`ExpectedFree`).

Rule: a plan works out once what a running job leaves; from one question to the next it only adds or removes
the jobs that end in between, and it computes nothing before a question needs it.

Rule: what waiting costs is an estimate from the predicted ends of those that hold devices now, with no later
arrivals and nobody ahead in the queue. A tenant that is past its predicted end counts as needing
`OVERRUN_RATIO` of what it has had, or a job whose estimate was too short would make waiting look free for as
long as it runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Final

from cotenant.controller.domain import LEAVING, RUNNING, DeviceId, HostId, HostState, Job, JobId
from cotenant.controller.planning import Freed, HostType, Plan, SchedulingClass, View
from cotenant.controller.policies.sharing.shareable_slots import HostAndType, is_suitable
from cotenant.controller.policies.toolkit import devices_by_host, is_kept_together

NEVER: Final = float("inf")


class ReleaseTimes:
    """Running jobs in the order of their ends, looked at no further than is asked. Those that are late
    are left out: they may be so for long."""

    def __init__(self, view: View) -> None:
        self.jobs: list[Job] = []
        self._view = view
        self._rest = (job for job in view.running.training if job.estimate.end_s > view.now_s)
        self._next = next(self._rest, None)
        self._ends_s: list[float] = []
        self._gpus = [0]
        """Devices of the first so many jobs together."""
        self._together = Together(view)

    def count_by(self, until_s: float) -> int:
        """How many of the jobs will have ended by then."""
        while self._next is not None and self._next.estimate.end_s <= until_s:
            self.jobs.append(self._next)
            self._ends_s.append(self._next.estimate.end_s)
            self._gpus.append(self._gpus[-1] + self._next.spec.gpus_min)
            self._next = next(self._rest, None)
        return bisect_right(self._ends_s, until_s)

    def may_be_enough(self, plan: Plan, free: int, job: Job, count: int) -> bool:
        """Whether by number alone, on one host where one host must do, the job may find enough devices among
        those `free` in the plan and those of so many jobs. A no is certain, a yes is not."""
        view, gpus = self._view, job.spec.gpus_min
        if free + self._gpus[count] < gpus:
            return False
        if gpus == 1 or free >= gpus or not is_kept_together(view, view.queue.class_of(job)):
            return True
        if not free:
            return self._together.most(self.jobs, count) >= gpus
        on_host: Counter[HostId] = Counter()
        for one in self.jobs[:count]:
            for host_id, devices in devices_by_host(view, one):
                on_host[host_id] += devices
        return any(plan.free_on(host_id) + devices >= gpus for host_id, devices in on_host.items())


class Together:
    """A running count over a list of jobs: how many devices its first so many jobs have on the host where
    they have most."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._on_host: dict[HostId, int] = {}
        self._most = [0]
        """Computed as far as was asked."""

    def most(self, jobs: Sequence[Job], count: int) -> int:
        """The devices that the first `count` jobs have on the host where they have most.

        Args:
            jobs: the same list each time; it may have grown at its end.
        """
        for job in jobs[len(self._most) - 1 : count]:
            most = self._most[-1]
            for host_id, devices in devices_by_host(self._view, job):
                self._on_host[host_id] = here = self._on_host.get(host_id, 0) + devices
                most = max(most, here)
            self._most.append(most)
        return self._most[count]


class ExpectedReleases:
    """The plan as it will be at some time, when jobs have left and what is promised is taken; made for one
    pass over the queue."""

    def __init__(self, view: View) -> None:
        self._ends = ReleaseTimes(view)
        self._promises: list[tuple[Job, tuple[DeviceId, ...]]] = []
        self._newest: tuple[Job, tuple[DeviceId, ...]] | None = None
        """A promise that counts from the next question on."""
        self._promised: dict[DeviceId, HostType] = {}
        self._seen_actions = -1
        """What follows is about the plan with so many actions."""
        self._free = 0
        self._later: Plan
        self._later_s, self._gone = NEVER, 0
        """The plan as it will be at that time, when so many have left."""
        self._left: list[list[Freed]] = []
        """What each of the first jobs leaves of devices that were not promised before."""
        self._where: list[tuple[HostType, ...]] = [()]
        """Places where the first so many leave something, in that order."""

    def find(self, plan: Plan, job: Job, until_s: float) -> tuple[DeviceId, ...] | None:
        """Devices for the job among those free by then and not promised."""
        if self._newest is not None:
            self._promise(*self._newest)
        if self._seen_actions != len(plan.actions):
            self._seen_actions, self._later_s, self._free = len(plan.actions), NEVER, plan.free_everywhere
        count = self._ends.count_by(until_s)
        if not self._ends.may_be_enough(plan, self._free, job, count):
            return None
        if self._later_s == NEVER:
            self._begin(plan)
        elif until_s < self._later_s:
            self._go_back(plan, count)
        self._later_s = until_s
        if count > self._gone:
            self._go_on(count)
        return self._later.find_free(job)

    def promise(self, job: Job, devices: tuple[DeviceId, ...]) -> None:
        """Keeps the devices that `find` has just found for this job: no other job counts on them."""
        self._newest = (job, devices)

    def is_unpromised(self) -> bool:
        """Whether it can serve another pass over the same view, for which nothing is promised or planned."""
        if self._promises or self._seen_actions:
            return False
        self._newest = None
        return True

    def _promise(self, job: Job, devices: tuple[DeviceId, ...]) -> None:
        self._newest = None
        known = self._later.view.devices
        self._promises.append((job, devices))
        self._promised.update({d: (known[d].host_id, known[d].type) for d in devices})
        self._later.suppose_placed(job, devices)

    def _begin(self, plan: Plan) -> None:
        """No job has left."""
        self._later, self._gone, self._left, self._where = plan.fork(), 0, [], [()]
        for job, devices in self._promises:
            self._later.suppose_placed(job, devices)

    def _go_on(self, count: int) -> None:
        """Moves the plan to a later time, at which more jobs have left."""
        later, promised = self._later, self._promised
        later.suppose_gone(job.job_id for job in self._ends.jobs[self._gone : min(count, len(self._left))])
        for left in self._left[self._gone : count]:
            for host_id, type, devices in left:
                later.suppose_free(host_id, type, [d for d in devices if d not in promised])
        for job in self._ends.jobs[len(self._left) : count]:
            left = later.suppose_left(job)
            where = self._where[-1]
            for host_id, type, _ in left:
                if (host_id, type) not in where:
                    where = (*where, (host_id, type))
            self._left.append(left)
            self._where.append(where)
        self._gone = count

    def _go_back(self, plan: Plan, count: int) -> None:
        """Moves the plan to an earlier time, at which fewer jobs have left. The result equals a fresh start,
        in whatever order the questions came."""
        self._later.suppose_gone((job.job_id for job in self._ends.jobs[count : self._gone]), gone=False)
        for left in self._left[count : self._gone]:
            for host_id, type, devices in left:
                self._later.suppose_taken(host_id, type, devices)
        self._gone = count
        self._later.forget_touches(
            dict.fromkeys(chain(plan.list_touched(), self._promised.values(), self._where[count]))
        )


OVERRUN_RATIO = 0.1


def leaves_in_s(view: View, job: Job, *, guesses: bool = False) -> float:
    """Seconds until a job that holds devices, or has reserved some, has left them; infinite if its length is
    unknown, unless it is to be judged by what it has had (`guesses`)."""
    left_s = job.remaining_now_s(view.now_s) if guesses else job.known_left_s(view.now_s)
    is_running = job.phase is RUNNING
    if not is_running and job.phase in LEAVING:
        return job.estimate.pause_s
    if left_s is None:
        return NEVER
    if not is_running:
        return left_s * job.estimate.slowdown + job.estimate.load_s
    if left_s <= 0.0:
        left_s = OVERRUN_RATIO * (job.spent.run_s + view.now_s - job.phase_since_s)
    return left_s * job.estimate.slowdown


class ExpectedFree:
    """The times at which the devices of each place become free, for a plan as it was when this was made."""

    def __init__(self, plan: Plan, *, guesses: bool = False) -> None:
        self._view = view = plan.view
        hosts = {host_id for host_id, host in view.hosts.items() if host.state is HostState.OK}
        is_plain = not plan.actions and not view.holdings.claimants()
        known: dict[JobId, float] = {}
        at: dict[HostAndType, list[tuple[float, int]]] = {}
        for device_id, device in view.devices.items():
            if device.host_id not in hosts or not device.healthy:
                continue
            free_s = 0.0
            here = view.holdings.tenants(device_id)
            for job_id in here if is_plain else (*here, *plan.list_coming(device_id)):
                leaves_s = known.get(job_id)
                if leaves_s is None:
                    leaves_s = known[job_id] = leaves_in_s(view, view.jobs[job_id], guesses=guesses)
                if leaves_s > free_s:
                    free_s = leaves_s
            at.setdefault((device.host_id, device.type), []).append((free_s, device.usable_mib))
        self._at = {place: sorted(devices) for place, devices in at.items()}
        self._waits: dict[SchedulingClass, float] = {}

    def wait_s(self, job: Job) -> float:
        """Seconds until the job's whole gang could have free devices, from now; infinite if never."""
        scheduling_class = self._view.queue.class_of(job)
        if scheduling_class not in self._waits:
            self._waits[scheduling_class] = min(
                (self._type_s(scheduling_class, type) for type in self._types(scheduling_class)),
                default=NEVER,
            )
        return self._waits[scheduling_class]

    def _types(self, scheduling_class: SchedulingClass) -> list[str]:
        wanted = scheduling_class.gpu_type
        return [wanted] if wanted else sorted({type for _, type in self._at})

    def _type_s(self, scheduling_class: SchedulingClass, type: str) -> float:
        """When devices of one type can hold the gang: on one host if one could hold it, else over several;
        with `nodes`, in that many equal parts."""
        here = [
            [free_s for free_s, usable_mib in devices if usable_mib >= scheduling_class.memory_mib]
            for place, devices in self._at.items()
            if place[1] == type and is_suitable(self._view, scheduling_class, place)
        ]
        gpus, nodes = scheduling_class.gpus, scheduling_class.nodes
        if nodes > 1:
            return _nth(sorted(_nth(times, gpus // nodes) for times in here), nodes)
        if nodes == 0 and gpus > self._view.sizes.on_host(scheduling_class, type):
            return _nth(sorted(free_s for times in here for free_s in times), gpus)
        return min((_nth(times, gpus) for times in here), default=NEVER)


def _nth(times_s: Sequence[float], number: int) -> float:
    """The last of the first so many of these times, which rise; infinite if there are fewer."""
    return times_s[number - 1] if len(times_s) >= number else NEVER
