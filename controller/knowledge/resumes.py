"""How resumes have come out, by kind of job.

Rule: a kind is one user's command with its code. A script that was edited is another kind, which has yet to
show that it resumes; so nobody has to take back what was seen of the script before.

Rule: jobs with other numbers in their commands are other kinds. What they have shown is a prior for a kind
that has shown nothing (`others`): it proves and refutes nothing.

Rule: the tables are bounded; the kind that was resumed longest ago goes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.controller.domain import Job, JobSpec, ResumeCounts
from cotenant.controller.knowledge.families import family_of
from cotenant.controller.knowledge.pairs import signature

KINDS_MAX: Final = 2_000
NEVER_RESUMED: Final = ResumeCounts()


class Resumes(msgspec.Struct, kw_only=True):
    """The resumes of all kinds, the kind that was resumed longest ago first."""

    known: dict[str, ResumeCounts] = {}
    kinds_refuted: int = 0
    """Kinds of `known` of which a resume came out differently."""

    families: dict[str, ResumeCounts] = {}
    """Likewise, of all kinds that differ in numbers only."""

    @property
    def kinds(self) -> int:
        """The number of kinds that were ever resumed."""
        return len(self.known)

    def counts(self, job: Job) -> ResumeCounts:
        return self.known.get(_kind(job.spec), NEVER_RESUMED) if self.known else NEVER_RESUMED

    def others(self, job: Job) -> ResumeCounts:
        """The resumes of jobs with other numbers."""
        every = self.families.get(_family(job.spec)) if self.families else None
        if every is None:
            return NEVER_RESUMED
        mine = self.counts(job)  # Older than the family, where a journal had none.
        proven, refuted = every.proven - mine.proven, every.refuted - mine.refuted
        return ResumeCounts(max(0, proven), max(0, refuted))

    def note(self, job: Job, *, is_proven: bool) -> None:
        """Takes in one more resume of the job's kind."""
        kind = _kind(job.spec)
        before = self.known.pop(kind, NEVER_RESUMED)
        after = self.known[kind] = before.add(is_proven=is_proven)
        self.kinds_refuted += bool(after.refuted) - bool(before.refuted)
        family = _family(job.spec)
        self.families[family] = self.families.pop(family, before).add(is_proven=is_proven)
        if len(self.families) > KINDS_MAX:
            del self.families[next(iter(self.families))]
        if len(self.known) > KINDS_MAX:
            forgotten = self.known.pop(next(iter(self.known)))
            self.kinds_refuted -= bool(forgotten.refuted)


def _kind(spec: JobSpec) -> str:
    return f"{spec.user}:{signature(spec)}:{spec.code_sha256[:16]}"


def _family(spec: JobSpec) -> str:
    return f"{family_of(spec).numbers}:{spec.code_sha256[:16]}"
