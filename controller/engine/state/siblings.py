"""Unfinished jobs by program, so that whoever ends can be heard by all that are like it."""

from __future__ import annotations

from collections.abc import Iterator

from cotenant.controller.domain import Job, JobId
from cotenant.controller.knowledge import Family, family_of


class Siblings:
    """Every job that has not ended, has a command, and whose user has not said how long it takes."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._families: dict[JobId, Family] = {}
        self._by_program: dict[str, dict[JobId, tuple[Family, Job]]] = {}
        self._begun: dict[str, dict[JobId, tuple[Family, Job]]] = {}
        """Those of them that have trained."""

    def add(self, job: Job) -> None:
        """The job has arrived, waits again after its end, or has other options."""
        self.remove(job)
        if job.spec.expected_s is not None:
            return
        family = family_of(job.spec)
        if family.program:
            self._families[job.spec.job_id] = family
            self._by_program.setdefault(family.program, {})[job.spec.job_id] = (family, job)
            self.begin(job)

    def begin(self, job: Job) -> None:
        """The job has begun to train, if it has ever started."""
        family = self._families.get(job.spec.job_id)
        if family is None or job.first_start_s is None:
            return
        if not job.spec.is_elastic and job.spec.profiling != "only":
            self._begun.setdefault(family.program, {})[job.spec.job_id] = (family, job)

    def remove(self, job: Job) -> None:
        """The job has ended."""
        family = self._families.pop(job.spec.job_id, None)
        if family is None:
            return
        for index in (self._by_program, self._begun):
            members = index.get(family.program, {})
            if members.pop(job.spec.job_id, None) is not None and not members:
                del index[family.program]

    def members(self, program: str) -> Iterator[tuple[Family, Job]]:
        """The unfinished jobs of a program."""
        yield from self._by_program.get(program, {}).values()

    def trained_s(self, family: Family, level: int, but: JobId) -> list[float]:
        """How long unfinished relatives have trained so far."""
        begun = self._begun.get(family.program, {}).values()
        alike = (job for theirs, job in begun if theirs[level] == family[level] and job.job_id != but)
        return [job.ran_s(self.now_s) for job in alike]
