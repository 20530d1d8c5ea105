"""How long a job trains: the likely time, how far off that may be, and what it rests on.

Rule: a length that nobody knows is a guess, never 0, and whoever shows one calls it a guess.
"""

from __future__ import annotations

from typing import Final

import msgspec

GUESS: Final = "unknown length"
"""Source of an estimate that rests on nothing but what a job has had."""
USERS_JOBS: Final = "as other jobs of this user"
CLUSTERS_JOBS: Final = "as other jobs here"
GUESSES: Final = frozenset((GUESS, USERS_JOBS, CLUSTERS_JOBS))
"""Sources that say nothing about the job itself, nor about its program."""


class Length(msgspec.Struct, frozen=True, array_like=True):
    """Seconds of training, alone: what is left, or all, as the place that holds it says."""

    likely_s: float
    low_s: float
    """A tenth of such jobs end before this."""
    high_s: float
    """A tenth of such jobs end after this."""
    source: str
    """What it rests on, in words for people: `GUESS` where nothing is known."""

    @property
    def is_guess(self) -> bool:
        """Whether it rests on nothing that is about this job or its like: it may order a queue, and is no
        fact."""
        return self.source in GUESSES


def basis_of(source: str) -> str:
    """What an estimate rests on, whatever the number of runs and however long it has been exceeded:
    `as 12 others of this sweep` on `this sweep`."""
    return source.partition(", ")[0].rpartition(" of ")[2]
