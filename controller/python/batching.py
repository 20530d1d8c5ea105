"""Several submissions as one request.

Rule: the context (thread and task) knows which batch is open, so that submissions elsewhere are no part of
it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

import msgspec

from cotenant.controller.domain import Dependency, JobId
from cotenant.controller.python.errors import BadCall
from cotenant.controller.python.handle import JobHandle
from cotenant.controller.python.packing import PackedCalls, discard
from cotenant.controller.python.sending import JobDraft, send


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
            send(self._drafts, self._packed, self._endpoint, key=self._key)

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


def submitted(
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
        return send(drafts, [calls] if calls else [], endpoint, key=key, is_array=is_array)
    if key or (is_array and drafts[0].spec.array_limit):
        what = "key= is the batch's" if key else "at_once= is for a map outside of a batch"
        raise BadCall(f"in a batch there is one request: {what}")
    open_batch.add(drafts, calls)
    return [draft.job for draft in drafts]
