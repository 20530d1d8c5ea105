"""Unfinished jobs by program, so that whoever ends can be heard by all that are like it."""

from __future__ import annotations

from collections.abc import Iterator

from cotenant.controller.domain import Job, JobId
from cotenant.controller.knowledge import Family, family_of


class Siblings:
    """Every job that has not ended, has a command, and whose user has not said how long it takes."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._by_program: dict[str, dict[JobId, tuple[Family, Job]]] = {}
        self._begun: dict[str, dict[JobId, tuple[Family, Job]]] = {}
        """Those of them that have trained."""

    def add(self, job: Job) -> None:
        """The job has arrived, waits again after its end, begins to train, or has other options."""
        self.remove(job)
        family = family_of(job.spec)
        if family.program and job.spec.expected_s is None:
            self._by_program.setdefault(family.program, {})[job.job_id] = (family, job)
            if job.first_start_s is not None and not job.spec.is_elastic and job.spec.profiling != "only":
                self._begun.setdefault(family.program, {})[job.job_id] = (family, job)

    def remove(self, job: Job) -> None:
        """The job has ended."""
        program = family_of(job.spec).program
        for index in (self._by_program, self._begun):
            members = index.get(program, {})
            if members.pop(job.job_id, None) is not None and not members:
                del index[program]

    def members(self, program: str) -> Iterator[tuple[Family, Job]]:
        """The unfinished jobs of a program."""
        yield from self._by_program.get(program, {}).values()

    def trained_s(self, family: Family, level: int, but: JobId) -> list[float]:
        """How long unfinished relatives have trained so far."""
        begun = self._begun.get(family.program, {}).values()
        alike = (job for theirs, job in begun if theirs[level] == family[level] and job.job_id != but)
        return [job.ran_s(self.now_s) for job in alike]
