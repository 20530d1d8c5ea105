"""From drafts to jobs: one request, or as many as an array takes, and numbers back; several submissions as
one request (a batch).

Rule: the controller accepts all jobs of a request or none; we then remove what was packed for nothing. A key
that was used before brings the jobs of that time, and we keep nothing of what was packed now; it is refused
where it was used for something else: another command, function, or other arguments. The context
(thread and task) knows which batch is open, so that submissions elsewhere are no part of it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar, Token
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from cotenant.controller.client.connection import Client
from cotenant.controller.domain import Dependency, JobId, JobSpec
from cotenant.controller.python.connection import connect
from cotenant.controller.python.errors import BadCall, RequestRefused
from cotenant.controller.python.folders import payload_in
from cotenant.controller.python.handle import JobHandle
from cotenant.controller.python.packing import PackedCalls, discard, place_of
from cotenant.controller.wire import JOBS_MAX, MESSAGE_BYTES_MAX
from cotenant.controller.wire import clients as wire

REQUEST_BYTES_MAX: Final = MESSAGE_BYTES_MAX * 3 // 4
SUBMIT_TIMEOUT_S: Final = 30.0


class JobDraft(msgspec.Struct, frozen=True):
    """A job that is not submitted yet."""

    spec: JobSpec
    secrets: dict[str, str]
    notes: tuple[str, ...]
    job: JobHandle[Any]
    waits_for: tuple[JobHandle[Any], ...] = ()
    """Jobs of the same batch."""


def send(
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
        with connect(endpoint) as client:
            for number, part in enumerate(parts):
                request = _request(part, is_array, f"{key}#{number}" if key else uuid.uuid4().hex)
                reply = client.ask(request, SUBMIT_TIMEOUT_S)
                if len(reply.job_ids) != len(part):
                    raise RequestRefused(
                        "usage", f"key {key!r} was used for {len(reply.job_ids)} jobs, not {len(part)}"
                    )
                ours = not key or _are_new(part, reply.job_ids, client)
                for draft, job_id in zip(part, reply.job_ids, strict=True):
                    draft.job.note_submission(job_id, (*draft.notes, *reply.notes), place_is_known=ours)
                    draft.job.placeholder = ""
                sent += part if ours else []
    finally:
        kept = {place.folder.parent for each in sent if (place := place_of(each.spec.launch.argv))}
        for each in calls:
            if each.folder not in kept:
                discard(each.folder)
    return [draft.job for draft in drafts]


def _parts(drafts: Sequence[JobDraft], is_array: bool) -> Iterator[Sequence[JobDraft]]:
    """Splits the drafts into as many requests as it takes."""
    if len(drafts) > 1 and (
        len(drafts) > JOBS_MAX or _size(_request(drafts, is_array, "")) > REQUEST_BYTES_MAX
    ):
        half = len(drafts) // 2
        yield from _parts(drafts[:half], is_array)
        yield from _parts(drafts[half:], is_array)
    else:
        yield drafts


def _size(request: wire.Submit) -> int:
    return len(msgspec.msgpack.encode(request))


def _request(drafts: Sequence[JobDraft], is_array: bool, key: str) -> wire.Submit:
    """Builds the request that submits the drafts. Raises BadCall: one variable that looks like a secret has
    two values."""
    secrets: dict[str, str] = {}
    for draft in drafts:
        for name, value in draft.secrets.items():
            if secrets.setdefault(name, value) != value:
                raise BadCall(f"{name} looks like a secret, and has one value in a batch", "use two batches")
    return wire.Submit(
        specs=tuple(draft.spec for draft in drafts),
        array_indices=tuple(range(len(drafts))) if is_array else (),
        secrets=secrets,
        idempotency_key=key,
    )


def _are_new(drafts: Sequence[JobDraft], job_ids: Sequence[JobId], client: Client) -> bool:
    """Whether these jobs are what was sent now, and not what was sent with their key before.

    Raises:
        RequestRefused: something else was sent with it before.
    """
    seen: set[Path] = set()  # Calls of one function lie together.
    for draft, job_id in zip(drafts, job_ids, strict=True):
        ours = place_of(draft.spec.launch.argv)
        if ours is not None and ours.folder.parent in seen:
            continue
        before = client.ask(wire.ShowJob(job_id=job_id)).job.spec
        if ours is not None:
            if before.launch.argv == draft.spec.launch.argv:
                return True  # Each submission has a folder of its own.
            seen.add(ours.folder.parent)
        if not _does_the_same(draft.spec, before):
            raise RequestRefused(
                "usage",
                f"this key was used for job {job_id} ({before.name}): another function, command or arguments",
                f"use another key; cotenant.job({str(job_id)!r}) is that job",
            )
    return False


def _does_the_same(spec: JobSpec, before: JobSpec) -> bool:
    ours, theirs = place_of(spec.launch.argv), place_of(before.launch.argv)
    if ours is None or theirs is None:
        return spec.launch.argv == before.launch.argv
    payloads = {payload_in(each.folder.parent) for each in (ours, theirs)} - {""}
    return ours.each_rank == theirs.each_rank and len(payloads) < 2


class Batch:
    """The block `with cotenant.batch() as jobs:`, in which the jobs that are submitted go as one request at
    its end, and may wait for each other (`after=`). An exception in the block submits none."""

    def __init__(self, *, key: str = "", endpoint: str | None = None) -> None:
        self.key = key
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
            send(self._drafts, self._packed, self._endpoint, key=self.key)

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
    """Opens a block of which all that is submitted goes as one request. `key`: as of `submit`.

    For example:

        with cotenant.batch():
            trained = cotenant.submit(train, gpus=2)
            tested = cotenant.submit(evaluate, after=trained)
    """
    return Batch(key=key, endpoint=endpoint)


def is_keyed(key: str) -> bool:
    """Whether what is submitted now has a key, of its own or of the batch that is open."""
    open_batch = _OPEN.get()
    return bool(key or (open_batch is not None and open_batch.key))


def submit_drafts(
    drafts: list[JobDraft],
    calls: PackedCalls | None,
    endpoint: str | None,
    key: str,
    *,
    is_array: bool = False,
) -> list[JobHandle[Any]]:
    """Submits the drafts at once, or with the batch that is open."""
    open_batch = _OPEN.get()
    if open_batch is None and any(draft.waits_for for draft in drafts):
        raise BadCall("it waits for a job that has no number", "its batch is sent as the block ends")
    if open_batch is None:
        return send(drafts, [calls] if calls else [], endpoint, key=key, is_array=is_array)
    if key or (is_array and drafts[0].spec.array_limit):
        what = "key= is the batch's" if key else "at_once= is for a map outside of a batch"
        raise BadCall(f"in a batch there is one request: {what}")
    open_batch.add(drafts, calls)
    return [draft.job for draft in drafts]
