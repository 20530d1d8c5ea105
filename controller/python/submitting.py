"""Submitting from Python: a function, a command, many calls at once, or a batch as one request.

Rule: a call becomes the request that a command line would have made (`controller/submission/`); only
the command is ours where it is a function's. All jobs of a batch are accepted together or not at all. The
command line's table alone says which options there are, what they mean and how to check them; here a Python
value becomes the text that a user would have typed. `class` is no name in Python: `class_` is it.
"""

from __future__ import annotations

import inspect
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, overload

import msgspec

from cotenant.controller.client import asking
from cotenant.controller.client.submitter import own_submitter
from cotenant.controller.domain import Dependency, JobId
from cotenant.controller.domain import texts as domain_texts
from cotenant.controller.present.problem import suggestion
from cotenant.controller.python import connection, folders
from cotenant.controller.python.errors import BadCall
from cotenant.controller.python.handle import JobHandle
from cotenant.controller.python.keywords import asked_for, check_function, typed_text
from cotenant.controller.python.packing import PackedCalls, discard, pack_calls
from cotenant.controller.python.results import home
from cotenant.controller.python.sending import JobDraft, is_keyed, submit_drafts
from cotenant.controller.submission import build, starts
from cotenant.controller.submission.options import BY_KEY, OPTIONS, BadSubmission, Option, Options, read

T = TypeVar("T")
Results = Literal["first", "all"]

_REFUSED: Final = {
    "array": "use cotenant.map, or one submit() per index in a batch",
    "grid": "use cotenant.map, or one submit() per combination in a batch",
    "profile": "queue the series with `cotenant profile`",
}

WHERE: Final = "submit()"


@overload
def submit(
    function: Callable[..., T],
    /,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    results: Literal["first"] = "first",
    key: str = "",
    folder: str | Path | None = None,
    endpoint: str | None = None,
    **keywords: Any,
) -> JobHandle[T]: ...
@overload
def submit(
    function: Callable[..., T],
    /,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    results: Literal["all"],
    key: str = "",
    folder: str | Path | None = None,
    endpoint: str | None = None,
    **keywords: Any,
) -> JobHandle[list[T]]: ...
@overload
def submit(
    *,
    command: Sequence[str],
    options: Mapping[str, Any] | None = None,
    key: str = "",
    endpoint: str | None = None,
    **keywords: Any,
) -> JobHandle[int]: ...
def submit(
    function: Callable[..., Any] | None = None,
    /,
    *args: Any,
    command: Sequence[str] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    results: Results = "first",
    key: str = "",
    folder: str | Path | None = None,
    endpoint: str | None = None,
    **keywords: Any,
) -> JobHandle[Any]:
    """Queue `function(*args, **keywords)`, or a command, as a job.

    Keywords that are options of `cotenant submit` are the job's, all others the function's. A name that is
    both stands in `options={}` or in `kwargs={}`; with `options={}` every keyword is the function's. A job
    among the arguments becomes its result, and is waited for. The function runs once and sees all its GPUs;
    where it makes a process group, or with `launch="worker"`, it runs once per GPU, with RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT set, and the result is rank 0's. `results="all"` runs it once per GPU and
    keeps what every rank returned. `key`: a second submission of the same with the same key is the first
    one's job. `folder`: where function and results lie, on every host (default: in your home).

    Raises:
        BadCall: something in it is wrong; nothing was sent.
        RequestRefused: the controller does not accept it.
        NoController: no controller answers.

    For example:

        job = cotenant.submit(train, 0.1, epochs=3, gpus=2, time="4h")
        job = cotenant.submit(train, 0.1, epochs=3, options={"gpus": 2, "time": "4h"})
        job = cotenant.submit(command=["python", "train.py"], gpus=2)
    """
    if command is not None:
        if function is not None or args or kwargs:
            raise BadCall("submit() takes a function or command=, not both")
        if isinstance(command, str) or not all(isinstance(word, str) for word in command):
            raise BadCall("command= is a list of words", "as in command=['python', 'train.py']")
        base, waits_for = _base_options({**keywords, **(options or {})})
        made = _submission(list(command), base, endpoint)
        name = made.request.specs[0].name
        draft = _draft(made, JobHandle(endpoint=endpoint, name=name), waits_for)
        return submit_drafts([draft], None, endpoint, key)[0]
    if function is None:
        raise BadCall("submit() needs a function, or command=")
    check_function(function)
    asked = asked_for(function, len(args), keywords, kwargs or {}, options)
    base, waits_for = _base_options(asked.options)
    among = JobsAmong(endpoint)
    calls = pack_calls(function, [(args, asked.named)], _place(folder), among.reference_of, is_keyed(key))
    drafts = _drafts_of(calls, base, waits_for, results, endpoint, among)
    return submit_drafts(drafts, calls, endpoint, key)[0]


