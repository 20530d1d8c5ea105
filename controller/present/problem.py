"""What went wrong, for a person: a code, the cause and the next thing to try; and the exit code of each.

Rule: scripts rely on these numbers (docs/cli.md lists them); `run` alone returns its job's own code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
NOT_ALLOWED: Final = 4
UNREACHABLE: Final = 5
NEVER_FITS: Final = 6
NEVER_STARTED: Final = 125
INTERRUPTED: Final = 130
CLOSED_PIPE: Final = 141
"""As of a command that SIGPIPE ends: its reader has closed the pipe."""

EXIT_CODES: Final[dict[str, int]] = {
    "refused": FAILED,
    "failed": FAILED,
    "version": FAILED,
    "internal": FAILED,
    "usage": USAGE,
    "config": USAGE,
    "not-found": NOT_FOUND,
    "not-allowed": NOT_ALLOWED,
    "unreachable": UNREACHABLE,
    "standby": UNREACHABLE,
    "never-fits": NEVER_FITS,
    "never-started": NEVER_STARTED,
}


class Problem(Exception):
    """A problem that ends the command. `code` is a key of EXIT_CODES; `hint` is a command to try, or
    advice."""

    def __init__(self, code: str, message: str, hint: str = "", parts: Sequence[str] = ()) -> None:
        """Creates a problem with its code, message and hint. `parts`: where several things are wrong, a
        sentence for each."""
        super().__init__(message)
        assert code in EXIT_CODES, code
        self.code = code
        self.message = message
        self.hint = hint
        self.parts = tuple(parts)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.code]

    @property
    def sentence(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def as_json(self) -> dict[str, Any]:
        known = {"code": self.code, "exit_code": self.exit_code, "message": self.message, "hint": self.hint}
        return {"schema": "error/1", **known, "parts": list(self.parts)}

    def __str__(self) -> str:
        from cotenant.controller.domain import texts  # `--help` imports nothing.

        line = f"error[{self.code}]: {' '.join(self.message.split()).rstrip('.')}"
        lines = [f"{line}; {self.hint}" if self.hint else line, *(f"  {part}" for part in self.parts)]
        return "\n".join(map(texts.one_line, lines))


def suggestion(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """`did you mean X?`, or nothing where no known word is near."""
    near = nearest(word, known, cutoff)
    return f"did you mean {near}?" if near else ""


def nearest(word: str, known: Iterable[str], cutoff: float) -> str:
    import difflib

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), "")
