"""What is wrong with a trace, said once: file, line, column, what, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TraceProblem(ValueError):
    """The input was refused. `message` says where and what; `hint` is what to try next and may be empty."""

    def __init__(
        self, what: str, *, file: str = "", line: int | None = None, column: str = "", hint: str = ""
    ) -> None:
        place = ":".join([file, *([] if line is None else [str(line)])]) if file else ""
        if not file and line is not None:
            place = f"line {line}"
        parts = [place, f"column {column}" if column else "", what]
        self.message = ": ".join(part for part in parts if part)
        self.hint = hint
        self.file = file
        self.line = line
        self.column = column
        super().__init__(self.message)


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or nothing where no known word is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""


def shown(value: str) -> str:
    """A value as it stands in a message: quoted, and short."""
    return repr(value if len(value) <= 40 else value[:37] + "...")
