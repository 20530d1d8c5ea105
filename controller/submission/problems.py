"""What is wrong with a submission, as a person is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cotenant.controller.present.problem import Problem
from cotenant.controller.submission import options

if TYPE_CHECKING:
    pass


def submission_problem(error: options.BadSubmission) -> Problem:
    """The error as the command reports it: a missing file has another exit code than a wrong value."""
    parts = [each.sentence for each in error.parts]
    return Problem("not-found" if error.missing else "usage", error.message, error.hint, parts)
