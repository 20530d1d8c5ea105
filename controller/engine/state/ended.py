"""Jobs that have ended and are still remembered, and which of them is forgotten next.

Rule: one user's jobs do not push out another's. Whoever has the most of them (in number, or in bytes where
memory is short) loses one: a job that never started before any that ran, and of those the oldest.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from cotenant.controller.domain import Job, JobId, held_bytes


class EndedJobs:
    """The ended jobs by user; of each user those that never started apart from those that ran."""

    def __init__(self) -> None:
        self.sizes: OrderedDict[JobId, int] = OrderedDict()
        """The bytes that each takes in memory, in the order in which they ended."""
        self.size_bytes = 0
        self._jobs_of: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()
        self._by_age: dict[tuple[str, bool], OrderedDict[JobId, None]] = {}
        """Oldest first, by user and whether it ran."""

    def add(self, job: Job) -> None:
        user = job.spec.user
        self.sizes[job.spec.job_id] = size = held_bytes(job.spec)
        self.size_bytes += size
        self._jobs_of[user] += 1
        self._bytes_of[user] += size
        self._by_age.setdefault((user, job.attempt.number > 0), OrderedDict())[job.spec.job_id] = None

    def remove(self, job: Job) -> None:
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

    def next_to_forget(self, *, by_bytes: bool) -> JobId:
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
