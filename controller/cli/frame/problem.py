"""What goes wrong, as one line: a code, the cause, and the next thing to try. And the exit codes.

Rule: scripts rely on these numbers (docs/cli.md lists them); `run` alone returns its job's own code.
"""

from __future__ import annotations

from typing import Final

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
"""As a command that SIGPIPE ends: its reader has seen enough."""

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
    "never-fits": NEVER_FITS,
    "never-started": NEVER_STARTED,
}


class Problem(Exception):
    """Ends the command. `code` is a key of EXIT_CODES; `hint` is a command to try, or advice."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        assert code in EXIT_CODES, code
        self.code = code
        self.message = message
        self.hint = hint

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.code]

    def __str__(self) -> str:
        from cotenant.controller.domain.texts import one_line  # `--help` imports nothing.

        line = f"error[{self.code}]: {' '.join(self.message.split()).rstrip('.')}"
        return one_line(f"{line}; {self.hint}" if self.hint else line)
