"""How long a job trains: the likely time, how far off that may be, and what it rests on.

Rule: a length that nobody knows is a guess, never 0, and whoever shows one calls it a guess.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cotenant.controller.domain import texts

GUESS: Final = "unknown length"
"""Source of an estimate that rests on nothing but what a job has had."""
OVERRUN: Final = ", overrun"
"""After the source of a length that its job has outlived."""
SOURCES: Final = {
    GUESS: "nothing is known yet",
    "none": "nothing to estimate it from",
    "user": "as its user expects",
    "budget": "as much as its budget leaves",
    "profile": "from its measured profile",
    "same command": "as earlier runs of the same command",
    "like job": "as the steps of one of its kind took",
    "measured": "from its measured steps",
    "loops": "from its measured steps and the loops that were seen",
}
"""The sentence of a source that is a word; any other source is words for people already."""


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
        return self.source == GUESS

    @property
    def is_exact(self) -> bool:
        """Whether nothing says that it may be off: it is shown as a plain number."""
        return not self.is_guess and self.low_s == self.likely_s == self.high_s

    def as_if(self, likely_s: float) -> Length:
        """This length at another pace, at which it likely takes `likely_s`; its spread is scaled."""
        ratio = likely_s / self.likely_s if self.likely_s > 0.0 else 1.0
        return Length(likely_s, self.low_s * ratio, self.high_s * ratio, self.source)

    def __str__(self) -> str:
        """`about 5 min (a guess: nothing is known yet)`, `about 20 s (as 12 others of this sweep)`; `5m12s`
        where it is exact."""
        if self.is_exact:
            return texts.duration(self.likely_s)
        return f"{texts.rough_duration(self.likely_s)} ({basis_in_words(self.source)})"


def basis_in_words(source: str) -> str:
    """`a guess: nothing is known yet`, `from its measured steps; it has taken longer already`."""
    known = source.removesuffix(OVERRUN)
    longer = "; it has taken longer already" if known != source else ""
    return f"{'a guess: ' if source == GUESS else ''}{SOURCES.get(known, known)}{longer}"


def basis_of(source: str) -> str:
    """What an estimate rests on, whatever the number of runs and however long it has been exceeded:
    `as 12 others of this sweep` on `this sweep`."""
    return source.partition(", ")[0].rpartition(" of ")[2]