def map(
    function: Callable[..., T],
    /,
    *iterables: Iterable[Any],
    at_once: int = 0,
    kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    key: str = "",
    folder: str | Path | None = None,
    endpoint: str | None = None,
    **keywords: Any,
) -> list[JobHandle[T]]:
    """A job for each call of the function, as the built-in `map` calls it. They are one array: `cotenant
    cancel 7` is for all of them. `at_once`: so many run at a time. More than a request holds go as several
    arrays. Keywords are those of `submit`, the same for each call.

    For example:

        losses = cotenant.gather(cotenant.map(train, [0.1, 0.01, 0.001], gpus=1))
    """
    if at_once < 0:
        raise BadCall(f"at_once= must not be negative, got {at_once}")
    check_function(function)
    asked = asked_for(function, len(iterables), keywords, kwargs or {}, options)
    tasks = [(args, asked.named) for args in zip(*iterables, strict=False)]
    if not tasks:
        return []
    base, waits_for = _base_options(asked.options)
    among = JobsAmong(endpoint)
    calls = pack_calls(function, tasks, _place(folder), among.reference_of, is_keyed(key))
    drafts = _drafts_of(calls, base, waits_for, "first", endpoint, among, at_once)
    return submit_drafts(drafts, calls, endpoint, key, is_array=True)


def submit_array(
    command: Sequence[str],
    tasks: int,
    *,
    at_once: int = 0,
    options: Mapping[str, Any] | None = None,
    endpoint: str | None = None,
) -> list[JobHandle[int]]:
    """Submits one command as so many tasks of an array, which tell themselves apart by COTENANT_JOB.
    `at_once`: so many run at a time. Raises what `submit` does."""
    base, waits_for = _base_options(dict(options or {}))
    made = _submission(list(command), base, endpoint)
    first = msgspec.structs.replace(made.request.specs[0], array_limit=at_once)
    drafts = []
    for at in range(tasks):
        spec = msgspec.structs.replace(first, job_id=JobId(f"new-{at}"))
        job: JobHandle[int] = JobHandle(endpoint=endpoint, name=spec.name)
        drafts.append(JobDraft(spec, made.request.secrets, made.notes, job, waits_for))
    return submit_drafts(drafts, None, endpoint, "", is_array=True)


# --- From a call to drafts --------------------------------------------------------------------------


class JobsAmong:
    """The jobs that stand among the arguments of calls: each becomes its result, and is waited for."""

    def __init__(self, endpoint: str | None) -> None:
        self._endpoint = endpoint
        self._of: dict[int, dict[str, JobHandle[Any]]] = defaultdict(dict)
        """By the call's number and the job's."""

    def reference_of(self, at: int, value: Any) -> folders.ResultReference | None:
        """Notes a job among a call's arguments and returns the reference to its result. Raises BadCall: the
        job is another controller's."""
        if not isinstance(value, JobHandle):
            return None
        if value.endpoint != self._endpoint:
            raise BadCall(f"{value!r} is of another controller", "pass its result()")
        self._of[at][value.placeholder or value.id] = value
        return value.reference()

    def jobs_of(self, at: int) -> list[JobHandle[Any]]:
        """The jobs among a call's arguments that may not have finished."""
        return [each for each in self._of[at].values() if not each.has_finished]


def _base_options(given: dict[str, Any]) -> tuple[Options, tuple[JobHandle[Any], ...]]:
    """The options without what an open batch alone can resolve: jobs of the batch that others wait for."""
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


