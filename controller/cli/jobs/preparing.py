"""The job's options as flags of `run`, `submit` and `profile`, made from the one table of options; and the
job that comes of them.

Rule: a verb says `flags: Options` and gets what was given, parsed and checked; it never lists flags.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from cotenant.controller.cli.frame.asking import loaded_settings
from cotenant.controller.cli.frame.parameters import Declared
from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.cli.frame.screen import tell
from cotenant.controller.cli.submission.build import Submission, Submitter, submission
from cotenant.controller.cli.submission.options import CONTAINERS, OPTIONS, Option, Options, read
from cotenant.controller.cli.submission.problems import BadSubmission
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import socket_path
from cotenant.controller.wire.clients import Submit

_PREFIX: Final = "job_"
_CONTAINER: Final = "container"


def takes_job_flags(verb: Callable[..., int | None]) -> Callable[..., int | None]:
    """Replaces the parameter `flags` by one command line option per job option."""
    own = inspect.signature(verb, eval_str=True)
    parameters = [each for each in own.parameters.values() if each.name != "flags"]
    parameters += [_parameter(option) for option in OPTIONS]
    parameters.append(_refused_container())

    @functools.wraps(verb)
    def command(**given: Any) -> int | None:
        if given.pop(_CONTAINER) is not None:
            raise Problem("usage", f"--container: {CONTAINERS}")
        written = {option: given.pop(_PREFIX + option.key) for option in OPTIONS}
        return verb(flags=_read(written), **given)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameter(option: Option) -> inspect.Parameter:
    info = Declared(option.flags, metavar=option.metavar or None, help=_sentence(option.help))
    kind: Any = bool if option.switch else list[str] | None if option.repeat else str | None
    return inspect.Parameter(
        _PREFIX + option.key,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if option.switch else None,
        annotation=Annotated[kind, info],
    )


def _refused_container() -> inspect.Parameter:
    annotation = Annotated[str | None, Declared(("--container",), hidden=True)]
    return inspect.Parameter(_CONTAINER, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def submission_problem(error: BadSubmission) -> Problem:
    """As it leaves the command: a file that is not there is another exit code than a wrong value."""
    return Problem("not-found" if error.missing else "usage", error.message, error.hint)


def _read(written: dict[Option, Any]) -> Options:
    flags: Options = {}
    for option, value in written.items():
        if value in (None, False, []):
            continue
        texts = ("yes",) if option.switch else tuple(value) if option.repeat else (value,)
        try:
            flags[option.key] = read(option, texts, option.flag)
        except BadSubmission as error:
            raise submission_problem(error) from None
    return flags


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
