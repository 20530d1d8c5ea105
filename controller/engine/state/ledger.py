"""The cluster's state: jobs and hosts, with indexes, so that nobody has to search.

Rule: only the engine changes the ledger, only through the methods here, and every change keeps every index
and the cheap invariants; `check` asserts all of them (tests run it after every event).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from math import inf
from types import MappingProxyType
from typing import Final

import msgspec

from cotenant.controller import domain
from cotenant.controller.engine.state import capacity, holdings, ordering, phases, records, siblings
from cotenant.controller.engine.state.bookings import Bookings, OpenBooking, SavedBookings
from cotenant.controller.knowledge import Observed, PairTable, Profiles, Resumes
from cotenant.controller.planning import SchedulingClass, scheduling_class_of, staying_class_of

EMPTY: Final = MappingProxyType[domain.DeviceId, domain.Device]({})
ARRAY_LIMIT = "array-limit"
ASIDE = domain.ENDED | {domain.Phase.BLOCKED, domain.Phase.HELD}
"""Phases in which a task takes no place of its array."""


class Estimates(msgspec.Struct, kw_only=True):
    """Run times of ended jobs, to estimate jobs whose users declare nothing; by each key of their families,
    the longest unused first."""

    by_command: dict[str, list[float]] = {}
    """Training, in seconds."""
    loads: dict[str, list[float]] = {}
    """Launch to first step; the empty key stands for all commands."""
    warm_loads: dict[str, list[float]] = {}
    """Likewise for warm starts, which are not in `loads`."""
    launch_kinds: dict[str, domain.LaunchKind] = {}
    """How the last job started, by command and overall: the next one will likely start the same way."""
    pauses: dict[str, list[float]] = {}
    """Stop request to devices free, likewise."""
    curves: dict[str, tuple[tuple[int, float], ...]] = {}
    """Step times of elastic jobs by number of devices, by command."""


class DecayedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody has used, for fair share (`admission.py`)."""

    device_s: float
    """Decayed device-seconds at `at_s`."""
    at_s: float
    devices: float
    """Devices held since `at_s`."""


class SavedLedger(msgspec.Struct, kw_only=True):
    """The ledger's whole state; indexes are rebuilt from it."""

    jobs: list[domain.Job]
    hosts: list[domain.Host]
    pairs: dict[str, Observed]
    estimates: Estimates
    next_number: int = 1
    numbers_skipped: int = 0
    next_command: int = 1
    ended: list[domain.JobId] = []
    """Oldest first."""
    profiles: Profiles = msgspec.field(default_factory=Profiles)
    resumes: Resumes = msgspec.field(default_factory=Resumes)
    departed: list[domain.Device] = []
    """Devices that left their host's report while a job was on them."""
    epoch: domain.Epoch = domain.Epoch()
    epochs_past: list[domain.Past] = []
    epochs_of_run: list[str] = []
    hold_until_s: float = 0.0
    accounts: dict[str, DecayedUsage] = {}
    rank_again_s: float | None = None
    bookings: SavedBookings = msgspec.field(default_factory=SavedBookings)