def _submission(
    words: list[str], options: Options, endpoint: str | None, start: starts.Start | None = None
) -> build.Submission:
    with connection.translate_problems():
        where = own_submitter(asking.loaded_settings(endpoint).settings, Path.cwd())
    try:
        return build.submission(words, options, where, command_only=True, start=start)
    except BadSubmission as error:
        raise _bad_call(error) from None


def _draft(made: build.Submission, job: JobHandle[Any], waits_for: tuple[JobHandle[Any], ...]) -> JobDraft:
    return JobDraft(made.request.specs[0], made.request.secrets, made.notes, job, waits_for)


def _drafts_of(
    calls: PackedCalls,
    options: Options,
    waits_for: tuple[JobHandle[Any], ...],
    results: Results,
    endpoint: str | None,
    among: JobsAmong,
    at_once: int = 0,
) -> list[JobDraft]:
    """Makes one draft for each call: the drafts differ in their folders alone."""
    each_rank = results == "all"
    if results not in ("first", "all"):
        discard(calls.folder)
        raise BadCall(f'results= must be "first" or "all", got {results!r}')
    try:
        start = starts.Start(mode="worker") if each_rank else calls.start
        made = _submission(list(calls.argv(0, each_rank)), options, endpoint, start)
    except BaseException:
        discard(calls.folder)
        raise
    first = made.request.specs[0]
    code = f"{(first.code_sha256 or calls.sha256)[:32]}{calls.sha256[:32]}"
    name = first.name if "name" in options else calls.name
    first = msgspec.structs.replace(first, name=name, code_sha256=code)
    if at_once:
        first = msgspec.structs.replace(first, array_limit=at_once)
    drafts = []
    for at in range(calls.calls):
        launch = msgspec.structs.replace(first.launch, argv=calls.argv(at, each_rank))
        waited = among.jobs_of(at)
        after = (
            *first.after,
            *(Dependency(job_id=JobId(each.id)) for each in waited if not each.placeholder),
        )
        spec = msgspec.structs.replace(first, job_id=JobId(f"new-{at}"), launch=launch, after=after)
        job: JobHandle[Any] = JobHandle(
            endpoint=endpoint, name=name, place=folders.CallPlace(calls.folder / str(at), each_rank)
        )
        pending = (*waits_for, *(each for each in waited if each.placeholder))
        drafts.append(JobDraft(spec, made.request.secrets, made.notes, job, pending))
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
                raise _bad_call(error) from None
    return found


def _bad_call(error: BadSubmission) -> BadCall:
    """Names of files and words of scripts are in it, with whatever characters they have."""
    parts = "; ".join(error.parts)
    return BadCall(
        domain_texts.one_line(f"{error.message}: {parts}" if parts else error.message),
        domain_texts.one_line(error.hint),
    )


def _place(folder: str | Path | None) -> Path:
    return Path(folder).absolute() if folder else home()


def _texts(option: Option, value: object) -> tuple[str, ...]:
    """The value of an option as it would have been typed; none: the option was not given."""
    if value is None or (option.switch and value is False):
        return ()
    if isinstance(value, Mapping):  # env={"A": "1"}
        return tuple(f"{name}={text}" for name, text in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str | os.PathLike):
        words = tuple(typed_text(each) for each in value)
        return words if option.repeat else (",".join(words),) if words else ()
    return (typed_text(value),)


def signature(before: inspect.Signature) -> inspect.Signature:
    """The signature with the options before the function's own keywords, for `help()` and for completion in
    notebooks."""
    *own, keywords = before.parameters.values()
    keyword = inspect.Parameter.KEYWORD_ONLY
    taken = {each.name for each in own}
    names = [each.key + ("_" if each.key == "class" else "") for each in OPTIONS]
    more = [inspect.Parameter(n, keyword, default=None, annotation=Any) for n in names if n not in taken]
    return before.replace(parameters=[*own, *more, keywords])


submit.__signature__ = signature(inspect.signature(submit))  # type: ignore[attr-defined]
map.__signature__ = signature(inspect.signature(map))  # type: ignore[attr-defined]
