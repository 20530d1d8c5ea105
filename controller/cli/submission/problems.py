"""What is wrong with a submission, said once: where, what, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MissingFile(ValueError):
    """The file that an option names is not there."""


class BadSubmission(ValueError):
    """Refused before anything was sent. `hint` is what to try next; it may be empty.

    `missing`: a file that was named is not there, which scripts can tell from a wrong value.
    """

    def __init__(self, message: str, hint: str = "", *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing
        self.message = message
        self.hint = hint


def suggestion(word: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or nothing where no known word is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""
