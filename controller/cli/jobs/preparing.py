"""From the words of `run` and `submit` to a request, with problems and notes for the person."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cotenant.controller.cli.frame.asking import loaded_settings
from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.cli.frame.screen import tell
from cotenant.controller.cli.jobs.flags import submission_problem
from cotenant.controller.cli.submission.build import Submission, Submitter, submission
from cotenant.controller.cli.submission.options import Options
from cotenant.controller.cli.submission.problems import BadSubmission
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import socket_path
from cotenant.controller.wire.clients import Submit


def prepared(words: Sequence[str], flags: Options, endpoint: str | None, *, command_only: bool) -> Submit:
    """The request for one job or one array; notes go to the person at once.

    Raises:
        Problem: something in the submission is wrong, or it wants a series of profiles first.
    """
    made = prepared_submission(words, flags, endpoint, command_only=command_only)
    if made.full_profile:
        raise Problem("usage", "--profile full queues several jobs: it is for submit", "cotenant submit ...")
    return made.request


def prepared_submission(
    words: Sequence[str], flags: Options, endpoint: str | None, *, command_only: bool
) -> Submission:
    """All that was meant.

    Raises:
        Problem: something in the submission is wrong.
    """
    loaded = loaded_settings(endpoint)
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        raise Problem("usage", "the folder you are in does not exist any more", "cd to another") from None
    where = Submitter(
        folder=folder,
        environ=os.environ,
        same_machine=socket_path(paths.client_endpoint(loaded.settings)) is not None,
    )
    try:
        made = submission(words, flags, where, command_only=command_only)
    except BadSubmission as error:
        raise submission_problem(error) from None
    for note in made.notes:
        tell(f"note: {note}")
    return made


def after_dashes(all_words: Sequence[str], command: Sequence[str]) -> bool:
    """Whether `--` stood right before the command: then it is a command, whatever it looks like."""
    before = list(all_words[: len(all_words) - len(command)])
    return before[-1:] == ["--"]
