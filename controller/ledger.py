"""Who holds which device, who waits, and everything kept in order so that nobody has to search.

Rule: the ledger is changed only by the engine, only through the methods here, and every change keeps
every index and the cheap invariants; `check` asserts all of them (tests run it after every event).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from sortedcontainers import SortedKeyList, SortedSet

from cotenant.controller.domain.cluster import Device, Host, HostReport, HostState
from cotenant.controller.domain.ids import DeviceId, HostId, JobId
from cotenant.controller.domain.job import ENDED, ON_DEVICES, Change, Job, Phase, advance
from cotenant.controller.domain.pairs import Observed, PairTable
from cotenant.controller.domain.perf import Interference, memory_mib, step_s
from cotenant.controller.domain.reasons import Reason
from cotenant.controller.domain.view import Shape, shape_of, suits
from cotenant.controller.free_index import FreeIndex

QueueKey = Callable[[Job], tuple[float, ...]]


SIZES_KEPT = 10_000


class Estimates(msgspec.Struct, kw_only=True):
    """Run times of ended jobs, for estimating those that say nothing about themselves."""

    by_command: dict[str, list[float]] = {}
    recent: list[float] = []
    loads: dict[str, list[float]] = {}
    """Launch to first step, by command; under the empty key of all commands."""
    pauses: dict[str, list[float]] = {}
    """Stop request to devices free, likewise."""


class Saved(msgspec.Struct, kw_only=True):
    """The ledger's whole state; indexes are rebuilt from it."""

    jobs: list[Job]
    hosts: list[Host]
    pairs: dict[str, Observed]
    estimates: Estimates
    next_number: int = 1
    next_command: int = 1
    ended: list[JobId] = []
    """Oldest first."""
    departed: list[Device] = []
    """Devices that left their host's report while a job was on them."""