class Ledger:
    """The state of the cluster: the jobs and hosts, and an index for each question that is asked at every
    event. Implements `View`."""

    chosen: Mapping[domain.JobId, tuple[domain.DeviceId, ...]] = MappingProxyType({})
    """Empty: only a policy's own view has anything here."""

    def __init__(self, queue_key: ordering.QueueKey) -> None:
        self.now_s = 0.0
        self.jobs: dict[domain.JobId, domain.Job] = {}
        self.hosts: dict[domain.HostId, domain.Host] = {}
        self.devices: dict[domain.DeviceId, domain.Device] = {}
        self.queue = ordering.JobQueue(queue_key)
        """Who waits, in the policy's order."""
        self.running = ordering.RunningJobs()
        """Who holds devices, by predicted end."""
        self.holdings = holdings.Holdings(self.jobs, self.devices)
        """Who holds which device, and who gets it next."""
        self.phases = phases.Phases(self.jobs, self.queue, self.running, self.devices)
        """The only way from one phase to another."""
        self.records = records.Records(self.phases, self.queue)
        """The only way to change the record of a job."""
        self.sizes = capacity.Sizes(self.hosts)
        """What hosts could hold, were they empty."""
        self.bookings = Bookings()
        """Devices that are reserved for users."""
        self.siblings = siblings.Siblings()
        """Jobs that hear when their like end."""
        self.kept = self.sizes.kept = self.bookings.kept
        self.free = self.holdings.free
        self.hp = self.phases.hp
        self.pairs = PairTable()
        self.pairs.asked_for = self.phases.asked_for
        self.estimates = Estimates()
        self.profiles = Profiles()
        self.resumes = Resumes()
        self.next_number = 1
        self.numbers_skipped = 0
        """Of jobs in a history that this journal has lost."""
        self.next_command = 1
        self.began_hour = 0
        self.epoch = domain.Epoch()
        self.epochs_past: list[domain.Past] = []
        """Oldest first."""
        self.epochs_of_run: list[str] = []
        """Tokens of the epochs that the present run of the controller began."""
        self.hold_until_s = 0.0
        """After a restore: until then jobs of earlier runs may be at work on hosts that have not joined."""
        self.accounts: dict[str, DecayedUsage] = {}
        """By the name that is charged; empty without fair share."""
        self.rank_again_s: float | None = None
        """When all waiting jobs are ranked by fair share again."""
        self.waiting_on: dict[domain.JobId, set[domain.JobId]] = {}
        """Job -> blocked jobs that depend on it."""
        self._limited: dict[str, dict[domain.JobId, domain.Job]] = {}
        """Array -> its tasks that have not ended, in order of arrival."""
        self._owners = frozenset[str]()
        """Users who have reserved devices."""
        self._going: list[domain.Host] = []
        """Hosts that go away at a known time."""

    # --- Epochs ------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: domain.Epoch, after: int, *, goes_on: bool) -> None:
        """Begins another epoch of the ledger; `goes_on`: the same run of the controller began the one
        before."""
        if self.epoch.token:
            self.epochs_past = [*self.epochs_past, domain.Past(token=self.epoch.token, reached=after)][
                -domain.PAST_KEPT :
            ]
        self.epoch = epoch
        self.epochs_of_run = [*(self.epochs_of_run if goes_on else ()), epoch.token]

    def must_wait(self, job: domain.Job) -> domain.Reason | None:
        """Why a waiting job may not get devices yet: by a history that this journal has lost it may be
        running."""
        if job.strays:
            return domain.because("stray", job.strays[0])
        if self.now_s < self.hold_until_s and job.epoch not in self.epochs_of_run:
            return domain.because("restored", self.hold_until_s - self.now_s)
        if job.spec.begin_s is not None and self.now_s < job.spec.begin_s:
            return domain.because("begins-later", job.spec.begin_s - job.submitted_s)
        limit = job.spec.array_limit
        if limit and self._is_full(domain.array_of(job.job_id), limit, job):
            return domain.because(ARRAY_LIMIT, domain.array_of(job.job_id), limit)
        return None

    # --- Arrays with a limit -----------------------------------------------------------------------

    def join_array(self, job: domain.Job) -> None:
        """The job is a task of an array with a limit on tasks at once."""
        self._limited.setdefault(domain.array_of(job.job_id), {})[job.job_id] = job

    def next_of_array(self, job: domain.Job) -> domain.Job | None:
        """A task has given up its place, for good or for now: returns the first task that waits for one."""
        tasks = self._limited.get(domain.array_of(job.job_id), {})
        if job.phase in domain.ENDED:
            tasks.pop(job.job_id, None)
            if not tasks:
                self._limited.pop(domain.array_of(job.job_id), None)
        found = _first_blocked(tasks.values(), job)
        return (
            None
            if found is None or self._is_full(domain.array_of(job.job_id), job.spec.array_limit, found)
            else found
        )

    def is_followed(self, job: domain.Job) -> bool:
        tasks = self._limited.get(domain.array_of(job.job_id), {}) if job.spec.array_limit else {}
        return _first_blocked(tasks.values(), job) is not None

    def _is_full(self, array: str, limit: int, but: domain.Job) -> bool:
        count = 0
        for task in self._limited.get(array, {}).values():  # Those with a place stand first.
            if task is not but and task.phase not in ASIDE:
                count += 1
                if count >= limit:
                    return True
        return False

    # --- Hosts -------------------------------------------------------------------------------------

    def put_host(self, report: domain.HostReport) -> domain.Host:
        """A host joined, or joined again with (perhaps) other devices."""
        self.bookings.note_report(report)
        report = self.bookings.as_closed(report)
        host = self.hosts.get(report.host_id)
        if host is None:
            host = self.hosts[report.host_id] = domain.Host(report=report, joined_s=self.now_s)
        self.holdings.put_devices(report, host.report.devices)
        host.report = report
        self.refresh_host(host)
        return host

    def refresh_host(self, host: domain.Host) -> None:
        """After a change of its state or devices."""
        self.sizes.forget()
        self.holdings.refresh_host(host)

    # --- Reservations ------------------------------------------------------------------------------

    def close_devices(self, each: OpenBooking, devices: Iterable[domain.DeviceId]) -> None:
        """Nobody but the owner of the reservation gets these devices any more."""
        known = [self.devices[device_id] for device_id in devices if device_id in self.devices]
        self.bookings.close(each, known)
        self._offer_anew(device.host_id for device in known)

    def open_devices(self, devices: Iterable[domain.DeviceId]) -> None:
        """Everybody may get these devices again, as far as their hosts offer them."""
        found = [(each, self.bookings.saved.closed.pop(each, None)) for each in devices]
        known = {each: closed.known for each, closed in found if closed is not None and closed.known}
        for host in {self.holdings.host_of(each): None for each in known}:
            self._offer_anew((host,), known)

    def _offer_anew(
        self, hosts: Iterable[domain.HostId], known: Mapping[domain.DeviceId, domain.Device] = EMPTY
    ) -> None:
        """Counts again what these hosts offer; `known`: devices as their hosts have them."""
        for host in [self.hosts[each] for each in dict.fromkeys(hosts) if each in self.hosts]:
            devices = (known.get(device.device_id, device) for device in host.report.devices)
            report = msgspec.structs.replace(host.report, devices=tuple(devices))
            host.report = self.bookings.as_closed(report)
            here = {device.device_id: device for device in host.report.devices}
            self.devices.update(here)
            self.refresh_host(host)

    def stays_until(self, host: domain.Host, clears_at_s: float | None) -> None:
        """When a host's jobs are asked to leave it, because it goes away; None: it stays."""
        host.clears_at_s = clears_at_s
        host.left_s = inf if clears_at_s is None else max(0.0, clears_at_s - self.now_s)
        self._look_who_goes()

    def _look_who_goes(self) -> None:
        self._going = [host for host in self.hosts.values() if host.clears_at_s is not None]
        self.look_who_stays()

    def look_who_stays(self) -> None:
        """Some hosts or devices may not be had for long, or no longer so: jobs are told apart by what they
        need."""
        self.bookings.refresh()
        self.sizes.forget()
        owners = frozenset(each.user for each in self.bookings.open.values())
        if not owners:
            self.queue.divide(staying_class_of if self._going else scheduling_class_of)
        elif owners != self._owners:

            def class_of(job: domain.Job) -> SchedulingClass:
                found = staying_class_of(job)
                user = job.spec.user
                return msgspec.structs.replace(found, user=user) if user in owners else found

            self.queue.divide(class_of)
        self._owners = owners

    # --- Jobs --------------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Begins another event, at the time `now_s`."""
        assert now_s >= self.now_s, f"time went back from {self.now_s} to {now_s}"
        self.now_s = self.phases.now_s = self.siblings.now_s = now_s
        self.queue.fresh, self.phases.ended_now = [], []
        self.sizes.now_s = now_s
        if self._going or self.kept:
            for host in self._going:
                assert host.clears_at_s is not None
                host.left_s = max(0.0, host.clears_at_s - now_s)
            self.sizes.forget()

    def as_of(self, now_s: float) -> Ledger:
        """Returns the same state as it is at a later time, to be read only: events have yet to come until
        then."""
        later = copy(self)
        later.now_s = max(self.now_s, now_s)
        return later

    # --- What a placement means --------------------------------------------------------------------

    def expected_slowdown(self, job: domain.Job) -> float:
        """Expected step time / step time alone at the whole batch, with its present co-tenants; the
        slowest device sets the gang's pace."""
        assert job.placement is not None
        xi = max(
            (self.pairs.interference(job, self.jobs[p]).first for p in self.holdings.partners(job)),
            default=1.0,
        )
        return xi * job.split_slowdown(job.placement.accumulation_steps)

    # --- Saving and checking -----------------------------------------------------------------------

    def save(self) -> SavedLedger:
        return SavedLedger(
            jobs=list(self.jobs.values()),
            hosts=list(self.hosts.values()),
            pairs=self.pairs.entries,
            estimates=self.estimates,
            profiles=self.profiles,
            resumes=self.resumes,
            next_number=self.next_number,
            numbers_skipped=self.numbers_skipped,
            next_command=self.next_command,
            ended=list(self.phases.ended.sizes),
            departed=list(self.holdings.departed.values()),
            epoch=self.epoch,
            epochs_past=self.epochs_past,
            epochs_of_run=self.epochs_of_run,
            hold_until_s=self.hold_until_s,
            accounts=self.accounts,
            rank_again_s=self.rank_again_s,
            bookings=self.bookings.saved,
        )

    def load(self, saved: SavedLedger, now_s: float) -> None:
        """Take over a saved state; this ledger must be new."""
        assert not self.jobs and not self.hosts
        self.now_s = self.phases.now_s = self.siblings.now_s = now_s
        before = self.pairs
        self.pairs = PairTable(saved.pairs, before.foresight)
        self.pairs.sharing, self.pairs.share_max_of = before.sharing, before.share_max_of
        self.pairs.asked_for = self.phases.asked_for
        self.estimates = saved.estimates
        self.profiles, self.resumes = saved.profiles, saved.resumes
        self.next_number, self.next_command = saved.next_number, saved.next_command
        self.numbers_skipped = saved.numbers_skipped
        self.epoch, self.epochs_past = saved.epoch, saved.epochs_past
        self.epochs_of_run, self.hold_until_s = saved.epochs_of_run, saved.hold_until_s
        self.accounts, self.rank_again_s = saved.accounts, saved.rank_again_s
        self.bookings.saved, self.sizes.now_s = saved.bookings, now_s
        if saved.bookings.open:
            self.phases.asked_for.add("booking")
        for host in saved.hosts:
            self.hosts[host.host_id] = host
            for device in host.report.devices:
                self.devices[device.device_id] = device
        self._look_who_goes()
        for device in saved.departed:
            self.devices[device.device_id] = self.holdings.departed[device.device_id] = device
        for job in saved.jobs:
            self.jobs[job.job_id] = job
        for job_id in saved.ended:
            self.phases.keep_ended(self.jobs[job_id])
        for job in sorted(saved.jobs, key=lambda j: j.number):
            if job.phase not in domain.ENDED:
                self._restore(job)
        for host in saved.hosts:
            self.refresh_host(host)

    def _restore(self, job: domain.Job) -> None:
        self.siblings.add(job)
        self.phases.take_note(job)
        if job.lends:
            self.phases.asked_for.add("idle")
        if job.spec.job_class == "hp":
            self.hp.put(job)
        if job.phase is domain.QUEUED:
            self.queue.add(job, is_new=False)
        elif job.phase in domain.ON_DEVICES:
            self.running.add(job)  # With the `end_s` it had: computed again it could stand elsewhere.
        for dependency in job.spec.after if job.phase in (domain.Phase.BLOCKED, domain.Phase.HELD) else ():
            self.waiting_on.setdefault(dependency.job_id, set()).add(job.job_id)
        if job.spec.array_limit:
            self.join_array(job)
        self.holdings.restore(job)

    def check(self) -> None:
        """Asserts every invariant of the ledger. The check costs as much as the cluster holds: it is for
        tests."""
        jobs = self.jobs.values()
        for job in jobs:
            if job.resize_to is not None:
                assert job.phase in domain.LEAVING and job.attempt.stop_cause in ("resized", "cancelled"), job
                assert all(self.holdings.claimed_by(d) == job.job_id for d in job.resize_to.devices), job
        assert self.phases.ended.size_bytes == sum(self.phases.ended.sizes.values())
        self.holdings.check(self.hosts.values())
        self.queue.check(job for job in jobs if job.phase is domain.QUEUED)
        self.running.check(job for job in jobs if job.phase in domain.ON_DEVICES)
        self.hp.check(jobs)
        for job in jobs:
            placed = job.phase in domain.ON_DEVICES or job.phase is domain.Phase.RESERVED
            assert (job.placement is not None) == placed, job
            if job.phase in domain.ON_DEVICES:
                assert job.attempt.hosts_left, f"job {job.job_id} is {job.phase} on no host"
            if job.phase is domain.Phase.RESERVED:
                assert job.waits_for, f"job {job.job_id} is reserved and waits for nobody"


def _first_blocked(tasks: Iterable[domain.Job], but: domain.Job) -> domain.Job | None:
    """The first task that waits for another one of its array to leave."""
    waiting = (task for task in tasks if task.phase is domain.Phase.BLOCKED and task is not but)
    return next((task for task in waiting if task.reason.code == ARRAY_LIMIT), None)
