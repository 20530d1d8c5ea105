"""Files that a command line names, to be read: what is wrong with one, said the same way by every verb.

Rule: a file that is not there is exit code 3, one that cannot be read as what it should be is a wrong value,
exit code 2. What cannot be written is refused, exit code 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.store.journal_file import JournalError, JournalMissing

YOURS: Final = "name a state folder: `cotenant config controller.state_dir` shows yours"


def contents(name: str) -> bytes:
    """Raises Problem."""
    try:
        return Path(name).expanduser().read_bytes()
    except FileNotFoundError:
        raise Problem("not-found", f"{name}: there is no such file") from None
    except OSError as error:
        raise Problem("usage", f"{name} cannot be read: {error.strerror}") from None
    except (ValueError, RuntimeError) as error:  # a NUL in it; the home of nobody
        raise Problem("usage", f"{name!r} is no file name: {error}") from None


def journal_problem(error: JournalError, *, named: bool) -> Problem:
    """`named`: by the command line; otherwise it is this machine's own journal that has failed."""
    if isinstance(error, JournalMissing):
        return Problem("not-found", str(error), YOURS)
    return Problem("usage" if named else "failed", str(error))
