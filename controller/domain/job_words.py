"""Words that name jobs, as people and Slurm's programs write them: `7`, `38_2`, `38_[0-3,7]`, `7,38_2`.

Rule: every verb, alias and interface reads its jobs here, so that what one of them prints all others take.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

JOB_WORD_FORMS: Final = "7, 38_2, 38_[0-3,7] or 7,38_2"
_WORD: Final = r"([0-9]{1,18})(?:_([0-9]{1,9})|_\[([0-9,:-]*[0-9])(?:%[0-9]{1,9})?\])?"
_RANGE: Final = r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?"
SHOWN_MAX: Final = 60


class JobWord(NamedTuple):
    """A job, all tasks of an array, or (with `indices`) some of its tasks."""

    number: str
    indices: range | None = None

    def __str__(self) -> str:
        """The word in its shortest form."""
        if self.indices is None:
            return self.number
        first, last, step = self.indices.start, self.indices[-1], self.indices.step
        if first == last:
            return f"{self.number}_{first}"
        return f"{self.number}_[{first}-{last}{f':{step}' if step > 1 else ''}]"

    def has_task(self, job_id: str) -> bool:
        """Whether it names this task of an array."""
        array, _, index = job_id.partition("_")
        return array == self.number and bool(index) and (self.indices is None or int(index) in self.indices)


def split_words(text: str, at: str = ",") -> list[str]:
    """The parts of a list; what stands in brackets is not divided."""
    parts = re.split(rf"{re.escape(at)}(?![^\[\]]*\])", text)
    return [word for part in parts if (word := part.strip())]


def read_job_words(texts: Iterable[str]) -> list[JobWord]:
    """The jobs that these texts name. Raises ValueError: a word is no job's; the sentence has it."""
    return [word for text in texts for each in split_words(text) or [text] for word in _read(each)]


def _read(text: str) -> list[JobWord]:
    match = re.fullmatch(_WORD, text)
    if match is None:
        raise _unreadable(text)
    listed = match[2] or match[3]
    words = []
    for part in listed.split(",") if listed else ():
        found = re.fullmatch(_RANGE, part)
        first, last, step = (int(each or 0) for each in found.groups()) if found else (1, 0, 0)
        indices = range(first, max(first, last) + 1, step or 1)
        if found is None or (found[2] and last < first) or found[3] == "0":
            raise _unreadable(text)
        words.append(JobWord(match[1], indices))
    return words or [JobWord(match[1])]


def _unreadable(text: str) -> ValueError:
    shown = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
    return ValueError(f"{shown!r} names no job: write {JOB_WORD_FORMS}")
