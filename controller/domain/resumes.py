"""How the resumes of one kind of job have come out. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

ResumeProof = Literal["proven", "unproven", "refuted"]
"""proven: resumed jobs of this kind have shown that they were where they had been left. refuted: one was
somewhere else. unproven: neither was seen."""


class ResumeCounts(msgspec.Struct, frozen=True, array_like=True):
    """How often jobs of a kind were resumed and showed what came of it."""

    proven: int = 0
    """Resumes that went on as they had been left."""
    refuted: int = 0
    """Resumes that did not."""

    @property
    def proof(self) -> ResumeProof:
        return "refuted" if self.refuted else "proven" if self.proven else "unproven"

    def add(self, *, is_proven: bool) -> ResumeCounts:
        """Returns the counts after one more resume."""
        return ResumeCounts(self.proven + is_proven, self.refuted + (not is_proven))
