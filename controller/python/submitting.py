"""Submitting from Python: a function, a command, many calls at once, or a batch as one request.

Rule: a call becomes the request that a command line would have made (`controller/cli/submission/`); only
the command is ours where it is a function's. All jobs of a batch are accepted together or not at all."""

from __future__ import annotations

import inspect
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar, Token
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, TypeVar, overload

import msgspec

from cotenant.controller.cli.frame.asking import loaded_settings
from cotenant.controller.cli.submission.build import Submission, Submitter, submission
from cotenant.controller.cli.submission.options import BadSubmission, Options
from cotenant.controller.domain import Dependency, JobId, JobSpec
from cotenant.controller.python.connection import asked, connected, translated
from cotenant.controller.python.errors import BadCall, RequestRefused
from cotenant.controller.python.given import options_of, signature
from cotenant.controller.python.handle import JobHandle
from cotenant.controller.python.packing import CallPlace, PackedCalls, discard, packed, place_of
from cotenant.controller.python.results import home
from cotenant.controller.system import paths
from cotenant.controller.system.endpoint import socket_path
from cotenant.controller.wire import JOBS_MAX, MESSAGE_BYTES_MAX, ShowJob, Submit

T = TypeVar("T")
Results = Literal["first", "all"]

REQUEST_BYTES_MAX: Final = MESSAGE_BYTES_MAX * 3 // 4
SUBMIT_TIMEOUT_S: Final = 30.0
_REFUSED: Final = {
    "array": "use cotenant.map, or one submit() per index in a batch",
    "profile": "queue the series with `cotenant profile`",
}


class JobDraft(msgspec.Struct, frozen=True):
    """One job that is not submitted yet."""

    spec: JobSpec
    secrets: dict[str, str]
    notes: tuple[str, ...]
    job: JobHandle[Any]
    waits_for: tuple[JobHandle[Any], ...] = ()
    """Jobs of the same batch."""


class Batch:
    """`with cotenant.batch() as jobs:` the jobs that are submitted in the block go as one request at its
    end, and may wait for each other (`after=`). An exception in the block submits none."""

    def __init__(self, *, key: str = "", endpoint: str | None = None) -> None:
        self._key = key
        self._endpoint = endpoint
        self._drafts: list[JobDraft] = []
        self._packed: list[PackedCalls] = []
        self._token: Token[Batch | None] | None = None

    def __enter__(self) -> Batch:
        if _OPEN.get() is not None:
            raise BadCall("a batch is open already", "one is one request: leave the inner one out")
        self._token = _OPEN.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        _OPEN.reset(self._token)
        if kind is not None:
            for calls in self._packed:
                discard(calls.folder)
        elif self._drafts:
            _send(self._drafts, self._packed, self._endpoint, key=self._key)

    def __iter__(self) -> Iterator[JobHandle[Any]]:
        return (draft.job for draft in self._drafts)

    def __len__(self) -> int:
        return len(self._drafts)

    def add(self, drafts: Iterable[JobDraft], calls: PackedCalls | None) -> None:
        for draft in drafts:
            name = draft.job.placeholder = f"new-{len(self._drafts)}"
            after = (*draft.spec.after, *(Dependency(job_id=JobId(j.placeholder)) for j in draft.waits_for))
            spec = msgspec.structs.replace(draft.spec, job_id=JobId(name), after=after)
            self._drafts.append(msgspec.structs.replace(draft, spec=spec))
        self._packed += [calls] if calls is not None else []


_OPEN: ContextVar[Batch | None] = ContextVar("open batch", default=None)


def batch(*, key: str = "", endpoint: str | None = None) -> Batch:
    """One request for all that is submitted in the block. `key`: as of `submit`.

    For example:

        with cotenant.batch():
            trained = cotenant.submit(train, gpus=2)
            tested = cotenant.submit(evaluate, after=trained)
    """
    return Batch(key=key, endpoint=endpoint)


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
        return _submitted([draft], None, endpoint, key)[0]
    if function is None:
        raise BadCall("submit() needs a function, or command=")
    calls = packed(function, [(args, kwargs or {})], Path(folder).absolute() if folder else home())
    drafts = _drafts_of(calls, base, waits_for, results, endpoint)
    return _submitted(drafts, calls, endpoint, key)[0]


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
    return _submitted(drafts, calls, endpoint, key, is_array=True)


