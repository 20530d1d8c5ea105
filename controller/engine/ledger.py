"""The cluster's state: jobs, hosts, and everything kept in order so that nobody has to search.

Rule: the ledger is changed only by the engine, only through the methods here, and every change keeps
every index and the cheap invariants; `check` asserts all of them (tests run it after every event).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from cotenant.controller.domain.cluster import Device, Host, HostReport
from cotenant.controller.domain.epochs import PAST_KEPT, Epoch, Past
from cotenant.controller.domain.held import ENDED_BYTES_MAX, held_bytes
from cotenant.controller.domain.ids import HostId, JobId
from cotenant.controller.domain.job import (
    ENDED,
    LIFECYCLE,
    LOADING,
    ON_DEVICES,
    QUEUED,
    RESERVED,
    RUNNING,
    Change,
    Job,
    LaunchKind,
    Phase,
    advance,
)
from cotenant.controller.domain.pairs import Observed, PairTable
from cotenant.controller.domain.perf import Interference, memory_mib, step_s
from cotenant.controller.domain.profiles import Profiles
from cotenant.controller.domain.reasons import Reason, because
from cotenant.controller.engine.holdings import Holdings
from cotenant.controller.engine.ordering import Active, QueueKey, WaitingJobs
from cotenant.controller.engine.sizes import Sizes


class Estimates(msgspec.Struct, kw_only=True):
    """Run times of ended jobs, for estimating those that say nothing about themselves."""

    by_command: dict[str, list[float]] = {}
    recent: list[float] = []
    loads: dict[str, list[float]] = {}
    """Launch to first step, by command; under the empty key of all commands."""
    warm_loads: dict[str, list[float]] = {}
    """Likewise, of those that were started warm: they are not in `loads`."""
    launched: dict[str, LaunchKind] = {}
    """How the last one was started, by command, and of all: the next one of its like should be as well."""
    pauses: dict[str, list[float]] = {}
    """Stop request to devices free, likewise."""


class SavedLedger(msgspec.Struct, kw_only=True):
    """The ledger's whole state; indexes are rebuilt from it."""

    jobs: list[Job]
    hosts: list[Host]
    pairs: dict[str, Observed]
    estimates: Estimates
    next_number: int = 1
    next_command: int = 1
    ended: list[JobId] = []
    """Oldest first."""
    profiles: Profiles = msgspec.field(default_factory=Profiles)
    departed: list[Device] = []
    """Devices that left their host's report while a job was on them."""
    epoch: Epoch = Epoch()
    epochs_past: list[Past] = []
    epochs_of_run: list[str] = []
    hold_until_s: float = 0.0


