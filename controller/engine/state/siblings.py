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

    def add(self, job: Job) -> None:
        """The job has arrived, waits again after its end, or has other options."""
        self.remove(job)
        family = family_of(job.spec)
        if family.program and job.spec.expected_s is None:
            self._by_program.setdefault(family.program, {})[job.job_id] = (family, job)

    def remove(self, job: Job) -> None:
        """The job has ended."""
        program = family_of(job.spec).program
        members = self._by_program.get(program, {})
        if members.pop(job.job_id, None) is not None and not members:
            del self._by_program[program]

    def members(self, program: str) -> Iterator[tuple[Family, Job]]:
        """The unfinished jobs of a program, in order of arrival."""
        yield from self._by_program.get(program, {}).values()

    def trained_s(self, family: Family, level: int, but: JobId) -> list[float]:
        """How long unfinished relatives have trained so far; not those of which a second says another thing
        each time."""
        return [
            job.ran_s(self.now_s)
            for theirs, job in self.members(family.program)
            if job.first_start_s is not None
            and job.job_id != but
            and theirs[level] == family[level]
            and not job.spec.is_elastic
            and job.spec.profiling != "only"
        ]
