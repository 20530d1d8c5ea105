"""Steers one cluster: round after round what waits is read anew, ordered, and what stands wrong is set right.

Rule: nothing is believed from one round to the next but which jobs were touched: a file knows of each before
Slurm does. A round that fails (Slurm restarts, somebody else changed a priority) is followed by one that
reads everything again. Whoever stops steering, and whoever starts, releases every job that is written down as
touched.

Rule of that file: a job is written down, durably, before its priority is set, and struck off after it was
released or is gone. So whoever reads it after `kill -9` finds every job that may have a priority of ours, and
perhaps some that have none: releasing those changes nothing. One process has the file at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from cotenant.controller.policies.base import Policy
from cotenant.controller.present.problem import Problem
from cotenant.controller.slurm.steer.core.estimates import RunTimes
from cotenant.controller.slurm.steer.core.ordering import SteeredOrder, order_queue
from cotenant.controller.slurm.steer.core.priorities import HIGHEST, LOWEST, changes
from cotenant.controller.slurm.steer.core.queue import HELD, Mark, QueueJob, SlurmQueue, index_by_id, rival
from cotenant.controller.slurm.steer.slurm import NoAccounting, Slurm, SlurmProblem
from cotenant.controller.system import files
from cotenant.controller.system.locks import Lock, LockTaken

VERSION: Final = 1
FILE_BYTES_MAX: Final = 256 << 20
FILE_HINT: Final = "name another with --state"
LEASE_ROUNDS: Final = 4
LEASE_S_MIN: Final = 120.0
"""How long a mark counts after its last round: slurmctld may be away for a minute."""
RELEASES_AT_ONCE: Final = 200
RELEASE_TRIES: Final = 3
DAY_S: Final = 86_400.0
OVERLAP_S: Final = 120.0
"""A job's end reaches the accounts a while after it has ended."""
LEAVING: Final = "CG"
"""Such a job cannot be released any more. One that runs can: it may be queued again, with what it has."""
NO_MARK_YET: Final = 1 << 62