class Ledger:
    """The cluster's state and its indexes. Implements `View`."""

    def __init__(self, queue_key: QueueKey) -> None:
        self.now_s = 0.0
        self.jobs: dict[JobId, Job] = {}
        self.hosts: dict[HostId, Host] = {}
        self.devices: dict[DeviceId, Device] = {}
        self.free = FreeIndex()
        self.pairs = PairTable()
        self.estimates = Estimates()
        self.next_number = 1
        self.next_command = 1
        self.waiting_on: dict[JobId, set[JobId]] = {}
        """Job -> blocked jobs that depend on it."""
        self.ended: dict[JobId, None] = {}
        """Ended jobs, oldest first."""
        self._tenants: dict[DeviceId, list[JobId]] = {}
        self._claims: dict[DeviceId, JobId] = {}
        self._shareable: SortedSet[DeviceId] = SortedSet()
        self._departed: dict[DeviceId, Device] = {}
        self._on_host: dict[HostId, dict[JobId, None]] = {}
        self._queue_key = queue_key
        self._queues: dict[Shape, SortedKeyList[Job, Any]] = {}
        self._queued: dict[JobId, Shape] = {}
        self._heads: SortedKeyList[Job, Any] = SortedKeyList(key=self.order_key)
        self._newcomers: dict[JobId, None] = {}
        self._sizes: dict[tuple[Shape, str], int] = {}
        """What is known of `largest_...`, until a host changes."""
        self._active: SortedKeyList[Job, Any] = SortedKeyList(key=_end_key)
        self._running: SortedKeyList[Job, Any] = SortedKeyList(key=_end_key)
        self._loading: SortedKeyList[Job, Any] = SortedKeyList(key=_remaining_key)

    # --- Reading (the View) ------------------------------------------------------------------------

    def heads(self) -> Iterable[Job]:
        heads: Iterable[Job] = self._heads
        return heads

    def queue(self, shape: Shape) -> Sequence[Job]:
        queue: Sequence[Job] = self._queues.get(shape, ())
        return queue

    def queued(self) -> Iterator[Job]:
        heads = iter(self._heads)
        head = next(heads, None)
        started: list[tuple[Any, Job, Iterator[Job]]] = []  # Queues that have given their head.
        while head is not None or started:
            if head is not None and not (started and started[0][0] < self.order_key(head)):
                job, rest = head, self._queues[self._queued[head.job_id]].islice(1)
                head = next(heads, None)
            else:
                _, job, rest = heapq.heappop(started)
            yield job
            after = next(rest, None)
            if after is not None:
                heapq.heappush(started, (self.order_key(after), after, rest))

    def newcomers(self) -> Sequence[Job]:
        return sorted((self.jobs[j] for j in self._newcomers if j in self._queued), key=self.order_key)

    def queued_count(self) -> int:
        return len(self._queued)

    def order_key(self, job: Job) -> tuple[Any, ...]:
        """The policy's order, aged jobs first, ties by arrival."""
        return (not job.aged, self._queue_key(job), job.number)

    def on_devices(self) -> Sequence[Job]:
        active: Sequence[Job] = self._active
        return active

    def running(self) -> Sequence[Job]:
        running: Sequence[Job] = self._running
        return running

    def loading(self) -> Sequence[Job]:
        loading: Sequence[Job] = self._loading
        return loading

    def tenants(self, device_id: DeviceId) -> Sequence[JobId]:
        return self._tenants.get(device_id, ())

    def shareable(self) -> Iterable[DeviceId]:
        shareable: Iterable[DeviceId] = self._shareable
        return shareable

    def claimed_by(self, device_id: DeviceId) -> JobId | None:
        return self._claims.get(device_id)

    def claimants(self) -> Iterable[JobId]:
        """Reserved jobs, in order of arrival."""
        return sorted(set(self._claims.values()), key=lambda job_id: self.jobs[job_id].number)

    def on_host(self, host_id: HostId) -> Sequence[Job]:
        """Jobs whose current attempt still has processes (as far as is known) on the host."""
        return sorted(
            (self.jobs[job_id] for job_id in self._on_host.get(host_id, ())), key=lambda job: job.number
        )

    def planned_mib(self, job: Job) -> int | None:
        return job.placement.memory_mib if job.placement else None

    def interference(self, first: Job, second: Job) -> Interference:
        return self.pairs.interference(first, second)

    def largest_placement(self, shape: Shape) -> int:
        return self._sized(
            (shape, "ever"), lambda: self._largest(shape, [h for h in self.hosts.values() if not h.lost])
        )

    def largest_now(self, shape: Shape) -> int:
        return self._sized(
            (shape, "now"),
            lambda: self._largest(shape, [h for h in self.hosts.values() if h.state is HostState.OK]),
        )

    def largest_host(self, shape: Shape, type: str) -> int:
        return self._sized(
            (shape, f"host {type}"),
            lambda: max(
                (
                    sum(1 for d in host.report.devices if d.type == type and d.healthy)
                    for host in self._up()
                    if suits(host, shape)
                ),
                default=0,
            ),
        )

    def _up(self) -> list[Host]:
        return [host for host in self.hosts.values() if not host.lost and not host.drained_by]

    def _sized(self, key: tuple[Shape, str], count: Callable[[], int]) -> int:
        known = self._sizes.get(key)
        if known is None:
            if len(self._sizes) >= SIZES_KEPT:
                self._sizes.clear()
            known = self._sizes[key] = count()
        return known

    def _largest(self, shape: Shape, hosts: Sequence[Host]) -> int:
        types = {d.type for host in hosts for d in host.report.devices}
        wanted = types & {shape.gpu_type} if shape.gpu_type else types
        suited = [host for host in hosts if suits(host, shape)]
        return max((self._largest_of_type(shape, type, suited) for type in wanted), default=0)

    def _largest_of_type(self, shape: Shape, type: str, hosts: Sequence[Host]) -> int:
        counts = []
        for host in hosts:
            fitting = [d for d in host.report.devices if d.type == type and d.usable_mib >= shape.memory_mib]
            spread = not host.report.address.startswith("127.")
            counts.append((len(fitting), spread))
        if shape.nodes > 1:
            per_node = shape.gpus // shape.nodes
            pods = sum(1 for count, spread in counts if spread and count >= per_node)
            return pods * per_node
        alone = max((count for count, _ in counts), default=0)
        together = sum(count for count, spread in counts if spread)
        return alone if shape.nodes == 1 else max(alone, together)

    def partners(self, job: Job) -> tuple[JobId, ...]:
        """Jobs that hold one of its devices at this moment, in device order."""
        if job.placement is None or job.phase not in ON_DEVICES:
            return ()
        seen = {
            other: None
            for d in job.placement.devices
            for other in self._tenants.get(d, ())
            if other != job.job_id
        }
        return tuple(seen)

    # --- Hosts -------------------------------------------------------------------------------------

    def put_host(self, report: HostReport) -> Host:
        """A host joined, or joined again with (perhaps) other devices."""
        host = self.hosts.get(report.host_id)
        if host is None:
            host = Host(report=report, joined_s=self.now_s)
            self.hosts[report.host_id] = host
        known = host.report.devices
        for device in known:
            if not self._tenants.get(device.device_id) and device.device_id not in self._claims:
                self.devices.pop(device.device_id, None)
            else:  # Nobody gets it any more, unless the new report has it.
                gone = msgspec.structs.replace(device, healthy=False, note="its host no longer has it")
                self.devices[device.device_id] = self._departed[device.device_id] = gone
        host.report = report
        for device in report.devices:
            self.devices[device.device_id] = device
            self._departed.pop(device.device_id, None)
        self.refresh_host(host)
        for device_id in {d.device_id for d in (*report.devices, *known)}:
            self._note_tenancy(device_id)
        return host

    def refresh_host(self, host: Host) -> None:
        """Rebuild the host's part of the free index after a change of its state or devices."""
        self._sizes.clear()
        self.free.set_host(host, (d.device_id for d in host.report.devices if self._is_free(d)))

    def _is_free(self, device: Device) -> bool:
        return (
            device.healthy
            and not self._tenants.get(device.device_id)
            and device.device_id not in self._claims
        )

    # --- Jobs --------------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Another event."""
        assert now_s >= self.now_s, f"time went back from {self.now_s} to {now_s}"
        self.now_s = now_s
        self._newcomers.clear()

    def add_job(self, job: Job) -> None:
        assert job.job_id not in self.jobs, f"job {job.job_id} arrived twice"
        self.jobs[job.job_id] = job
        self._newcomers[job.job_id] = None
        self._enter(job)

    def forget_job(self, job_id: JobId) -> None:
        """Drop an ended job from memory; the journal keeps it."""
        assert self.jobs[job_id].phase in ENDED
        del self.jobs[job_id]
        del self.ended[job_id]

    def change(self, job: Job, change: Change, reason: Reason) -> None:
        """The only way a phase changes: accounts for the time spent, moves the job between indexes."""
        after = advance(job.phase, change)
        self._leave(job)
        self._account(job)
        job.phase, job.phase_since_s, job.reason = after, self.now_s, reason
        if after in ENDED:
            job.ended_s = self.now_s
        self._newcomers[job.job_id] = None
        self._enter(job)

    def requeue(self, job: Job, change: Change, reason: Reason, remaining_s: float | None) -> None:
        """All processes are gone and the job waits again, with what is left from its durable step."""
        after = advance(job.phase, change)
        self._leave(job)
        self._account(job)
        job.placement, job.step, job.remaining_s, job.slowdown = None, job.durable_step, remaining_s, 1.0
        job.phase, job.phase_since_s, job.reason = after, self.now_s, reason
        self._newcomers[job.job_id] = None
        self._enter(job)

    def reorder_queues(self) -> None:
        """Another policy, another order."""
        waiting = [job for queue in self._queues.values() for job in queue]
        self._queues, self._queued = {}, {}
        self._heads.clear()
        for job in waiting:
            self._enter(job)

    def rekey(self, job: Job, update: Callable[[Job], None]) -> None:
        """Change what an index is ordered by (remaining time, slowdown, age) without losing the job."""
        self._leave(job)
        update(job)
        self._enter(job)

    def _account(self, job: Job) -> None:
        spent_s = self.now_s - job.phase_since_s
        assert spent_s >= 0, f"job {job.job_id}: time went backwards by {-spent_s} s"
        if job.phase is Phase.LOADING:
            job.load_s += spent_s
        elif job.phase is Phase.RUNNING:
            job.run_s += spent_s
        elif job.phase in ON_DEVICES:
            job.pause_s += spent_s
        elif job.phase not in ENDED:
            job.wait_s += spent_s
            job.queued_s += spent_s if job.phase in (Phase.QUEUED, Phase.RESERVED) else 0.0
        if job.phase is Phase.RUNNING and job.remaining_s is not None:
            job.remaining_s = job.remaining_now_s(self.now_s)
            job.remaining_at_s = self.now_s

    def _leave(self, job: Job) -> None:
        if job.phase is Phase.QUEUED:
            shape = self._queued[job.job_id]
            queue = self._queues[shape]
            if queue[0] is job:
                self._heads.remove(job)
                if len(queue) > 1:
                    self._heads.add(queue[1])
            queue.remove(job)
            if not queue:
                del self._queues[shape]
            del self._queued[job.job_id]
        elif job.phase in ON_DEVICES:
            self._active.remove(job)
            if job.phase is Phase.RUNNING:
                self._running.remove(job)
            elif job.phase is Phase.LOADING:
                self._loading.remove(job)

    def _enter(self, job: Job) -> None:
        if job.phase is Phase.QUEUED:
            shape = shape_of(job)
            queue = self._queues.get(shape)
            if queue is None:
                queue = self._queues[shape] = SortedKeyList(key=self.order_key)
            queue.add(job)
            self._queued[job.job_id] = shape
            if queue[0] is job:
                if len(queue) > 1:
                    self._heads.remove(queue[1])
                self._heads.add(job)
        elif job.phase in ON_DEVICES:
            job.end_s = self._end_s(job)
            self._active.add(job)
            if job.phase is Phase.RUNNING:
                self._running.add(job)
            elif job.phase is Phase.LOADING:
                self._loading.add(job)
        elif job.phase in ENDED:
            self.ended[job.job_id] = None

    def _end_s(self, job: Job) -> float:
        left_s = job.remaining_now_s(self.now_s)
        return float("inf") if left_s is None else self.now_s + left_s * job.slowdown

    # --- Devices -----------------------------------------------------------------------------------

    def claim(self, job: Job, devices: Sequence[DeviceId]) -> None:
        """Nobody else gets these devices, though victims may still be on them."""
        for device_id in devices:
            assert device_id not in self._claims, f"{device_id} is already claimed"
            self._claims[device_id] = job.job_id
            self._take(device_id)

    def unclaim(self, job: Job) -> None:
        assert job.placement is not None
        for device_id in job.placement.devices:
            if self._claims.get(device_id) == job.job_id:
                del self._claims[device_id]
                self._give(device_id)

    def occupy(self, job: Job) -> None:
        """The gang holds its devices from now on."""
        assert job.placement is not None
        for device_id in job.placement.devices:
            assert self._claims.get(device_id, job.job_id) == job.job_id, f"{device_id} is claimed by another"
            self._claims.pop(device_id, None)
            here = self._tenants.setdefault(device_id, [])
            limit = self.devices[device_id].max_tenants
            assert job.job_id not in here and len(here) < limit, f"{device_id}: too many tenants: {here}"
            here.append(job.job_id)
            here.sort(key=lambda job_id: self.jobs[job_id].number)  # One order, after a restart too.
            self._take(device_id)

    def vacate(self, job: Job, host_id: HostId) -> tuple[DeviceId, ...]:
        """Every process of the gang on this host is gone."""
        assert job.placement is not None
        gone = [d for d in job.placement.devices if self.host_of(d) == host_id]
        for device_id in gone:
            here = self._tenants.get(device_id, [])
            if job.job_id in here:
                here.remove(job.job_id)
                self._give(device_id)
        self._on_host.get(host_id, {}).pop(job.job_id, None)
        return tuple(gone)

    def host_of(self, device_id: DeviceId) -> HostId:
        """Also of a device that is gone: devices are named after their hosts."""
        return HostId(device_id.rpartition("/")[0])

    def start_on(self, job: Job, hosts: Iterable[HostId]) -> None:
        for host_id in hosts:
            self._on_host.setdefault(host_id, {})[job.job_id] = None

    def _take(self, device_id: DeviceId) -> None:
        device = self.devices[device_id]
        self.free.take(device.host_id, device.type, device_id)
        self._note_tenancy(device_id)

    def _note_tenancy(self, device_id: DeviceId) -> None:
        """Its tenants, claim or health may have changed."""
        if self._is_shareable(self.devices.get(device_id)):
            self._shareable.add(device_id)
        else:
            self._shareable.discard(device_id)

    def _is_shareable(self, device: Device | None) -> bool:
        if device is None or not device.healthy or device.max_tenants < 2:
            return False
        return len(self._tenants.get(device.device_id, ())) == 1 and device.device_id not in self._claims

    def _give(self, device_id: DeviceId) -> None:
        device = self.devices[device_id]
        if self._is_free(device):
            self.free.give(device.host_id, device.type, device_id)
        elif device_id in self._departed and not (self._tenants.get(device_id) or device_id in self._claims):
            del self.devices[device_id], self._departed[device_id]
        self._note_tenancy(device_id)

    # --- What a placement means --------------------------------------------------------------------

    def stretch(self, job: Job, accumulation_steps: int) -> float:
        """Step time at s / step time at the whole batch, alone; 1 where nothing is known."""
        if job.profile is None or job.spec.batch_size is None or accumulation_steps == 1:
            return 1.0
        whole = step_s(job.profile, job.spec.batch_size, 1)
        part = step_s(job.profile, job.spec.batch_size, accumulation_steps)
        return max(1.0, part / whole) if whole and part else 1.0

    def expected_slowdown(self, job: Job) -> float:
        """Expected step time / step time alone at the whole batch, with its present co-tenants; the
        slowest device sets the gang's pace."""
        assert job.placement is not None
        xi = max((self.interference(job, self.jobs[p]).first for p in self.partners(job)), default=1.0)
        return xi * self.stretch(job, job.placement.accumulation_steps)

    def needed_mib(self, job: Job, accumulation_steps: int) -> int | None:
        """Peak memory per device at s: profiled, else declared (a bound at any s), else unknown."""
        profiled = memory_mib(job.profile, accumulation_steps) if job.profile else None
        if profiled is not None:
            return max(1, round(profiled))
        return job.spec.memory_mib

    # --- Saving and checking -----------------------------------------------------------------------

    def save(self) -> Saved:
        return Saved(
            jobs=list(self.jobs.values()),
            hosts=list(self.hosts.values()),
            pairs=self.pairs.entries,
            estimates=self.estimates,
            next_number=self.next_number,
            next_command=self.next_command,
            ended=list(self.ended),
            departed=list(self._departed.values()),
        )

    def load(self, saved: Saved, now_s: float) -> None:
        """Take over a saved state; this ledger must be new."""
        assert not self.jobs and not self.hosts
        self.now_s = now_s
        self.pairs, self.estimates = PairTable(saved.pairs), saved.estimates
        self.next_number, self.next_command = saved.next_number, saved.next_command
        for host in saved.hosts:
            self.hosts[host.host_id] = host
            for device in host.report.devices:
                self.devices[device.device_id] = device
        for device in saved.departed:
            self.devices[device.device_id] = self._departed[device.device_id] = device
        for job in saved.jobs:
            self.jobs[job.job_id] = job
        for job_id in saved.ended:
            self._enter(self.jobs[job_id])
        for job in sorted(saved.jobs, key=lambda j: j.number):
            if job.phase not in ENDED:
                self._restore(job)
        for host in saved.hosts:
            self.refresh_host(host)
        for device_id in self.devices:
            self._note_tenancy(device_id)

    def _restore(self, job: Job) -> None:
        end_s = job.end_s
        self._enter(job)
        if job.phase in ON_DEVICES:
            self._leave(job)
            job.end_s = end_s
            self._active.add(job)
            if job.phase is Phase.RUNNING:
                self._running.add(job)
            elif job.phase is Phase.LOADING:
                self._loading.add(job)
            self.start_on(job, job.hosts_left)
        for dependency in job.spec.after if job.phase in (Phase.BLOCKED, Phase.HELD) else ():
            self.waiting_on.setdefault(dependency.job_id, set()).add(job.job_id)
        if job.placement is None:
            return
        if job.phase is Phase.RESERVED:
            for device_id in job.placement.devices:
                self._claims[device_id] = job.job_id
        elif job.phase in ON_DEVICES:
            for device_id in job.placement.devices:
                if self.host_of(device_id) in job.hosts_left:
                    self._tenants.setdefault(device_id, []).append(job.job_id)

    def check(self) -> None:
        """Assert every invariant. Costs as much as the cluster holds: for tests."""
        self._check_devices()
        queued = [job for queue in self._queues.values() for job in queue]
        assert {j.job_id for j in queued} == {j.job_id for j in self.jobs.values() if j.phase is Phase.QUEUED}
        heads = sorted((queue[0] for queue in self._queues.values()), key=self.order_key)
        assert [j.job_id for j in self._heads] == [j.job_id for j in heads]
        assert len(self._active) == sum(1 for j in self.jobs.values() if j.phase in ON_DEVICES)
        for job in self.jobs.values():
            assert (job.placement is not None) == (job.phase in ON_DEVICES or job.phase is Phase.RESERVED), (
                job
            )
            if job.phase in ON_DEVICES:
                assert job.hosts_left, f"job {job.job_id} is {job.phase} on no host"
            if job.phase is Phase.RESERVED:
                assert job.waits_for, f"job {job.job_id} is reserved and waits for nobody"

    def _check_devices(self) -> None:
        alone = [d.device_id for d in self.devices.values() if self._is_shareable(d)]
        assert sorted(self._shareable) == sorted(alone)
        for device_id, here in self._tenants.items():
            if not here:
                continue
            device = self.devices[device_id]
            assert len(here) == len(set(here)) <= device.max_tenants, f"{device_id}: tenants {here}"
            jobs = [self.jobs[job_id] for job_id in here]
            assert all(
                j.phase in ON_DEVICES and j.placement and device_id in j.placement.devices for j in jobs
            )
            if len(here) > 1:
                planned = [self.planned_mib(j) for j in jobs]
                assert all(p is not None for p in planned), f"{device_id}: shared with unknown memory: {here}"
                assert sum(p or 0 for p in planned) <= device.usable_mib, (
                    f"{device_id}: {planned} MiB planned"
                )
        for host in self.hosts.values():
            wanted = (
                {d.device_id for d in host.report.devices if self._is_free(d)}
                if host.state is HostState.OK
                else set()
            )
            types = {d.type for d in host.report.devices}
            assert {d for t in types for d in self.free.devices(host.host_id, t)} == wanted, host.host_id


def _end_key(job: Job) -> tuple[float, int]:
    return (job.end_s, job.number)


def _remaining_key(job: Job) -> tuple[float, int]:
    return (float("inf") if job.remaining_s is None else job.remaining_s, job.number)
