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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from cotenant.controller.policies.base import Policy
from cotenant.controller.slurm.steer.core.estimates import RunTimes
from cotenant.controller.slurm.steer.core.ordering import SteeredOrder, order_queue
from cotenant.controller.slurm.steer.core.priorities import HIGHEST, LOWEST, PriorityChange, changes
from cotenant.controller.slurm.steer.core.queue import HELD, Mark, QueueJob, SlurmQueue, index_by_id, rival
from cotenant.controller.slurm.steer.slurm import NoAccounting, Slurm, SlurmProblem
from cotenant.controller.system import files
from cotenant.controller.system.locks import Lock

VERSION: Final = 1
FILE_BYTES_MAX: Final = 256 << 20


class TouchedProblem(Exception):
    """The file cannot be read."""


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
        """Raises LockTaken."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path
        self._lock = Lock(path.with_name(f"{path.name}.lock"))
        self.now = read(path)

    def write(self, touched: Touched) -> None:
        """Before Slurm is told. Nothing is written where nothing changes."""
        if touched != self.now:
            files.write_whole(self.path, msgspec.json.encode(touched))
            self.now = touched

    def begin(self, cluster: str, order: str, partitions: tuple[str, ...]) -> None:
        """What is done from now on."""
        self.write(msgspec.structs.replace(self.now, cluster=cluster, order=order, partitions=partitions))

    def forget_mark(self) -> None:
        self.write(msgspec.structs.replace(self.now, mark=0))

    def close(self) -> None:
        self._lock.release()


def read(path: Path) -> Touched:
    """Raises TouchedProblem; a file that is not there lists nothing."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise TouchedProblem(f"{path}: more than {FILE_BYTES_MAX >> 20} MiB")
        found = msgspec.json.decode(path.read_bytes(), type=Touched, strict=False)
    except FileNotFoundError:
        return Touched()
    except (OSError, msgspec.DecodeError) as error:
        raise TouchedProblem(f"{path}: {error}") from None
    if found.version > VERSION:
        raise TouchedProblem(f"{path}: written by a newer cotenant (version {found.version})")
    return found


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


class Superseded(Exception):
    """Says that another process steers this cluster."""

    def __init__(self, other: Mark) -> None:
        super().__init__(
            f"{other.host} (pid {other.pid}) steers this cluster: job {other.job_id} is its mark"
        )
        self.other = other


class SteeringRound(msgspec.Struct, frozen=True, kw_only=True):
    """What one round saw, and what it would set or has set."""

    queue: SlurmQueue
    order: SteeredOrder
    changes: tuple[PriorityChange, ...]
    refused: tuple[str, ...] = ()


class RunHistory:
    """Run times from the accounts, read on from where they were read last."""

    def __init__(self, slurm: Slurm, since_s: float) -> None:
        self.times = RunTimes()
        self.note = ""
        """Why nothing could be learned when it was tried last."""
        self._slurm = slurm
        self._read_to_s = since_s

    def read_to(self, now_s: float) -> None:
        """A day at a time: no answer becomes large."""
        try:
            while self._read_to_s < now_s:
                until_s = min(self._read_to_s + DAY_S, now_s)
                self.times.learn(self._slurm.past_runs(self._read_to_s - OVERLAP_S, until_s))
                self._read_to_s = until_s
            self.note = ""
        except NoAccounting:
            self.note = "this cluster keeps no accounts of jobs (sacct): each counts as long as its limit"
        except SlurmProblem as problem:
            self.note = f"no run times could be read: {problem}"


def look(
    slurm: Slurm,
    policy: Policy,
    history: RunHistory,
    touched: Touched,
    *,
    partitions: Sequence[str],
    most: int,
    now_s: float,
) -> SteeringRound:
    """Works out what would be set now."""
    queue = slurm.queue(now_s)
    history.read_to(now_s)
    waiting = queue.waiting(frozenset(partitions))
    estimates = {job.job_id: history.times.estimate(job) for job in waiting}
    order = order_queue(policy, queue, waiting, estimates)
    ours = standing(queue, touched)
    found = changes([each.job for each in order.placed], ours.keys(), most)
    return SteeringRound(queue=queue, order=order, changes=tuple(found))


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
        self,
        slurm: Slurm,
        policy: Policy,
        history: RunHistory,
        file: TouchedFile,
        *,
        host: str,
        pid: int,
        partitions: Sequence[str],
        most: int,
        interval_s: float,
    ) -> None:
        self._slurm, self._policy, self._history, self._file = slurm, policy, history, file
        self._host, self._pid = host, pid
        self._partitions, self._most = tuple(partitions), most
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
        if self._file.now.jobs:
            count = len(self._file.now.jobs)
            left = release_all(self._slurm, self._file, now_s)
            self.notes.append(f"{count - len(left)} jobs that an earlier run had touched were released")

    def round(self, now_s: float) -> SteeringRound:
        """Raises SlurmProblem, Superseded."""
        self._mark(self._file.now.mark, now_s)
        found = look(
            self._slurm,
            self._policy,
            self._history,
            self._file.now,
            partitions=self._partitions,
            most=self._most,
            now_s=now_s,
        )
        kept = {job_id: job.submitted_s for job_id, job in standing(found.queue, self._file.now).items()}
        rows = index_by_id(found.queue.jobs)
        kept |= {each.job_id: rows[each.job_id].submitted_s for each in found.changes}
        self._file.write(msgspec.structs.replace(self._file.now, jobs=kept))
        refused = self._slurm.set_priorities(found.changes)
        return msgspec.structs.replace(found, refused=tuple(refused))

    def end(self, now_s: float) -> list[int]:
        """Jobs that could not be released; the file still lists them.

        Raises:
            SlurmProblem: Slurm does not answer; nothing is forgotten.
        """
        left = release_all(self._slurm, self._file, now_s)
        self._slurm.remove_mark(self._file.now.mark)
        self._file.forget_mark()
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
        self._file.write(msgspec.structs.replace(self._file.now, mark=number))
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
        if other := rival(marks, mine, now_s):
            self._slurm.remove_mark(mine.job_id)
            raise Superseded(other)
        if not any(mark.job_id == mine.job_id for mark in marks):
            self._slurm.remove_mark(mine.job_id)
            raise SlurmProblem(f"the mark, job {mine.job_id}, cannot be seen in the queue")

    def _is_ours(self, mark: Mark) -> bool:
        return (mark.host, mark.state) == (self._host, str(self._file.path))

    def _make_mark(self, number: int, now_s: float) -> Mark:
        until_s = now_s + self._lease_s
        return Mark(
            job_id=number, host=self._host, pid=self._pid, until_s=until_s, state=str(self._file.path)
        )


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
            ours = {each: job.priority for each, job in found.items() if is_ours(job.priority)}
        left = [job for each, job in found.items() if ours.get(each) == job.priority]
        file.write(msgspec.structs.replace(file.now, jobs={job.job_id: job.submitted_s for job in left}))
        if not left or attempt == RELEASE_TRIES:
            return [job.job_id for job in left if job.state != LEAVING]
        left.sort(key=lambda job: (job.submitted_s, job.job_id))
        for first in range(0, len(left), RELEASES_AT_ONCE):
            slurm.release(left[first : first + RELEASES_AT_ONCE])
    raise AssertionError("the last try returns")


def is_ours(priority: int) -> bool:
    return LOWEST <= priority <= HIGHEST