class Ledger:
    """The cluster's state and its indexes. Implements `View`."""

    def __init__(self, queue_key: QueueKey) -> None:
        self.now_s = 0.0
        self.jobs: dict[JobId, Job] = {}
        self.hosts: dict[HostId, Host] = {}
        self.holdings = Holdings(self.jobs)
        self.devices, self.free = self.holdings.devices, self.holdings.free
        self.pairs = PairTable()
        self.estimates = Estimates()
        self.profiles = Profiles()
        self.next_number = 1
        self.next_command = 1
        self.epoch = Epoch()
        self.epochs_past: list[Past] = []
        """Oldest first."""
        self.epochs_of_run: list[str] = []
        """Tokens of those that the present run of the controller began."""
        self.hold_until_s = 0.0
        """After a restore: until then jobs of earlier runs may be at work on hosts that have not joined."""
        self.waiting_on: dict[JobId, set[JobId]] = {}
        """Job -> blocked jobs that depend on it."""
        self.ended: OrderedDict[JobId, int] = OrderedDict()
        """Ended jobs, oldest first, with the bytes that each takes in memory."""
        self._ended_bytes = 0
        self._waiting = WaitingJobs(queue_key)
        self._active = Active()
        self._sizes = Sizes(self.hosts)
        # Most of the view is what an index says, without a layer between: they are asked at every event.
        self.heads, self.queue, self.queued = self._waiting.heads, self._waiting.queue, self._waiting.in_order
        self.scheduling_class, self.order_key = self._waiting.scheduling_class, self._waiting.order_key
        self.newcomers, self.queued_count = self._waiting.newcomers, self._waiting.__len__
        self.on_devices, self.paced = self._active.by_end, self._active.paced
        self.leaving = self._active.leaving
        self.tenants, self.shareable = self.holdings.tenants, self.holdings.shareable
        self.claimed_by, self.claimants = self.holdings.claimed_by, self.holdings.claimants
        self.partners = self.holdings.partners
        self.largest_placement, self.largest_now = self._sizes.ever, self._sizes.now
        self.largest_host = self._sizes.on_host

    # --- Reading (the View) ------------------------------------------------------------------------

    def running(self) -> Sequence[Job]:
        return self._active.running

    def loading(self) -> Sequence[Job]:
        return self._active.loading

    def planned_mib(self, job: Job) -> int | None:
        return job.placement.memory_mib if job.placement else None

    def interference(self, first: Job, second: Job) -> Interference:
        return self.pairs.interference(first, second)

    def foresee(self, job: Job, partners: Sequence[Job]) -> None:
        self.pairs.foresee(job, partners)

    # --- Epochs ------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: Epoch, after: int, *, goes_on: bool) -> None:
        """Another one; `goes_on`: the same run of the controller began the one before."""
        if self.epoch.token:
            self.epochs_past = [*self.epochs_past, Past(token=self.epoch.token, reached=after)][-PAST_KEPT:]
        self.epoch = epoch
        self.epochs_of_run = [*(self.epochs_of_run if goes_on else ()), epoch.token]

    def must_wait(self, job: Job) -> Reason | None:
        """Why a job that waits may not be given devices yet: it may be at work by the word of a history that
        this journal has lost."""
        if job.strays:
            return because("stray", job.strays[0])
        if self.now_s < self.hold_until_s and job.epoch not in self.epochs_of_run:
            return because("restored", self.hold_until_s - self.now_s)
        return None

    # --- Hosts -------------------------------------------------------------------------------------

    def put_host(self, report: HostReport) -> Host:
        """A host joined, or joined again with (perhaps) other devices."""
        host = self.hosts.get(report.host_id)
        if host is None:
            host = self.hosts[report.host_id] = Host(report=report, joined_s=self.now_s)
        self.holdings.put_devices(report, host.report.devices)
        host.report = report
        self.refresh_host(host)
        return host

    def refresh_host(self, host: Host) -> None:
        """After a change of its state or devices."""
        self._sizes.forget()
        self.holdings.refresh_host(host)

    # --- Jobs --------------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Another event."""
        assert now_s >= self.now_s, f"time went back from {self.now_s} to {now_s}"
        self.now_s = now_s
        if self._waiting.fresh:
            self._waiting.begin()

    def add_job(self, job: Job) -> None:
        assert job.job_id not in self.jobs, f"job {job.job_id} arrived twice"
        self.jobs[job.job_id] = job
        self._enter(job, is_new=True)

    def forget_ended(self, keep: int) -> None:
        """Drop ended jobs but for the last so many (fewer, if they are large) from memory, the oldest first;
        the journal keeps them."""
        while len(self.ended) > keep or self._ended_bytes > ENDED_BYTES_MAX:
            job_id, size = self.ended.popitem(last=False)  # A plain dict would search for its first entry.
            self._ended_bytes -= size
            job = self.jobs.pop(job_id)
            assert job.phase in ENDED, f"job {job_id} is {job.phase}"

    def change(self, job: Job, change: Change, reason: Reason) -> None:
        """The only way a phase changes: accounts for the time spent, moves the job between indexes."""
        after = LIFECYCLE.get((job.phase, change)) or advance(job.phase, change)
        self._end_phase(job)
        job.phase, job.phase_since_s, job.reason = after, self.now_s, reason
        if after in ENDED:
            job.ended_s = self.now_s
        self._enter(job, is_new=True)

    def requeue(self, job: Job, change: Change, reason: Reason, remaining_s: float | None) -> None:
        """All processes are gone and the job waits again, with what is left from its durable step."""
        after = advance(job.phase, change)
        self._end_phase(job)
        job.placement, job.step, job.remaining_s, job.slowdown = None, job.durable_step, remaining_s, 1.0
        job.phase, job.phase_since_s, job.reason = after, self.now_s, reason
        self._enter(job, is_new=True)

    def rekey(self, job: Job, update: Callable[[Job], None]) -> None:
        """Change what an index is ordered by (remaining time, slowdown, age) without losing the job."""
        self._leave(job)
        update(job)
        self._enter(job, is_new=False)

    def reorder_queues(self) -> None:
        """Another policy, another order."""
        self._waiting.reorder()

    def _end_phase(self, job: Job) -> None:
        """Account for the time in it, and take the job out of its index."""
        phase, spent_s = job.phase, self.now_s - job.phase_since_s
        assert spent_s >= 0, f"job {job.job_id}: time went backwards by {-spent_s} s"
        if phase is QUEUED:
            self._waiting.remove(job)
            job.wait_s += spent_s
            job.queued_s += spent_s
        elif phase is LOADING:
            self._active.remove(job)
            job.load_s += spent_s
        elif phase is RUNNING:
            self._active.remove(job)
            job.run_s += spent_s
            if job.remaining_s is not None:
                job.remaining_s = job.remaining_now_s(self.now_s)
                job.remaining_at_s = self.now_s
        elif phase in ON_DEVICES:
            self._active.remove(job)
            job.pause_s += spent_s
        elif phase is RESERVED:
            job.wait_s += spent_s
            job.queued_s += spent_s
        elif phase not in ENDED:
            job.wait_s += spent_s

    def _leave(self, job: Job) -> None:
        if job.phase is QUEUED:
            self._waiting.remove(job)
        elif job.phase in ON_DEVICES:
            self._active.remove(job)

    def _enter(self, job: Job, *, is_new: bool) -> None:
        phase = job.phase
        if phase is QUEUED:
            self._waiting.add(job, is_new=is_new)
        elif phase in ON_DEVICES:
            left_s = job.remaining_now_s(self.now_s)
            job.end_s = float("inf") if left_s is None else self.now_s + left_s * job.slowdown
            self._active.add(job)
        elif phase in ENDED:
            self._keep_ended(job)

    def _keep_ended(self, job: Job) -> None:
        self.ended[job.job_id] = size = held_bytes(job.spec)
        self._ended_bytes += size

    # --- What a placement means --------------------------------------------------------------------

    def stretch(self, job: Job, accumulation_steps: int) -> float:
        """Step time at s / step time at the whole batch, alone; 1 where nothing is known."""
        if accumulation_steps == 1 or job.profile is None or job.spec.batch_size is None:
            return 1.0
        whole = step_s(job.profile, job.spec.batch_size, 1, job.gang)
        part = step_s(job.profile, job.spec.batch_size, accumulation_steps, job.gang)
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

    def save(self) -> SavedLedger:
        return SavedLedger(
            jobs=list(self.jobs.values()),
            hosts=list(self.hosts.values()),
            pairs=self.pairs.entries,
            estimates=self.estimates,
            profiles=self.profiles,
            next_number=self.next_number,
            next_command=self.next_command,
            ended=list(self.ended),
            departed=list(self.holdings.departed.values()),
            epoch=self.epoch,
            epochs_past=self.epochs_past,
            epochs_of_run=self.epochs_of_run,
            hold_until_s=self.hold_until_s,
        )

    def load(self, saved: SavedLedger, now_s: float) -> None:
        """Take over a saved state; this ledger must be new."""
        assert not self.jobs and not self.hosts
        self.now_s = now_s
        self.pairs = PairTable(saved.pairs, self.pairs.foresight)
        self.estimates = saved.estimates
        self.profiles = saved.profiles
        self.next_number, self.next_command = saved.next_number, saved.next_command
        self.epoch, self.epochs_past = saved.epoch, saved.epochs_past
        self.epochs_of_run, self.hold_until_s = saved.epochs_of_run, saved.hold_until_s
        for host in saved.hosts:
            self.hosts[host.host_id] = host
            for device in host.report.devices:
                self.devices[device.device_id] = device
        for device in saved.departed:
            self.devices[device.device_id] = self.holdings.departed[device.device_id] = device
        for job in saved.jobs:
            self.jobs[job.job_id] = job
        for job_id in saved.ended:
            self._keep_ended(self.jobs[job_id])
        for job in sorted(saved.jobs, key=lambda j: j.number):
            if job.phase not in ENDED:
                self._restore(job)
        for host in saved.hosts:
            self.refresh_host(host)

    def _restore(self, job: Job) -> None:
        if job.phase is QUEUED:
            self._waiting.add(job, is_new=False)
        elif job.phase in ON_DEVICES:
            self._active.add(job)  # With the `end_s` it had: computed again it could stand elsewhere.
        for dependency in job.spec.after if job.phase in (Phase.BLOCKED, Phase.HELD) else ():
            self.waiting_on.setdefault(dependency.job_id, set()).add(job.job_id)
        self.holdings.restore(job)

    def check(self) -> None:
        """Assert every invariant. Costs as much as the cluster holds: for tests."""
        jobs = self.jobs.values()
        self.holdings.check(self.hosts.values())
        self._waiting.check(job for job in jobs if job.phase is QUEUED)
        self._active.check(job for job in jobs if job.phase in ON_DEVICES)
        for job in jobs:
            placed = job.phase in ON_DEVICES or job.phase is Phase.RESERVED
            assert (job.placement is not None) == placed, job
            if job.phase in ON_DEVICES:
                assert job.hosts_left, f"job {job.job_id} is {job.phase} on no host"
            if job.phase is Phase.RESERVED:
                assert job.waits_for, f"job {job.job_id} is reserved and waits for nobody"
