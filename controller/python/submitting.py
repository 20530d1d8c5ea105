"""Submitting from Python: a function, a command, many calls at once, or a batch as one request.

Rule: a call becomes the request that a command line would have made (`controller/cli/submission/`); only
the command is ours where it is a function's. All jobs of a batch are accepted together or not at all. The
command line's table alone says which options there are, what they mean and how to check them; here a Python
value becomes the text that a user would have typed. `class` is no name in Python: `class_` is it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, overload

import msgspec

from cotenant.controller.cli.frame.asking import loaded_settings
from cotenant.controller.cli.frame.problem import suggestion
from cotenant.controller.cli.submission.build import Submission, Submitter, submission
from cotenant.controller.cli.submission.options import BY_KEY, OPTIONS, BadSubmission, Option, Options, read
from cotenant.controller.domain import JobId
from cotenant.controller.python.connection import translated
from cotenant.controller.python.errors import BadCall
from cotenant.controller.python.handle import JobHandle
from cotenant.controller.python.packing import CallPlace, PackedCalls, discard, packed
from cotenant.controller.python.results import home
from cotenant.controller.python.sending import JobDraft, submitted
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import socket_path

T = TypeVar("T")
Results = Literal["first", "all"]

_REFUSED: Final = {
    "array": "use cotenant.map, or one submit() per index in a batch",
    "profile": "queue the series with `cotenant profile`",
}

WHERE: Final = "submit()"


@overload
def submit(
    function: Callable[..., T],
    /,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    results: Literal["first"] = "first",
    key: str = "",
    folder: str | Path | None = None,
    endpoint: str | None = None,
    **options: Any,
) -> JobHandle[T]: ...
@overload
def submit(
    function: Callable[..., T],
    /,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    results: Literal["all"],
    key: str = "",
    folder: str | Path | None = None,
    endpoint: str | None = None,
    **options: Any,
) -> JobHandle[list[T]]: ...
@overload
def submit(
    *, command: Sequence[str], key: str = "", endpoint: str | None = None, **options: Any
) -> JobHandle[int]: ...
def submit(
    function: Callable[..., Any] | None = None,
    /,
    *args: Any,
    command: Sequence[str] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    results: Results = "first",
    key: str = "",
    folder: str | Path | None = None,
    endpoint: str | None = None,
    **options: Any,
) -> JobHandle[Any]:
    """Queue `function(*args, **kwargs)`, or a command, as a job.

    The function runs once per GPU, as a script would, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
    set. `results="all"` keeps what every rank returned, else that of rank 0. `key`: a second submission
    with the same one is the first one's job. `folder`: where function and results lie, on every host
    (default: in your home). The options are those of `cotenant submit`.

    Raises:
        BadCall: something in it is wrong; nothing was sent.
        RequestRefused: the controller does not accept it.
        NoController: no controller answers.

    For example:

        job = cotenant.submit(train, 0.1, gpus=2, time="4h")
        job = cotenant.submit(command=["python", "train.py"], gpus=2)
    """
    base, waits_for = _base_options(options)
    if command is not None:
        if function is not None or args or kwargs:
            raise BadCall("submit() takes a function or command=, not both")
        if isinstance(command, str) or not all(isinstance(word, str) for word in command):
            raise BadCall("command= is a list of words", "as in command=['python', 'train.py']")
        made = _submission(list(command), base, endpoint)
        name = made.request.specs[0].name
        draft = _draft(made, JobHandle(endpoint=endpoint, name=name), waits_for)
        return submitted([draft], None, endpoint, key)[0]
    if function is None:
        raise BadCall("submit() needs a function, or command=")
    calls = packed(function, [(args, kwargs or {})], Path(folder).absolute() if folder else home())
    drafts = _drafts_of(calls, base, waits_for, results, endpoint)
    return submitted(drafts, calls, endpoint, key)[0]


def map(
    function: Callable[..., T],
    /,
    *iterables: Iterable[Any],
    at_once: int = 0,
    key: str = "",
    folder: str | Path | None = None,
    endpoint: str | None = None,
    **options: Any,
) -> list[JobHandle[T]]:
    """A job for each call of the function, as the built-in `map` calls it. They are one array: `cotenant
    cancel 7` is for all of them. `at_once`: so many run at a time. More than a request holds go as several
    arrays.

    For example:

        losses = cotenant.gather(cotenant.map(train, [0.1, 0.01, 0.001], gpus=1))
    """
    tasks: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (args, {}) for args in zip(*iterables, strict=False)
    ]
    if at_once < 0:
        raise BadCall(f"at_once= must not be negative, got {at_once}")
    if not tasks:
        return []
    base, waits_for = _base_options(options)
    calls = packed(function, tasks, Path(folder).absolute() if folder else home())
    drafts = _drafts_of(calls, base, waits_for, "first", endpoint, at_once)
    return submitted(drafts, calls, endpoint, key, is_array=True)


# --- From a call to drafts --------------------------------------------------------------------------


def _base_options(given: dict[str, Any]) -> tuple[Options, tuple[JobHandle[Any], ...]]:
    """Without what an open batch alone can resolve: jobs of it that others wait for."""
    after = given.get("after")
    jobs = list(after) if isinstance(after, list | tuple) else [after]
    pending = tuple(job for job in jobs if isinstance(job, JobHandle) and job.placeholder)
    if pending:
        given = {**given, "after": [job for job in jobs if job not in pending] or None}
    options = options_of(given)
    for name, hint in _REFUSED.items():
        if name in options and (name != "profile" or options[name].value == "full"):
            raise BadCall(f"submit() has no {name}={given[name]!r}", hint)
    return options, pending


def _submission(words: list[str], options: Options, endpoint: str | None) -> Submission:
    with translated():
        loaded = loaded_settings(endpoint)
    controller = paths.client_endpoint(loaded.settings)
    where = Submitter(
        folder=Path.cwd(),
        environ=os.environ,
        endpoint=controller,
        same_machine=socket_path(controller) is not None,
    )
    try:
        return submission(words, options, where, command_only=True)
    except BadSubmission as error:
        parts = "; ".join(each.sentence for each in error.parts)
        raise BadCall(f"{error.message}: {parts}" if parts else error.message, error.hint) from None


def _draft(made: Submission, job: JobHandle[Any], waits_for: tuple[JobHandle[Any], ...]) -> JobDraft:
    return JobDraft(made.request.specs[0], made.request.secrets, made.notes, job, waits_for)


def _drafts_of(
    calls: PackedCalls,
    options: Options,
    waits_for: tuple[JobHandle[Any], ...],
    results: Results,
    endpoint: str | None,
    at_once: int = 0,
) -> list[JobDraft]:
    """One for each call: they differ in their folders alone."""
    each_rank = results == "all"
    if results not in ("first", "all"):
        discard(calls.folder)
        raise BadCall(f'results= must be "first" or "all", got {results!r}')
    try:
        made = _submission(list(calls.argv(0, each_rank)), options, endpoint)
    except BaseException:
        discard(calls.folder)
        raise
    first = made.request.specs[0]
    code = f"{first.code_sha256[:32]}{calls.sha256[:32]}" if first.code_sha256 else calls.sha256
    name = first.name if "name" in options else calls.name
    first = msgspec.structs.replace(first, name=name, code_sha256=code)
    if at_once:
        first = msgspec.structs.replace(first, array_limit=at_once)
    drafts = []
    for at in range(calls.calls):
        launch = msgspec.structs.replace(first.launch, argv=calls.argv(at, each_rank))
        spec = msgspec.structs.replace(first, job_id=JobId(f"new-{at}"), launch=launch)
        job: JobHandle[Any] = JobHandle(
            endpoint=endpoint, name=name, place=CallPlace(calls.folder / str(at), each_rank)
        )
        drafts.append(JobDraft(spec, made.request.secrets, made.notes, job, waits_for))
    return drafts


def options_of(given: Mapping[str, object]) -> Options:
    """What was given, parsed and checked; None is the same as not given.

    Raises:
        BadCall: an unknown keyword, or a value that does not fit.
    """
    found: Options = {}
    for name, value in given.items():
        option = BY_KEY.get(name.removesuffix("_"))
        if option is None:
            near = suggestion(name, BY_KEY)
            raise BadCall(f"{WHERE} has no option {name!r}", near or f"options are {', '.join(BY_KEY)}")
        texts = _texts(option, value)
        if texts:
            try:
                found[option.key] = read(option, texts, WHERE)
            except BadSubmission as error:
                raise BadCall(error.message, error.hint) from None
    return found


def _texts(option: Option, value: object) -> tuple[str, ...]:
    """As it would have been typed; none: it was not given."""
    if value is None or (option.switch and value is False):
        return ()
    if isinstance(value, Mapping):  # env={"A": "1"}
        return tuple(f"{name}={text}" for name, text in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str | os.PathLike):
        words = tuple(_text(each) for each in value)
        return words if option.repeat else (",".join(words),) if words else ()
    return (_text(value),)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.3f}s"
    return str(getattr(value, "after_text", value))  # A job, for `after=`.


def signature(before: inspect.Signature) -> inspect.Signature:
    """With the options in place of `**options`, for `help()` and for completion in notebooks."""
    own = [each for each in before.parameters.values() if each.kind is not each.VAR_KEYWORD]
    keyword = inspect.Parameter.KEYWORD_ONLY
    taken = {each.name for each in own}
    names = [each.key + ("_" if each.key == "class" else "") for each in OPTIONS]
    more = [inspect.Parameter(n, keyword, default=None, annotation=Any) for n in names if n not in taken]
    return before.replace(parameters=[*own, *more])


submit.__signature__ = signature(inspect.signature(submit))  # type: ignore[attr-defined]
map.__signature__ = signature(inspect.signature(map))  # type: ignore[attr-defined]
