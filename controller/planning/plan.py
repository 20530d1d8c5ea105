"""A what-if over a view: the decisions of one round, each seen by the next.

Rule: nothing of the view is copied until it is touched, so a round costs what it decides, not what
the cluster holds.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from cotenant.controller import domain
from cotenant.controller.planning.view import SchedulingClass, View, is_barred, suits

HostType = tuple[domain.HostId, str]
Freed = tuple[domain.HostId, str, list[domain.DeviceId]]
"""Devices of one host and type."""


class Plan:
    """Actions of one decision, and the cluster as it would be after them."""

    __slots__ = ("_added", "_free", "_more", "_placed", "actions", "free_everywhere", "leaving", "view")

    def __init__(self, view: View) -> None:
        self.view = view
        self.actions: list[domain.AnyAction] = []
        self.free_everywhere = view.free.everywhere
        """Free devices of all types on all hosts."""
        self._free: dict[HostType, list[domain.DeviceId]] = {}  # Touched hosts only.
        self._more = defaultdict[str, int](int)  # Free devices by type beyond the view's, below 0 for fewer.
        self._added: dict[domain.DeviceId, list[domain.JobId]] = {}
        self._placed: set[domain.JobId] = set()
        self.leaving: set[domain.JobId] = set()
        """Those that lose their devices, or their reservation, by this plan."""

    def fork(self) -> Plan:
        """A separate plan that starts from this one, for trying something out."""
        trial = Plan.__new__(Plan)  # All that it would begin with is replaced.
        trial.view, trial.actions, trial.free_everywhere = self.view, [], self.free_everywhere
        trial._free = {key: list(devices) for key, devices in self._free.items()}
        trial._more = self._more.copy()
        trial._added = {device_id: list(jobs) for device_id, jobs in self._added.items()}
        trial._placed = set(self._placed)
        trial.leaving = set(self.leaving)
        return trial

    def suppose_left(self, job: domain.Job) -> list[Freed]:
        """Changes the plan as if the job had left its devices: those that no other job holds count as free,
        and are returned."""
        view, job_id, added, more = self.view, job.spec.job_id, self._added, self._more
        devices, tenants, claimed_by = view.devices, view.holdings.tenants, view.holdings.claimed_by
        self.leaving.add(job_id)
        before: domain.Device | None = None
        free: list[domain.DeviceId] | None = None  # Of the host that is looked at, if it takes work.
        found: list[Freed] = []
        for device_id in job.placement.devices if job.placement else ():
            if device_id not in devices or not devices[device_id].healthy:
                continue
            device = devices[device_id]
            if before is None or device.host_id != before.host_id or device.type != before.type:
                before, is_up = device, view.hosts[device.host_id].takes_work
                free = self._touch(device.host_id, device.type) if is_up else None
                if is_up:
                    found.append((device.host_id, device.type, []))
            if free is None or device_id in free:
                continue
            here = tenants(device_id)
            is_alone = here == [job_id] and device_id not in added
            if (is_alone and claimed_by(device_id) is None) or not self.staying(device_id):
                insort(free, device_id)
                found[-1][2].append(device_id)
                more[device.type] += 1
                self.free_everywhere += 1
        return found

    def suppose_free(self, host_id: domain.HostId, type: str, devices: Iterable[domain.DeviceId]) -> None:
        """Changes the plan as if these devices of one host and type, which are not free, were free."""
        free = self._touch(host_id, type)
        before = len(free)
        for device_id in devices:
            insort(free, device_id)
        self._more[type] += len(free) - before
        self.free_everywhere += len(free) - before

    def suppose_taken(self, host_id: domain.HostId, type: str, devices: Iterable[domain.DeviceId]) -> None:
        """Changes the plan as if those of these devices that are free were taken."""
        free = self._touch(host_id, type)
        before = len(free)
        for device_id in devices:
            if device_id in free:
                free.remove(device_id)
        self._more[type] += len(free) - before
        self.free_everywhere += len(free) - before

    def suppose_gone(self, jobs: Iterable[domain.JobId], *, gone: bool = True) -> None:
        """Changes the plan as if these jobs had left their hosts, or (`gone=False`) had not; devices stay as
        they are."""
        (self.leaving.update if gone else self.leaving.difference_update)(jobs)

    def list_touched(self) -> Collection[HostType]:
        """Hosts and types of which the plan has changed anything, in the order of the changes."""
        return self._free

    def forget_touches(self, order: Iterable[HostType]) -> None:
        """Changes the plan as if nothing else had been touched, in this order: of hosts with equally many
        free devices the one that was touched first is taken. The others must be as they were."""
        self._free = {key: self._free[key] for key in order}

    def suppose_placed(self, job: domain.Job, devices: tuple[domain.DeviceId, ...]) -> None:
        """Changes the plan as if the job had got these devices, without asking for it."""
        self._take(job, devices)

    def left_by(self, victim: domain.Job, newcomer: domain.Job) -> tuple[domain.DeviceId, ...] | None:
        """The devices for the newcomer if this job left, where that is plain: nothing else is free, and the
        job has a host's devices to itself. None: suppose that it has left, and search.
        """
        view, placement = self.view, victim.placement
        scheduling_class = view.queue.class_of(newcomer)
        if (
            placement is None
            or not victim.attempt.hosts_left  # It is reserved, and has no devices yet.
            or scheduling_class.nodes > 1
            or scheduling_class.memory_mib
            or scheduling_class.cpus
            or scheduling_class.host_memory_mib
            or self.actions
            or self._free
            or view.free.everywhere
            or view.kept
        ):
            return None
        devices, (host_id, *elsewhere) = placement.devices, victim.attempt.hosts_left
        if elsewhere or len(devices) < scheduling_class.gpus:
            return None
        host = view.hosts[host_id]
        if not host.takes_work or not suits(host, scheduling_class):
            return None
        type = scheduling_class.gpu_type or view.devices[devices[0]].type
        for device_id in devices:
            device = view.devices[device_id]
            is_fit = device.type == type and domain.is_type_for(scheduling_class.gpu_type, type)
            if not device.healthy or not is_fit or device.host_id != host_id:
                return None
            if (
                view.holdings.tenants(device_id) != [victim.spec.job_id]
                or view.holdings.claimed_by(device_id) is not None
            ):
                return None
        return devices[: scheduling_class.gpus]

    # --- What is free ------------------------------------------------------------------------------

    def free_devices(self, host_id: domain.HostId, type: str) -> Sequence[domain.DeviceId]:
        key = (host_id, type)
        return self._free[key] if key in self._free else self.view.free.devices[key]

    def free_total(self, type: str) -> int:
        """Free devices of a type on all hosts."""
        return self.view.free.total(type) + self._more.get(type, 0)

    def free_on(self, host_id: domain.HostId) -> int:
        """Free devices of all types on one host."""
        found = 0
        for type in self.view.free.types:
            found += len(self.free_devices(host_id, type))
        return found

    def any_free(self) -> bool:
        return self.free_everywhere > 0

    def hosts_with(self, type: str, count: int) -> Iterable[domain.HostId]:
        """Hosts with exactly so many free devices of a type."""
        untouched = self.view.free.hosts_with_free(type, count)
        return self._merge(untouched, type, count) if self._free else untouched

    def _merge(self, untouched: Iterable[domain.HostId], type: str, count: int) -> Iterator[domain.HostId]:
        for host_id in untouched:
            if (host_id, type) not in self._free:
                yield host_id
        for (host_id, host_type), devices in self._free.items():
            if host_type == type and len(devices) == count:
                yield host_id

    def most_free(self, type: str) -> int:
        """The greatest number of free devices of a type on one host."""
        most = self.view.free.most(type)
        if not self._free:
            return most
        return max(
            most, max((len(devices) for (_, t), devices in self._free.items() if t == type), default=0)
        )

    def free_count(self, scheduling_class: SchedulingClass) -> int:
        """Free devices that a job of this class could use, all of one type, were cores and main memory left
        there."""
        best = 0
        for type in self._types(scheduling_class):
            total = 0
            for count in range(self.most_free(type), 0, -1):
                hosts = self.view.hosts
                suited = (h for h in self.hosts_with(type, count) if suits(hosts[h], scheduling_class))
                total += sum(len(self.fitting(host_id, type, scheduling_class)) for host_id in suited)
            best = max(best, total)
        return best

    def _types(self, scheduling_class: SchedulingClass) -> Sequence[str]:
        return (scheduling_class.gpu_type,) if scheduling_class.gpu_type else self.view.free.types

    def can_take(self, host_id: domain.HostId, scheduling_class: SchedulingClass) -> bool:
        """Whether a host can take a gang of this class now, leaving its devices aside."""
        if not suits(self.view.hosts[host_id], scheduling_class):
            return False
        asks = scheduling_class.cpus or scheduling_class.host_memory_mib
        return not asks or self.has_room(host_id, scheduling_class)

    def has_room(self, host_id: domain.HostId, scheduling_class: SchedulingClass) -> bool:
        """Whether the cores and the main memory that a job asks for are left on a host."""
        return self.room_on(host_id).holds(scheduling_class.cpus, scheduling_class.host_memory_mib)

    def room_on(self, host_id: domain.HostId, without: Iterable[domain.JobId] = ()) -> domain.HostRoom:
        """Cores and main memory that are left on a host; those of jobs that still leave it are not, unless
        this plan supposes that they have left. `without`: as if these had, too."""
        view, gone = self.view, self.leaving.union(without)
        here = {job.job_id: job for job in view.holdings.asking_on(host_id)}
        for device_id, added in self._added.items():
            if view.devices[device_id].host_id == host_id:
                here |= {job_id: view.jobs[job_id] for job_id in added}
        staying = (each for each in here.values() if each.job_id not in gone)
        return domain.room_left(view.hosts[host_id].report, staying)

    # --- Finding a place ---------------------------------------------------------------------------

    def find_free(self, job: domain.Job) -> tuple[domain.DeviceId, ...] | None:
        """Free devices for the whole gang, consolidated, or None.

        On one host if any host could ever hold it: the one with the fewest devices left over, hosts
        of its last failures only when no other will do. Over several hosts otherwise, or as `nodes`
        asks, the fullest free ones first.
        """
        view, gpus = self.view, job.spec.gpus_min
        if gpus > self.free_everywhere:
            return None
        scheduling_class, free = view.queue.class_of(job), view.free
        if view.chosen and (chosen := self._find_chosen(job, scheduling_class)) is not None:
            return chosen
        for avoid in (job.avoid, ()) if job.avoid else ((),):
            for type in (scheduling_class.gpu_type,) if scheduling_class.gpu_type else free.types:
                if not (
                    self._free
                    or avoid
                    or view.kept
                    or scheduling_class.memory_mib
                    or scheduling_class.nodes > 1
                    or scheduling_class.cpus
                    or scheduling_class.host_memory_mib
                ):
                    tightest = free.tightest(type, gpus)
                    if tightest is not None and suits(view.hosts[tightest], scheduling_class):
                        return tuple(free.devices[tightest, type][:gpus])  # As it is for most jobs.
                    if tightest is None and gpus <= view.sizes.on_host(scheduling_class, type):
                        continue  # Nor would it be spread.
                if self.free_total(type) >= gpus:
                    found = self._find_on_type(scheduling_class, type, avoid)
                    if found:
                        return found
        return None

    def _find_chosen(
        self, job: domain.Job, scheduling_class: SchedulingClass
    ) -> tuple[domain.DeviceId, ...] | None:
        """What was chosen for it beforehand, if that can still be had."""
        devices = self.view.chosen.get(job.spec.job_id)
        if devices is None:
            return None
        known = self.view.devices
        places = {(known[d].host_id, known[d].type) for d in devices}
        free = {d for host_id, type in places for d in self.free_devices(host_id, type)}
        suited = all(self.can_take(host_id, scheduling_class) for host_id, _ in places)
        return devices if suited and free.issuperset(devices) else None

    def _find_on_type(
        self, scheduling_class: SchedulingClass, type: str, avoid: Sequence[domain.HostId]
    ) -> tuple[domain.DeviceId, ...] | None:
        gpus, nodes = scheduling_class.gpus, scheduling_class.nodes
        if nodes > 1:
            return self._find_pods(scheduling_class, type, nodes, gpus // nodes, avoid)
        found = self._find_together(scheduling_class, type, avoid)
        if found is None and nodes == 0 and gpus > self.view.sizes.on_host(scheduling_class, type):
            return self._spread(scheduling_class, type, avoid)
        return found

    def _find_together(
        self, scheduling_class: SchedulingClass, type: str, avoid: Sequence[domain.HostId]
    ) -> tuple[domain.DeviceId, ...] | None:
        """Finds devices on the host with the fewest free devices that are enough; of equal hosts one that the
        plan has not touched, the first by name, else the one that the plan touched first."""
        gpus, free, touched = scheduling_class.gpus, self.view.free, self._free
        found, fewest = None, free.most(type) + 1
        for (host_id, host_type), devices in touched.items():
            count = len(devices)
            if host_type == type and count >= gpus and (found is None or count < fewest):
                fitting = self.fitting(host_id, type, scheduling_class)
                if len(fitting) >= gpus and host_id not in avoid and self.can_take(host_id, scheduling_class):
                    found, fewest = fitting, count
        for count in range(gpus, min(fewest, free.most(type)) + 1):
            for host_id in free.hosts_with_free(type, count):
                if (
                    (host_id, type) in touched
                    or host_id in avoid
                    or not self.can_take(host_id, scheduling_class)
                ):
                    continue
                fitting = self.fitting(host_id, type, scheduling_class)
                if len(fitting) >= gpus:
                    return tuple(fitting[:gpus])
        return None if found is None else tuple(found[:gpus])

    def _find_pods(
        self,
        scheduling_class: SchedulingClass,
        type: str,
        nodes: int,
        per_node: int,
        avoid: Sequence[domain.HostId],
    ) -> tuple[domain.DeviceId, ...] | None:
        chosen: list[domain.DeviceId] = []
        pods = 0
        for count in range(per_node, self.most_free(type) + 1):
            for host_id in self.hosts_with(type, count):
                if (
                    host_id in avoid
                    or not self.can_take(host_id, scheduling_class)
                    or not self._reachable(host_id)
                ):
                    continue
                devices = self.fitting(host_id, type, scheduling_class)
                if len(devices) >= per_node:
                    chosen.extend(devices[:per_node])
                    pods += 1
                    if pods == nodes:
                        return tuple(chosen)
        return None

    def _spread(
        self, scheduling_class: SchedulingClass, type: str, avoid: Sequence[domain.HostId]
    ) -> tuple[domain.DeviceId, ...] | None:
        chosen: list[domain.DeviceId] = []
        for count in range(self.most_free(type), 0, -1):
            for host_id in self.hosts_with(type, count):
                if (
                    host_id in avoid
                    or not self.can_take(host_id, scheduling_class)
                    or not self._reachable(host_id)
                ):
                    continue
                chosen.extend(
                    self.fitting(host_id, type, scheduling_class)[: scheduling_class.gpus - len(chosen)]
                )
                if len(chosen) == scheduling_class.gpus:
                    return tuple(chosen)
        return None

    def _reachable(self, host_id: domain.HostId) -> bool:
        """A gang over several hosts needs addresses that other hosts can reach."""
        return not self.view.hosts[host_id].report.address.startswith("127.")

    def fitting(
        self, host_id: domain.HostId, type: str, scheduling_class: SchedulingClass
    ) -> Sequence[domain.DeviceId]:
        """Free devices of a host that have the memory."""
        devices = self.free_devices(host_id, type)
        if kept := self.view.kept:
            now_s = self.view.now_s
            devices = [d for d in devices if not is_barred(kept, d, scheduling_class, now_s)]
        if scheduling_class.memory_mib == 0:
            return devices
        return [d for d in devices if self.view.devices[d].usable_mib >= scheduling_class.memory_mib]

    # --- Who is where, after the plan --------------------------------------------------------------

    def staying(self, device_id: domain.DeviceId) -> list[domain.JobId]:
        """Jobs that hold or get the device and are not on their way out."""
        here = [j for j in self.view.holdings.tenants(device_id) if not self.is_leaving(j)]
        here.extend(self.list_coming(device_id))
        return here

    def list_coming(self, device_id: domain.DeviceId) -> Sequence[domain.JobId]:
        """Returns the jobs that will have the device and are no tenants of it yet: by a reservation, or by
        this plan."""
        claim = self.view.holdings.claimed_by(device_id)
        added = self._added.get(device_id, ())
        return added if claim is None or claim in self.leaving else (claim, *added)

    def is_leaving(self, job_id: domain.JobId) -> bool:
        return job_id in self.leaving or self.view.jobs[job_id].phase in domain.LEAVING

    def list_preempted(self) -> Iterator[domain.Job]:
        """Returns the jobs that lose their devices, or their reservation, by this plan; in no order."""
        return map(self.view.jobs.__getitem__, self.leaving)

    def is_placed(self, job_id: domain.JobId) -> bool:
        return job_id in self._placed

    def list_unplaced(self) -> Iterator[domain.Job]:
        """Waiting jobs that get nothing by this plan, in the policy's order."""
        waiting = self.view.queue.jobs_in_order()
        return (job for job in waiting if job.spec.job_id not in self._placed) if self.actions else waiting

    def decision(self) -> domain.Decision:
        """The decision that the policy answers."""
        return domain.Decision(actions=tuple(self.actions)) if self.actions else domain.NOTHING

    # --- Deciding ----------------------------------------------------------------------------------

    def place(
        self,
        job: domain.Job,
        devices: tuple[domain.DeviceId, ...],
        reason: domain.Reason,
        accumulation_steps: int = 1,
    ) -> None:
        """The job gets devices that are free, or that this plan's victims leave."""
        job_id = job.spec.job_id
        self.actions.append(
            domain.Place(job_id=job_id, devices=devices, accumulation_steps=accumulation_steps, reason=reason)
        )
        self._take(job, devices)

    def share(
        self,
        job: domain.Job,
        devices: tuple[domain.DeviceId, ...],
        reason: domain.Reason,
        accumulation_steps: int,
    ) -> None:
        """The job gets devices some of which hold one co-tenant that stays."""
        self.actions.append(
            domain.Share(
                job_id=job.job_id, devices=devices, accumulation_steps=accumulation_steps, reason=reason
            )
        )
        self._take(job, devices)

    def preempt(self, victim: domain.Job, newcomer: domain.Job, reason: domain.Reason) -> None:
        """The victim saves and leaves; its devices are not free before it has."""
        victim_id = victim.spec.job_id
        self.actions.append(domain.Preempt(job_id=victim_id, for_job=newcomer.spec.job_id, reason=reason))
        self.leaving.add(victim_id)

    def resize(self, job: domain.Job, devices: tuple[domain.DeviceId, ...], reason: domain.Reason) -> None:
        """An elastic job goes on with these: its own, free ones, or such as this plan's victims leave."""
        self.actions.append(domain.Resize(job_id=job.job_id, devices=devices, reason=reason))
        self.suppose_left(job)
        self._take(job, devices)

    def _take(self, job: domain.Job, devices: tuple[domain.DeviceId, ...]) -> None:
        job_id, known, added = job.spec.job_id, self.view.devices, self._added
        self._placed.add(job_id)
        before: domain.Device | None = None
        free: list[domain.DeviceId] = []
        for device_id in devices:
            device = known[device_id]
            if before is None or device.host_id != before.host_id or device.type != before.type:
                before, free = device, self._touch(device.host_id, device.type)
            if device_id in free:
                free.remove(device_id)
                self._more[device.type] -= 1
                self.free_everywhere -= 1
            if device_id in added:
                added[device_id].append(job_id)
            else:
                added[device_id] = [job_id]

    def _touch(self, host_id: domain.HostId, type: str) -> list[domain.DeviceId]:
        key = (host_id, type)
        if key not in self._free:
            self._free[key] = list(self.view.free.devices[host_id, type])
        return self._free[key]
