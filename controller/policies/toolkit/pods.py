"""Gangs as pods on hosts: where each pod goes, and which spot jobs have to leave for it.

Rule: a gang is found whole or not at all; what a pod takes, and what its victims leave on any host, is seen
by the pods after it. A gang that no host could hold and that names no number of hosts is placed as
everywhere else (`Plan.find_free`); where spot jobs must leave for it, its pods are as wide as a host, else
half as wide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from cotenant.controller.domain import CHECKPOINTING, DeviceId, HostId, Job, JobId
from cotenant.controller.planning import Plan, SchedulingClass, View, suits
from cotenant.controller.policies.toolkit.victims import FreedDevices

Rank = Callable[[Plan, HostId, str, int], Any]
"""Plan, host, type, devices that are free there -> the lower the better; None: not there."""
Cost = Callable[[HostId, Sequence[Job], int], Any]
"""Host, victims, devices left over there -> the lower the better."""


def types_of(view: View, scheduling_class: SchedulingClass) -> Sequence[str]:
    return (scheduling_class.gpu_type,) if scheduling_class.gpu_type else view.free.types


def find_pods(plan: Plan, job: Job, rank: Rank, *, tightest_first: bool) -> tuple[DeviceId, ...] | None:
    """Free devices for the whole gang, each pod on the best host by `rank`. `tightest_first`: fewer free
    devices are better than any rank."""
    view, scheduling_class = plan.view, plan.view.queue.class_of(job)
    for type in types_of(view, scheduling_class):
        pods = pods_of(view, scheduling_class, type)
        if plan.free_total(type) < sum(pods):
            continue
        if len(pods) > 1 and not scheduling_class.nodes:
            found = plan.find_free(job)
            if found is not None:
                return found
            continue
        for avoid in (job.avoid, ()) if job.avoid else ((),):
            trial = plan.fork() if len(pods) > 1 else plan
            chosen: list[DeviceId] = []
            taken: list[HostId] = list(avoid)
            for gpus in pods:
                best = _best(trial, scheduling_class, type, gpus, taken, rank, tightest_first)
                if best is None:
                    break
                devices = trial.fitting(best, type, scheduling_class)[:gpus]
                chosen.extend(devices)
                taken.append(best)
                if len(pods) > 1:
                    trial.suppose_taken(best, type, devices)
            else:
                return tuple(chosen)
    return None


def _best(
    plan: Plan,
    scheduling_class: SchedulingClass,
    type: str,
    gpus: int,
    taken: Collection[HostId],
    rank: Rank,
    tightest_first: bool,
) -> HostId | None:
    best, best_key = None, None
    for count in range(gpus, plan.most_free(type) + 1):
        for host_id in plan.hosts_with(type, count):
            if host_id in taken or not plan.can_take(host_id, scheduling_class):
                continue
            key = rank(plan, host_id, type, count)
            if key is None or (best is not None and (key, host_id) >= (best_key, best)):
                continue
            if len(plan.fitting(host_id, type, scheduling_class)) >= gpus:
                best, best_key = host_id, key
        if best is not None and tightest_first:
            return best
    return best


def pods_of(view: View, scheduling_class: SchedulingClass, type: str) -> list[int]:
    """Devices of each pod."""
    gpus, nodes = scheduling_class.gpus, scheduling_class.nodes
    if nodes > 1:
        return [gpus // nodes] * nodes
    width = max(1, view.sizes.on_host(scheduling_class, type))
    if gpus <= width or nodes == 1:
        return [gpus]
    return _split_parts(gpus, width)


def _split_parts(gpus: int, width: int) -> list[int]:
    whole, rest = divmod(gpus, width)
    return [width] * whole + ([rest] if rest else [])


def shapes_of(view: View, scheduling_class: SchedulingClass, type: str) -> Iterator[list[int]]:
    """The pods of a gang; of one that may be spread anyhow, pods half as wide come next."""
    pods = pods_of(view, scheduling_class, type)
    yield pods
    width = pods[0] // 2
    while len(pods) > 1 and not scheduling_class.nodes and width >= 1:
        yield _split_parts(scheduling_class.gpus, width)
        width //= 2


class HostVictims(NamedTuple):
    """What one host offers a pod."""

    host_id: HostId
    victims: tuple[Job, ...]
    devices: tuple[DeviceId, ...]
    left_over: int


def reclaim(
    plan: Plan,
    job: Job,
    spot: Iterable[Job],
    cost: Cost,
    spares: Callable[[list[Job]], list[Job]] | None,
) -> FreedDevices | None:
    """Devices for the whole gang on what is free, what is being left, and what spot jobs would leave.

    Args:
        spot: who may be preempted.
        cost: of one host; ties by host.
        spares: the order in which a host's spot jobs are spared if they need not leave; None: all leave.
    """
    view, scheduling_class = plan.view, plan.view.queue.class_of(job)
    victims = {victim.job_id: victim for victim in spot if not plan.is_leaving(victim.job_id)}
    for type in types_of(view, scheduling_class):
        search = _Search(plan, scheduling_class, type, victims, cost, spares)
        if search.most < scheduling_class.gpus:
            continue
        for pods in shapes_of(view, scheduling_class, type):
            found = search.whole_gang(pods)
            if found is not None:
                return found
    return None


class _Search:
    """Hosts of one type, each looked at again only when something there has changed."""

    def __init__(
        self,
        plan: Plan,
        scheduling_class: SchedulingClass,
        type: str,
        victims: dict[JobId, Job],
        cost: Cost,
        spares: Callable[[list[Job]], list[Job]] | None,
    ) -> None:
        self._plan, self._class, self._type = plan, scheduling_class, type
        self._victims, self._cost, self._spares = victims, cost, spares
        view = plan.view
        leaving = [each for each in view.running.leaving if each.phase is CHECKPOINTING]
        touched = [*victims.values(), *leaving, *plan.list_preempted()]
        hosts = {
            view.devices[d].host_id
            for each in touched
            for d in (each.placement.devices if each.placement else ())
            if d in view.devices and view.devices[d].type == type
        }
        for count in range(1, plan.most_free(type) + 1):
            hosts.update(plan.hosts_with(type, count))
        self._hosts = sorted(
            h for h in hosts if view.hosts[h].takes_work and suits(view.hosts[h], scheduling_class)
        )
        self._staying = {host_id: self._devices_of(host_id) for host_id in self._hosts}
        self.most = sum(len(devices) for devices in self._staying.values())
        """The most devices that could be had."""

    def _devices_of(self, host_id: HostId) -> dict[DeviceId, tuple[JobId, ...]]:
        """Devices that could be had, with the spot jobs that hold them."""
        plan, view, found = self._plan, self._plan.view, {}
        for device in view.hosts[host_id].report.devices:
            device_id = device.device_id
            if device.type != self._type or device_id not in view.devices:
                continue
            known = view.devices[device_id]
            if not known.healthy or known.usable_mib < self._class.memory_mib:
                continue
            here = tuple(plan.staying(device_id))
            if all(each in self._victims for each in here) and self._is_being_left(device_id):
                found[device_id] = here
        return found

    def _is_being_left(self, device_id: DeviceId) -> bool:
        """Whether all others who hold it are saving their state for somebody, or will be."""
        plan, jobs = self._plan, self._plan.view.jobs
        gone = {each.job_id for each in plan.list_preempted()}
        return all(
            job_id in self._victims or job_id in gone or jobs[job_id].phase is CHECKPOINTING
            for job_id in plan.view.holdings.tenants(device_id)
        )

    def whole_gang(self, pods: Sequence[int]) -> FreedDevices | None:
        staying = {host_id: dict(devices) for host_id, devices in self._staying.items()}
        offers: dict[HostId, tuple[int, HostVictims | None]] = {}
        gone: dict[JobId, Job] = {}
        chosen: list[DeviceId] = []
        used: set[HostId] = set()
        for gpus in pods:
            best, best_key = None, None
            for host_id in self._hosts:
                if self._class.nodes and host_id in used:
                    continue
                if host_id not in offers or offers[host_id][0] != gpus:
                    offers[host_id] = (gpus, self._offer(host_id, staying[host_id], gpus))
                offer = offers[host_id][1]
                if offer is None:
                    continue
                key = self._cost(host_id, offer.victims, offer.left_over)
                if best is None or (key, host_id) < (best_key, best.host_id):
                    best, best_key = offer, key
            if best is None:
                return None
            used.add(best.host_id)
            chosen.extend(best.devices)
            for device_id in best.devices:
                del staying[best.host_id][device_id]
            offers.pop(best.host_id)
            for victim in best.victims:
                gone[victim.job_id] = victim
                self._forget(victim, staying, offers)
        return FreedDevices(tuple(gone.values()), tuple(chosen))

    def _forget(
        self,
        victim: Job,
        staying: dict[HostId, dict[DeviceId, tuple[JobId, ...]]],
        offers: dict[HostId, tuple[int, HostVictims | None]],
    ) -> None:
        """What it frees on other hosts counts for later pods."""
        for device_id in victim.placement.devices if victim.placement else ():
            device = self._plan.view.devices.get(device_id)
            if device is None or device.host_id not in staying:
                continue
            here = staying[device.host_id]
            if device_id in here:
                here[device_id] = tuple(each for each in here[device_id] if each != victim.job_id)
                offers.pop(device.host_id, None)

    def _offer(
        self, host_id: HostId, here: dict[DeviceId, tuple[JobId, ...]], gpus: int
    ) -> HostVictims | None:
        """Lines 5 to 16 of Algorithm 2: all spot jobs of the host leave, and those that need not are
        spared."""
        if len(here) < gpus:
            return None
        free = [d for d, holders in here.items() if not holders]
        if len(free) >= gpus and self._has_room(host_id, ()):
            return HostVictims(host_id, (), tuple(free[:gpus]), len(free) - gpus)
        all_here = sorted(
            {each: None for holders in here.values() for each in holders},
            key=lambda job_id: self._victims[job_id].number,
        )
        going = [self._victims[job_id] for job_id in all_here]
        if not self._has_room(host_id, going):
            return None
        had = dict(here)
        for victim in self._spares(list(going)) if self._spares is not None else ():
            without = {d: holders for d, holders in had.items() if victim.job_id not in holders}
            left = [each for each in going if each is not victim]
            if len(without) >= gpus and self._has_room(host_id, left):
                had, going = without, left
        # Those that are free are taken first.
        devices = sorted(had, key=lambda d: (bool(had[d]), d))
        return HostVictims(host_id, tuple(going), tuple(devices[:gpus]), len(devices) - gpus)

    def _has_room(self, host_id: HostId, going: Iterable[Job]) -> bool:
        """Whether the cores and the main memory that it asks for are left on a host without these."""
        wanted = self._class
        if not wanted.asks_hosts:
            return True
        room = self._plan.room_on(host_id, [each.job_id for each in going])
        return room.holds(wanted.cpus, wanted.host_memory_mib)
