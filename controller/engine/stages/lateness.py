"""Whose turn it is: waiting jobs that fifo would have served by now go first, on a bounded share of the
devices.

Source: ours (`docs/policies.md`). Fifo is played beside the cluster, greater priorities first, with as many
devices and no hosts. A job has the length that is known of it there; one of unknown length has the mean of
those that have ended. A job is late once it has ended there, or could no longer end here as early as there.

Late jobs are marked (`Job.aged`) in the order of their ends there, as long as all marked jobs together ask
for at most `limit` devices: a share of all, less `SPARED`, which small clusters keep for short jobs. A job
that asks for more than that is late after twice its time under fifo and a day. One is marked in any case.

Rule: what is played depends on earlier arrivals alone, so every job that waits is late at some time, whatever
comes after it, and only jobs with an earlier end there are marked before it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import Final

import msgspec

from cotenant.controller.domain import ENDED, QUEUED, Job, JobId, Reason, because
from cotenant.controller.domain import events as ev
from cotenant.controller.engine.stages.stages import UNASKED
from cotenant.controller.engine.state.dispatch import Dispatch
from cotenant.controller.engine.state.ledger import ASIDE
from cotenant.controller.planning import is_possible

SPARED: Final = 8
TRIED_MAX: Final = 64
"""Waiting jobs, by their ends there, that are looked at after one event."""
FIRST_S: Final = 3600.0
"""The length of a job of unknown length while none has ended."""
WIDE_S: Final = 86_400.0
WIDE_RATIO: Final = 2.0
NEAR_S: Final = 1.0
FREQUENT: Final = frozenset(
    (
        ev.JobArrived,
        ev.AttemptStarted,
        ev.CapabilitiesSeen,
        ev.FirstStepDone,
        ev.ProgressSeen,
        ev.CheckpointDurable,
        ev.AttemptEnded,
    )
)
"""Events that change no host."""


class PlayedJob(msgspec.Struct, array_like=True):
    """A job in the fifo that is played. It is played to its end there, even when it has ended here."""

    job_id: JobId
    number: int
    gpus: int
    priority: int
    submitted_s: float
    length_s: float
    begun_s: float = -1.0
    """Negative: it waits there."""
    ends_s: float = -1.0
    is_over: bool = False
    """It has ended there."""

    @property
    def by_end(self) -> tuple[float, int, JobId]:
        return self.ends_s, self.number, self.job_id


class SavedLateness(msgspec.Struct, kw_only=True):
    """The fifo that is played, and the jobs that have ended here."""

    jobs: list[PlayedJob] = []
    ended: int = 0
    ended_s: float = 0.0
    """Seconds of training of all of them."""
    alarm_s: float = -1.0


class Lateness:
    """Plays fifo beside the cluster, and marks the jobs whose turn it is."""

    def __init__(self, dispatch: Dispatch, share: float) -> None:
        """Takes `share`, a share of the devices; 0 = no job is ever marked, and nothing is played."""
        self.share = share
        self._dispatch, self._ledger = dispatch, dispatch.ledger
        self._gpus, self._busy = 0, 0
        self._played: dict[JobId, PlayedJob] = {}
        self._waiting: list[tuple[int, int, JobId]] = []
        """Heap of the jobs that wait there: negative priority, number. An entry that is not true any more is
        skipped."""
        self._too_wide: list[tuple[int, int, JobId]] = []
        """Jobs that wait there and ask for more devices than there are now."""
        self._ends: list[tuple[float, int, JobId]] = []
        """Heap of the ends there; an entry that is not true any more is skipped."""
        self._order: list[tuple[float, int, JobId]] = []
        """Sorted: the jobs that have begun there, wait here and are not marked."""
        self._marked: dict[JobId, int] = {}
        """The marked jobs that have not ended, with their devices."""
        self._ended, self._ended_s = 0, 0.0
        self._alarm_s = -1.0

    @property
    def limit(self) -> float:
        """How many devices all marked jobs may ask for together."""
        return self.share * self._gpus - SPARED

    def admit(self, event: ev.AnyEvent, changed: list[Job]) -> None:
        """Takes in an event. The fifo is played under every policy; jobs are marked under those by size."""
        if not changed and type(event) in UNASKED:
            return
        now_s = self._ledger.now_s
        if type(event) not in FREQUENT or not self._gpus:
            self._count_devices()
        self._play(now_s)
        for job in changed:
            if job.phase in ENDED:
                self._end(job)
            elif job.phase is QUEUED:
                self._queue(job)
            elif (one := self._played.get(job.job_id)) is not None:
                self._unlist(one)
        if type(event) is ev.ProgressSeen and event.total_steps is not None:
            self._learn(event.job_id)
        self._begin(now_s)
        if self._dispatch.takes_turns:
            self._mark(now_s)

    def _count_devices(self) -> None:
        hosts = [host for host in self._ledger.hosts.values() if host.takes_work]
        before, self._gpus = self._gpus, sum(len(host.report.devices) for host in hosts)
        if self._gpus != before:
            self._waiting += self._too_wide
            self._too_wide = []
            heapq.heapify(self._waiting)

    # --- What is played ------------------------------------------------------------------------------

    def _length_s(self, job: Job) -> float:
        trained_s, left_s = job.ran_s(self._ledger.now_s), job.known_left_s(self._ledger.now_s)
        if left_s is not None:
            return job.estimate.load_s + trained_s + left_s
        mean_s = self._ended_s / self._ended if self._ended else FIRST_S
        return job.estimate.load_s + max(mean_s, 2.0 * trained_s)

    def _queue(self, job: Job) -> None:
        """A job waits here: it is new, or waits again, or its options have changed."""
        spec, one = job.spec, self._played.get(job.job_id)
        if one is None:
            now_s, length_s = self._ledger.now_s, self._length_s(job)
            one = PlayedJob(job.job_id, job.number, spec.gpus, spec.priority, now_s, length_s)
            self._played[one.job_id] = one
        elif one.begun_s >= 0.0:
            self._list(one, job)
            return
        one.gpus, one.priority = spec.gpus, spec.priority
        heapq.heappush(self._waiting, (-one.priority, one.number, one.job_id))

    def _end(self, job: Job) -> None:
        """A job has ended here: its length is known."""
        self._marked.pop(job.job_id, None)
        if job.spent.run_s > 0.0:
            self._ended += 1
            self._ended_s += job.spent.run_s
        one = self._played.get(job.job_id)
        if one is None:
            return
        self._unlist(one)
        if one.is_over or (one.begun_s < 0.0 and one.gpus > self._gpus):
            del self._played[one.job_id]
            return
        one.length_s = job.spent.load_s + job.spent.run_s
        if one.begun_s >= 0.0:
            self._ends_at(one, max(self._ledger.now_s, one.begun_s + one.length_s))

    def _learn(self, job_id: JobId) -> None:
        """A job has told its length."""
        one, job = self._played.get(job_id), self._ledger.jobs.get(job_id)
        if one is None or job is None or one.is_over:
            return
        one.length_s = self._length_s(job)
        if one.begun_s >= 0.0:
            is_listed = self._unlist(one)
            self._ends_at(one, max(self._ledger.now_s, one.begun_s + one.length_s))
            if is_listed:
                insort(self._order, one.by_end)

    def _list(self, one: PlayedJob, job: Job) -> None:
        """Enter a job that has begun there in the order of ends, if it waits here and is not marked."""
        self._unlist(one)
        if job.aged:
            self._marked[one.job_id] = job.spec.gpus
        elif job.phase is QUEUED:
            self._marked.pop(one.job_id, None)
            insort(self._order, one.by_end)

    def _ends_at(self, one: PlayedJob, ends_s: float) -> None:
        one.ends_s = ends_s
        heapq.heappush(self._ends, one.by_end)

    def _unlist(self, one: PlayedJob) -> bool:
        """Whether it was in the order of ends."""
        at = bisect_left(self._order, one.by_end)
        is_listed = at < len(self._order) and self._order[at] == one.by_end
        if is_listed:
            del self._order[at]
        return is_listed

    def _play(self, now_s: float) -> None:
        """Ends and begins jobs there up to now."""
        while self._ends and self._ends[0][0] <= now_s:
            at_s, _, job_id = heapq.heappop(self._ends)
            one = self._played.get(job_id)
            if one is None or one.is_over or one.ends_s != at_s:
                continue
            one.is_over = True
            self._busy -= one.gpus
            if self._has_ended(job_id):
                self._unlist(one)
                del self._played[job_id]
            self._begin(at_s)

    def _begin(self, at_s: float) -> None:
        """Begins jobs there in order, as far as they fit. Nobody waits there for a job that is too wide."""
        while self._waiting:
            one = self._played.get(self._waiting[0][-1])
            is_true = one is not None and one.begun_s < 0.0 and one.priority == -self._waiting[0][0]
            if one is not None and is_true and one.gpus > self._gpus:
                self._too_wide.append(self._waiting[0])
            elif one is not None and is_true:
                if self._busy + one.gpus > self._gpus:
                    return
                self._busy += one.gpus
                one.begun_s = at_s
                job = self._ledger.jobs.get(one.job_id)
                if job is not None and job.phase not in ENDED:
                    one.length_s = self._length_s(job)
                self._ends_at(one, at_s + one.length_s)
                if job is not None:
                    self._list(one, job)
            heapq.heappop(self._waiting)

    def _has_ended(self, job_id: JobId) -> bool:
        job = self._ledger.jobs.get(job_id)
        return job is None or job.phase in ENDED

    # --- Whose turn it is ----------------------------------------------------------------------------

    def _mark(self, now_s: float) -> None:
        """Marks late jobs, and sets an alarm for the next time at which one may be."""
        ledger = self._ledger
        first = next((each for each in ledger.queue.jobs_in_order() if not each.aged), None)
        if first is None or not (self._order or self._waiting):
            return
        taken, limit = sum(self._devices_taken(job_id) for job_id in self._marked), self.limit
        next_s, at = self._ends[0][0] if self._ends and self._waiting else float("inf"), 0
        while at < min(len(self._order), TRIED_MAX) and not (taken and taken >= limit):
            one = self._played[self._order[at][-1]]
            job = ledger.jobs[one.job_id]
            turn_s = max(self._late_s(one, job), self._stands_back_until_s(job, first))
            if turn_s > now_s or not is_possible(ledger, job):
                next_s, at = min(next_s, turn_s if turn_s > now_s else next_s), at + 1
                continue
            if taken and taken + job.spec.gpus > limit:
                return
            del self._order[at]
            self._marked[one.job_id] = job.spec.gpus
            taken += job.spec.gpus
            ledger.records.age(job, because("turn", now_s - one.submitted_s))
        if next_s < float("inf") and not now_s < self._alarm_s <= next_s:
            self._alarm_s = next_s
            self._dispatch.wake_at(next_s, "turn", "", 0)

    def _late_s(self, one: PlayedJob, job: Job) -> float:
        """The time from which on the waiting job is late."""
        fifo_s = one.ends_s - one.submitted_s
        if job.spec.gpus > self.limit:
            return one.submitted_s + WIDE_RATIO * fifo_s + WIDE_S
        left_s = job.estimate.remaining_s or 0.0
        return max(one.submitted_s, one.ends_s - left_s - job.estimate.load_s + NEAR_S)

    def _devices_taken(self, job_id: JobId) -> int:
        """The devices that a marked job takes of the limit: none while it is held or blocked."""
        return 0 if self._ledger.jobs[job_id].phase in ASIDE else self._marked[job_id]

    def _stands_back_until_s(self, job: Job, first: Job) -> float:
        """While a job of greater priority waits, or of a user who has had less: until this one has waited for
        `policy.ageing_s`."""
        waited_s = job.spent.queued_s + self._ledger.now_s - job.phase_since_s
        left_s = self._dispatch.config.policy.ageing_s - waited_s
        return self._ledger.now_s + left_s if first.rank < job.rank else 0.0

    def when(self, job: Job, now_s: float) -> Reason | None:
        """When a waiting job's turn comes, if nothing is learned until then; None: nobody can say, or no job
        is marked."""
        one = self._played.get(job.job_id) if self._dispatch.takes_turns else None
        if one is None or job.aged:
            return None
        ends_s = one.ends_s if one.begun_s >= 0.0 else self._foreseen_end_s(one, now_s)
        late_s = self._late_s(msgspec.structs.replace(one, ends_s=ends_s), job)
        return because("turn-late") if late_s <= now_s else because("turn-comes", late_s - now_s)

    def _foreseen_end_s(self, wanted: PlayedJob, now_s: float) -> float:
        """When a job ends there that waits there, played ahead without arrivals."""
        ends = [each for each in self._ends if self._is_true(each)]
        heapq.heapify(ends)
        busy = self._busy
        for _, _, job_id in sorted(self._waiting):
            one = self._played.get(job_id)
            if one is None or one.gpus > self._gpus:
                continue
            while busy + one.gpus > self._gpus and ends:
                now_s, _, leaving = heapq.heappop(ends)
                busy -= self._played[leaving].gpus
            busy += one.gpus
            heapq.heappush(ends, (now_s + one.length_s, one.number, job_id))
            if one is wanted:
                break
        return now_s + wanted.length_s

    def _is_true(self, entry: tuple[float, int, JobId]) -> bool:
        one = self._played.get(entry[-1])
        return one is not None and not one.is_over and one.by_end == entry

    # --- Saving --------------------------------------------------------------------------------------

    def save(self) -> SavedLateness:
        return SavedLateness(
            jobs=[*self._played.values()], ended=self._ended, ended_s=self._ended_s, alarm_s=self._alarm_s
        )

    def restore(self, saved: SavedLateness) -> None:
        """Takes over what was saved; the ledger has been restored before."""
        if not self.share:
            return
        self._ended, self._ended_s, self._alarm_s = saved.ended, saved.ended_s, saved.alarm_s
        self._played, self._busy = {one.job_id: one for one in saved.jobs}, 0
        for one in saved.jobs:
            if one.begun_s < 0.0:
                self._waiting.append((-one.priority, one.number, one.job_id))
                continue
            if not one.is_over:
                self._busy += one.gpus
                self._ends.append(one.by_end)
        heapq.heapify(self._waiting)
        heapq.heapify(self._ends)
        self._count_devices()
        self.look_again()

    def look_again(self) -> None:
        """Who waits and is not marked is read from the ledger anew: jobs may have aged meanwhile."""
        jobs = self._ledger.jobs
        self._order, self._marked = [], {}
        for job in jobs.values():
            if job.aged and job.phase not in ENDED:
                self._marked[job.job_id] = job.spec.gpus
        for one in self._played.values():
            here = jobs.get(one.job_id)
            if one.begun_s >= 0.0 and here is not None and here.phase is QUEUED and not here.aged:
                self._order.append(one.by_end)
        self._order.sort()
