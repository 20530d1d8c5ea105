"""What is wrong with a submission, said once: where, what, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BadSubmission(ValueError):
    """Refused before anything was sent. `hint` is what to try next; it may be empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def suggestion(word: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or nothing where no known word is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""