submit.__signature__ = signature(inspect.signature(submit))  # type: ignore[attr-defined]
map.__signature__ = signature(inspect.signature(map))  # type: ignore[attr-defined]


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


# --- From drafts to jobs ----------------------------------------------------------------------------


def _submitted(
    drafts: list[JobDraft],
    calls: PackedCalls | None,
    endpoint: str | None,
    key: str,
    *,
    is_array: bool = False,
) -> list[JobHandle[Any]]:
    """At once, or with the batch that is open."""
    open_batch = _OPEN.get()
    if open_batch is None and any(draft.waits_for for draft in drafts):
        raise BadCall("after= names a job that has no number", "its batch is sent as the block ends")
    if open_batch is None:
        return _send(drafts, [calls] if calls else [], endpoint, key=key, is_array=is_array)
    if key or (is_array and drafts[0].spec.array_limit):
        what = "key= is the batch's" if key else "at_once= is for a map outside of a batch"
        raise BadCall(f"in a batch there is one request: {what}")
    open_batch.add(drafts, calls)
    return [draft.job for draft in drafts]


def _send(
    drafts: Sequence[JobDraft],
    calls: Sequence[PackedCalls],
    endpoint: str | None,
    *,
    key: str,
    is_array: bool = False,
) -> list[JobHandle[Any]]:
    """All of it, or nothing; what was packed for nothing goes."""
    sent: list[JobDraft] = []
    try:
        parts = list(_parts(drafts, is_array))
        if len(parts) > 1 and (not is_array or drafts[0].spec.array_limit):
            what = "at_once= holds within one request" if is_array else "a batch is one request"
            raise BadCall(f"{what}, and {len(drafts)} jobs are more than one holds", f"{len(parts[0])} fit")
        with connected(endpoint) as client:
            for number, part in enumerate(parts):
                request = _request(part, is_array, f"{key}#{number}" if key else uuid.uuid4().hex)
                reply = client.ask(request, SUBMIT_TIMEOUT_S)
                if len(reply.job_ids) != len(part):
                    raise RequestRefused(
                        "usage", f"key {key!r} was used for {len(reply.job_ids)} jobs, not {len(part)}"
                    )
                ours = not key or _is_ours(part[0], reply.job_ids[0], endpoint)
                for draft, job_id in zip(part, reply.job_ids, strict=True):
                    draft.job.submitted(job_id, (*draft.notes, *reply.notes), place_is_known=ours)
                    draft.job.placeholder = ""
                sent += part if ours else []
    finally:
        kept = {place.folder.parent for each in sent if (place := place_of(each.spec.launch.argv))}
        for each in calls:
            if each.folder not in kept:
                discard(each.folder)
    return [draft.job for draft in drafts]


def _parts(drafts: Sequence[JobDraft], is_array: bool) -> Iterator[Sequence[JobDraft]]:
    """As many requests as it takes."""
    if len(drafts) > 1 and (
        len(drafts) > JOBS_MAX or _size(_request(drafts, is_array, "")) > REQUEST_BYTES_MAX
    ):
        half = len(drafts) // 2
        yield from _parts(drafts[:half], is_array)
        yield from _parts(drafts[half:], is_array)
    else:
        yield drafts


def _size(request: Submit) -> int:
    return len(msgspec.msgpack.encode(request))


def _request(drafts: Sequence[JobDraft], is_array: bool, key: str) -> Submit:
    """Raises BadCall: one variable that looks like a secret has two values."""
    secrets: dict[str, str] = {}
    for draft in drafts:
        for name, value in draft.secrets.items():
            if secrets.setdefault(name, value) != value:
                raise BadCall(f"{name} looks like a secret, and has one value in a batch", "use two batches")
    return Submit(
        specs=tuple(draft.spec for draft in drafts),
        array_indices=tuple(range(len(drafts))) if is_array else (),
        secrets=secrets,
        idempotency_key=key,
    )


def _is_ours(draft: JobDraft, job_id: JobId, endpoint: str | None) -> bool:
    """Whether the job is what was sent now, and not what was sent with its key before."""
    return asked(ShowJob(job_id=job_id), endpoint).job.spec.launch.argv == draft.spec.launch.argv