class Touched(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    cluster: str = ""
    order: str = ""
    """As it was given, for `explain`."""
    partitions: tuple[str, ...] = ()
    mark: int = 0
    """The number of the steerer's mark in Slurm; 0: none."""
    jobs: Mapping[int, float] = {}
    """When each was submitted: a number that Slurm has given to another job is not ours."""


class TouchedFile:
    """Held from `open` to `close`, or to the end of the process."""

    def __init__(self, path: Path) -> None:
        """Raises Problem: another process has it, or it cannot be read."""
        self.path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = Lock(path.with_name(f"{path.name}.lock"))
        except LockTaken as taken:
            hint = f"end pid {taken.pid} first" if taken.pid else "end that one first"
            raise Problem("refused", f"{path}: another steerer on this machine has it", hint) from None
        except OSError as error:
            raise Problem("failed", f"{path}: {error.strerror}", FILE_HINT) from None
        self.now = read(path)

    def write(self, **changed: Any) -> None:
        """Before Slurm is told. Nothing is written where nothing changes."""
        touched = msgspec.structs.replace(self.now, **changed)
        if touched != self.now:
            files.write_whole(self.path, msgspec.json.encode(touched))
            self.now = touched

    def close(self) -> None:
        self._lock.release()


def read(path: Path) -> Touched:
    """Raises Problem: it cannot be read. A file that is not there lists nothing."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise Problem("failed", f"{path}: more than {FILE_BYTES_MAX >> 20} MiB", FILE_HINT)
        found = msgspec.json.decode(path.read_bytes(), type=Touched, strict=False)
    except FileNotFoundError:
        return Touched()
    except (OSError, msgspec.DecodeError) as error:
        raise Problem("failed", f"{path}: {error}", FILE_HINT) from None
    if found.version > VERSION:
        raise Problem("failed", f"{path}: written by a newer cotenant (version {found.version})", FILE_HINT)
    return found


class Superseded(Problem):
    """Says that another process steers this cluster."""

    def __init__(self, other: Mark) -> None:
        super().__init__(
            "refused",
            f"{other.host} (pid {other.pid}) steers this cluster: job {other.job_id} is its mark",
            "end that one first; or wait until its mark has expired",
        )


class SteeringRound(msgspec.Struct, frozen=True, kw_only=True):
    """What one round saw, and what it would set or has set."""

    queue: SlurmQueue
    order: SteeredOrder
    changes: Mapping[int, int]
    """The new priorities, by job."""
    refused: tuple[str, ...] = ()


class Steering:
    """How one cluster is looked at: the policy that orders it, and the run times that its accounts tell."""

    def __init__(
        self, slurm: Slurm, policy: Policy, *, partitions: tuple[str, ...], most: int, since_s: float
    ) -> None:
        """Looks at `partitions` only (empty: at all), and sets at most `most` priorities in a round. Run
        times are read from `since_s` on."""
        self.slurm, self.policy = slurm, policy
        self.note = ""
        """Why nothing could be learned when it was tried last."""
        self._partitions, self._most = frozenset(partitions), most
        self._times, self._read_to_s = RunTimes(), since_s

    def look(self, touched: Touched, now_s: float) -> SteeringRound:
        """Works out what would be set now."""
        queue = self.slurm.queue(now_s)
        self._learn(now_s)
        waiting = queue.waiting(self._partitions)
        estimates = {job.job_id: self._times.estimate(job) for job in waiting}
        order = order_queue(self.policy, queue, waiting, estimates)
        ours = standing(queue, touched)
        found = changes([each.job for each in order.placed], ours.keys(), self._most)
        return SteeringRound(queue=queue, order=order, changes=found)

    def _learn(self, now_s: float) -> None:
        """Reads the accounts on from where they were read last, a day at a time: no answer becomes large."""
        try:
            while self._read_to_s < now_s:
                until_s = min(self._read_to_s + DAY_S, now_s)
                self._times.learn(self.slurm.past_runs(self._read_to_s - OVERLAP_S, until_s))
                self._read_to_s = until_s
            self.note = ""
        except NoAccounting:
            self.note = "this cluster keeps no accounts of jobs (sacct): each counts as long as its limit"
        except SlurmProblem as problem:
            self.note = f"no run times could be read: {problem.message}"


def standing(queue: SlurmQueue, touched: Touched) -> dict[int, QueueJob]:
    """Touched jobs that are still there and have a priority: one that somebody holds has lost ours, and gets
    Slurm's when it is let go."""
    rows = index_by_id(queue.jobs)
    return {
        job_id: job
        for job_id, submitted_s in touched.jobs.items()
        if (job := rows.get(job_id)) is not None and job.submitted_s == submitted_s and job.priority != HELD
    }


class Steerer:
    """The loop that steers one cluster: it looks at the queue, decides an order, and sets priorities."""

    def __init__(
        self, steering: Steering, file: TouchedFile, *, host: str, pid: int, interval_s: float
    ) -> None:
        self.steering, self._slurm, self.file = steering, steering.slurm, file
        self._host, self._pid = host, pid
        self._lease_s = max(LEASE_S_MIN, LEASE_ROUNDS * interval_s)
        self.notes: list[str] = []
        """What a person should know of how it began."""

    def begin(self, now_s: float) -> None:
        """Take the cluster, and put back what an earlier run left.

        Raises:
            Superseded: somebody else has it.
            SlurmProblem: Slurm does not answer, or refuses.
        """
        own = next((mark for mark in self._slurm.marks() if self._is_ours(mark)), None)
        self._mark(0 if own is None else own.job_id, now_s)
        if count := len(self.file.now.jobs):
            left = release_all(self._slurm, self.file, now_s)
            self.notes.append(f"{count - len(left)} jobs that an earlier run had touched were released")

    def round(self, now_s: float) -> SteeringRound:
        """Raises SlurmProblem, Superseded."""
        self._mark(self.file.now.mark, now_s)
        found = self.steering.look(self.file.now, now_s)
        kept = {job_id: job.submitted_s for job_id, job in standing(found.queue, self.file.now).items()}
        rows = index_by_id(found.queue.jobs)
        kept |= {job_id: rows[job_id].submitted_s for job_id in found.changes}
        self.file.write(jobs=kept)
        refused = self._slurm.set_priorities(found.changes)
        return msgspec.structs.replace(found, refused=tuple(refused))

    def end(self, now_s: float) -> list[int]:
        """Jobs that could not be released; the file still lists them.

        Raises:
            SlurmProblem: Slurm does not answer; nothing is forgotten.
        """
        left = release_all(self._slurm, self.file, now_s)
        self._slurm.remove_mark(self.file.now.mark)
        self.file.write(mark=0)
        return left

    def _mark(self, number: int, now_s: float) -> None:
        """Renews our mark; puts one where there is none of ours (any more)."""
        marks = self._slurm.marks()
        is_there = any(mark.job_id == number for mark in marks)
        mine = self._make_mark(number if is_there else NO_MARK_YET, now_s)
        if other := rival(marks, mine, now_s):
            raise Superseded(other)
        if not is_there:
            number = self._slurm.put_mark()
            mine = self._make_mark(number, now_s)
        self.file.write(mark=number)
        self._slurm.sign_mark(mine)
        if not is_there:
            self._check_new_mark(mine, now_s)
        for mark in marks:
            if mark.job_id != number and (mark.until_s <= now_s or self._is_ours(mark)):
                self._slurm.remove_mark(mark.job_id)
                if not self._is_ours(mark):
                    self.notes.append(
                        f"{mark.host} (pid {mark.pid}) steered this cluster and is gone; the jobs that it "
                        f"touched are in {mark.state} there: run `cotenant steer slurm release` there"
                    )

    def _check_new_mark(self, mine: Mark, now_s: float) -> None:
        """Nobody was quicker, and it is there: else each round would put another."""
        marks = self._slurm.marks()
        other = rival(marks, mine, now_s)
        if other is None and any(mark.job_id == mine.job_id for mark in marks):
            return
        self._slurm.remove_mark(mine.job_id)
        if other is not None:
            raise Superseded(other)
        raise SlurmProblem(f"the mark, job {mine.job_id}, cannot be seen in the queue")

    def _is_ours(self, mark: Mark) -> bool:
        return (mark.host, mark.state) == (self._host, str(self.file.path))

    def _make_mark(self, number: int, now_s: float) -> Mark:
        until_s, state = now_s + self._lease_s, str(self.file.path)
        return Mark(job_id=number, host=self._host, pid=self._pid, until_s=until_s, state=state)


def release_all(slurm: Slurm, file: TouchedFile, now_s: float) -> list[int]:
    """Give every touched job its own priority back, the first to come first, since priority/basic gives them
    anew in this order. Returns those that have ours still.

    Raises:
        SlurmProblem: Slurm does not answer; the file lists what is left.
    """
    ours: dict[int, int] = {}
    for attempt in range(RELEASE_TRIES + 1):
        found = standing(slurm.queue(now_s), file.now)
        if not attempt:
            ours = {each: job.priority for each, job in found.items() if LOWEST <= job.priority <= HIGHEST}
        left = [job for each, job in found.items() if ours.get(each) == job.priority]
        file.write(jobs={job.job_id: job.submitted_s for job in left})
        if not left or attempt == RELEASE_TRIES:
            return [job.job_id for job in left if job.state != LEAVING]
        left.sort(key=lambda job: (job.submitted_s, job.job_id))
        for first in range(0, len(left), RELEASES_AT_ONCE):
            slurm.release(left[first : first + RELEASES_AT_ONCE])
    raise AssertionError("the last try returns")
