"""What is wrong with a journal, as a person is told."""

from __future__ import annotations

from typing import Final

from cotenant.controller.present.problem import Problem
from cotenant.controller.store import JournalClosed, JournalError, JournalMissing

YOURS: Final = "name a state folder: `cotenant config controller.state_dir` shows yours"


def journal_problem(error: JournalError, *, named: bool) -> Problem:
    """The problem that an error of the journal is to a user. `named`: the command line named the journal;
    otherwise it is this machine's own."""
    if isinstance(error, JournalMissing):
        return Problem("not-found", str(error), YOURS)
    if isinstance(error, JournalClosed):
        return Problem("not-allowed", str(error))
    return Problem("usage" if named else "failed", str(error))
