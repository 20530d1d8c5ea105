"""Jobs in the indexes that their phases put them in, and the only way from one phase to another.

Rule: a job is in the index of its phase, sorted by its record; code that changes what an index is sorted by
moves the job in it (`moved`). How many devices jobs of class hp ask for is counted here too, and there an
entry leaves as it was put in, whatever has happened to the job since.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from cotenant.controller import domain
from cotenant.controller.domain import job_spec
from cotenant.controller.engine.state.ordering import JobQueue, RunningJobs

NEVER_S: Final = float("inf")

RareWish = Literal["part", "priority", "promise", "bound", "booking", "idle", "budget"]


class Phases:
    """Moves jobs from phase to phase, and keeps the index of each."""

    def __init__(
        self,
        jobs: dict[domain.JobId, domain.Job],
        queue: JobQueue,
        running: RunningJobs,
        devices: Mapping[domain.DeviceId, domain.Device],
    ) -> None:
        self.now_s = 0.0
        self.ended = EndedJobs()
        self.ended_bytes_max = job_spec.ENDED_BYTES_MAX
        self.has_more_ended = False
        """Jobs have ended since some were last forgotten."""
        self.ended_now: list[domain.Job] = []
        """Jobs that this event has ended."""
        self.entered: list[domain.Job] | None = None
        """Jobs whose phase this event has changed; None: nobody asks."""
        self.hp = HpIndex(devices)
        self._jobs, self._queue, self._running = jobs, queue, running
        self.budgeted: dict[domain.JobId, domain.Job] = {}
        """Those with a budget that have not ended."""
        self.asked_for: set[RareWish] = set()
        """What some job has asked for at some time. While none has, nobody looks after it (`stages.py`)."""

    def add(self, job: domain.Job) -> None:
        job_id = job.spec.job_id
        assert job_id not in self._jobs, f"job {job_id} arrived twice"
        self._jobs[job_id] = job
        self.take_note(job)
        if job.phase is domain.QUEUED:
            self._queue.add(job, is_new=True)
        if self.entered is not None:
            self.entered.append(job)
        if job.spec.job_class == "hp":
            self.hp.put(job)

    def take_note(self, job: domain.Job) -> None:
        """Notes what the job asks for that few jobs ask for."""
        spec = job.spec
        if spec.budget_s is not None:
            self.budgeted[job.job_id] = job
            self.asked_for.add("budget")
        if spec.gpu_fraction < 1.0:
            self.asked_for.add("part")
        if spec.priority != 0:
            self.asked_for.add("priority")
        if spec.promised_s is not None:
            self.asked_for.add("promise")
        if spec.share_max is not None:
            self.asked_for.add("bound")

    def change(self, job: domain.Job, change: domain.Change, reason: domain.Reason) -> None:
        """The only way a phase changes: accounts for the time spent, moves the job between indexes."""
        phase, spent_s = job.phase, self.now_s - job.phase_since_s
        cell = (phase, change)
        after = domain.LIFECYCLE[cell] if cell in domain.LIFECYCLE else domain.advance(phase, change)
        assert spent_s >= 0, f"job {job.job_id}: time went backwards by {-spent_s} s"
        if phase in domain.ON_DEVICES:
            self._running.remove(job)
        if phase is domain.QUEUED or phase is domain.RESERVED:
            if phase is domain.QUEUED:
                self._queue.remove(job)
            job.spent.wait_s += spent_s
            job.spent.queued_s += spent_s
        elif phase is domain.LOADING:
            job.spent.load_s += spent_s
            if job.attempt.after_preemption:
                job.spent.interrupted_s += spent_s
        elif phase is domain.RUNNING:
            job.spent.run_s += spent_s
            if job.estimate.remaining_s is not None:
                expect_left(job.estimate, job.remaining_now_s(self.now_s))
                job.estimate.remaining_at_s = self.now_s
        elif phase in domain.ON_DEVICES:
            job.spent.pause_s += spent_s
            if job.attempt.stop_cause in domain.PREEMPTED:
                job.spent.interrupted_s += spent_s
        elif phase in domain.ENDED:
            self.ended.remove(job)
        else:
            job.spent.wait_s += spent_s
        job.phase, job.phase_since_s, job.reason = after, self.now_s, reason
        if after is domain.QUEUED:
            self._queue.add(job, is_new=True)
        elif after in domain.ON_DEVICES:
            left_s = job.estimate.remaining_s  # At a first step, too, it counts from now.
            job.estimate.end_s = NEVER_S if left_s is None else self.now_s + left_s * job.estimate.slowdown
            self._running.add(job)
        elif after in domain.ENDED:
            job.ended_s = self.now_s
            self.ended_now.append(job)
            self.keep_ended(job)
        if self.entered is not None:
            self.entered.append(job)
        if job.spec.job_class == "hp":
            self.hp.put(job)

    def forget_ended(self, keep: int) -> list[domain.Job]:
        """Drops ended jobs from memory but for so many (fewer, if they are large); returns the dropped ones.
        The controller writes them to the journal (`controller/store/core.py`)."""
        self.has_more_ended = False
        forgotten: list[domain.Job] = []
        ended = self.ended
        while (too_many := len(ended.sizes) > keep) or ended.size_bytes > self.ended_bytes_max:
            job = self._jobs.pop(ended.next_to_forget(by_bytes=not too_many))
            assert job.phase in domain.ENDED, f"job {job.job_id} is {job.phase}"
            ended.remove(job)
            forgotten.append(job)
        return forgotten

    def move(self, job: domain.Job) -> None:
        """What sorts the job in its index (remaining time, slowdown, age) has changed."""
        if job.phase is domain.QUEUED:
            self._queue.remove(job)
            self._queue.add(job, is_new=False)
        elif job.phase in domain.ON_DEVICES:
            self._running.remove(job)
            left_s = job.remaining_now_s(self.now_s)
            job.estimate.end_s = NEVER_S if left_s is None else self.now_s + left_s * job.estimate.slowdown
            self._running.add(job)

    def keep_ended(self, job: domain.Job) -> None:
        self.ended.add(job)
        self.has_more_ended = True


PLACES: Final = 6
"""Parts of devices are rounded to this, so that adding and removing one leaves exactly 0."""


class HpIndex:
    """How many devices jobs of class hp ask for, by device type and organisation; a part of one counts as
    such. A job that waits counts under the type it asks for (empty: any), one that is placed under the type
    it has. Implements `HpDemand`."""

    def __init__(self, devices: Mapping[domain.DeviceId, domain.Device]) -> None:
        self.waiting = defaultdict[str, float](int)
        self.placed = defaultdict[str, float](int)
        self.by_organisation = defaultdict[tuple[str, str], float](int)
        self._devices = devices
        self._at: dict[int, tuple[bool, str, str, float]] = {}
        """By job: whether it is placed, type, organisation, devices."""

    def put(self, job: domain.Job) -> None:
        """Counts the job where its phase says, and no longer where it counted before."""
        self.remove(job)
        phase, placement = job.phase, job.placement
        if phase is domain.QUEUED:
            self._count(job.number, (False, job.spec.gpu_type, job.spec.organisation, job.spec.size), 1)
        elif placement is not None and (phase is domain.RESERVED or phase in domain.ON_DEVICES):
            first = self._devices.get(placement.devices[0])
            type = job.spec.gpu_type if first is None else first.type
            self._count(job.number, (True, type, job.spec.organisation, placement.size), 1)

    def remove(self, job: domain.Job) -> None:
        if job.number in self._at:
            self._count(job.number, self._at[job.number], -1)

    def _count(self, number: int, entry: tuple[bool, str, str, float], sign: int) -> None:
        is_placed, type, organisation, size = entry
        side = self.placed if is_placed else self.waiting
        if sign > 0:
            self._at[number] = entry
        else:
            del self._at[number]
        side[type] = round(side[type] + sign * size, PLACES)
        if not side[type]:
            del side[type]
        theirs = round(self.by_organisation[type, organisation] + sign * size, PLACES)
        self.by_organisation[type, organisation] = theirs
        if not self.by_organisation[type, organisation]:
            del self.by_organisation[type, organisation]

    def check(self, jobs: Iterable[domain.Job]) -> None:
        """Asserts that a fresh count gives the same; types aside, for devices may have gone meanwhile."""
        hp = [job for job in jobs if job.spec.job_class == "hp"]
        waiting = sum(job.spec.size for job in hp if job.phase is domain.QUEUED)
        placed = sum(j.placement.size for j in hp if j.placement is not None)
        counted = sum(self.waiting.values()), sum(self.placed.values()), sum(self.by_organisation.values())
        pairs = zip(counted, (waiting, placed, waiting + placed), strict=True)
        assert all(abs(one - other) < 1e-3 for one, other in pairs), "hp devices"


class EndedJobs:
    """The ended jobs that are still remembered, by user; of each user those that never started apart from
    those that ran.

    Rule: one user's jobs do not push out another's. Whoever has the most of them (in number, or in bytes
    where memory is short) loses one: a job that never started before any that ran, and of those the oldest.
    """

    def __init__(self) -> None:
        self.sizes: OrderedDict[domain.JobId, int] = OrderedDict()
        """The bytes that each takes in memory, in the order in which they ended."""
        self.size_bytes = 0
        self._jobs_of: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()
        self._by_age: dict[tuple[str, bool], OrderedDict[domain.JobId, None]] = {}
        """Oldest first, by user and whether it ran."""

    def add(self, job: domain.Job) -> None:
        user = job.spec.user
        self.sizes[job.spec.job_id] = size = domain.held_bytes(job.spec)
        self.size_bytes += size
        self._jobs_of[user] += 1
        self._bytes_of[user] += size
        self._by_age.setdefault((user, job.attempt.number > 0), OrderedDict())[job.spec.job_id] = None

    def remove(self, job: domain.Job) -> None:
        job_id, user = job.spec.job_id, job.spec.user
        key = (user, job.attempt.number > 0)
        size = self.sizes[job_id]
        del self.sizes[job_id]
        self.size_bytes -= size
        self._jobs_of[user] -= 1
        self._bytes_of[user] -= size
        del self._by_age[key][job_id]
        if not self._by_age[key]:
            del self._by_age[key]
        if not self._jobs_of[user]:
            del self._jobs_of[user], self._bytes_of[user]

    def next_to_forget(self, *, by_bytes: bool) -> domain.JobId:
        """The job that is forgotten next. `by_bytes`: memory is short, so whoever takes the most of it loses
        one."""
        amounts = self._bytes_of if by_bytes else self._jobs_of
        user = next(iter(amounts)) if len(amounts) == 1 else self._find_with_most(amounts)
        never_ran = self._by_age.get((user, False))
        return next(iter(never_ran or self._by_age[user, True]))

    def _find_with_most(self, amounts: Counter[str]) -> str:
        """Finds the user who loses a job."""
        most = max(amounts.values())
        users = [user for user, amount in amounts.items() if amount == most]
        # Equal ones by name, so that every replay forgets the same job.
        return min([user for user in users if (user, False) in self._by_age] or users)


def expect_left(estimate: domain.JobEstimate, remaining_s: float | None) -> None:
    """Sets what is left, from the same source: the spread around it stays as it is."""
    before_s, estimate.remaining_s = estimate.remaining_s, remaining_s
    if estimate.low_s is None or estimate.high_s is None:
        return
    moved_s = (remaining_s or 0.0) - (before_s or 0.0)
    estimate.low_s, estimate.high_s = max(0.0, estimate.low_s + moved_s), max(0.0, estimate.high_s + moved_s)
