"""Several jobs at once: as they end, all their results, and an end for the rest when one fails.

Rule: only `cancel_rest` cancels anything, and never a job that has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from cotenant.controller.domain import JobId, Phase
from cotenant.controller.python.connection import asked
from cotenant.controller.python.errors import BadCall, RequestRefused
from cotenant.controller.python.handle import JobHandle
from cotenant.controller.python.waiting import as_they_end
from cotenant.controller.wire import ChangeJobs

T = TypeVar("T")


def as_completed(
    jobs: Iterable[JobHandle[T]], timeout: float | None = None, *, cancel_rest: bool = False
) -> Iterator[JobHandle[T]]:
    """The jobs as they end. `cancel_rest`: when one does not finish, or Ctrl-C ends the wait, those that
    have not ended are cancelled; after a failure they are still yielded.

    Raises:
        StillRunning: `timeout` seconds are over and some have not ended.
    """
    waiting: dict[JobId, list[JobHandle[T]]] = defaultdict(list)
    for job in jobs:
        if job.ended_view is None:
            waiting[JobId(job.id)].append(job)
        else:
            yield job
    everyone = [job for each in waiting.values() for job in each]
    failed = False
    try:
        for views in as_they_end(list(waiting), endpoint_of(everyone), timeout) if waiting else ():
            ended = [job.saw_end(view) for view in views for job in waiting[view.job_id]]
            if cancel_rest and not failed and any(view.phase is not Phase.DONE for view in views):
                failed = True
                cancel(everyone)
            yield from ended
    except KeyboardInterrupt:
        if cancel_rest:
            cancel(everyone)
        raise


def gather(
    jobs: Iterable[JobHandle[T]], timeout: float | None = None, *, cancel_rest: bool = False
) -> list[T]:
    """All results, in the order of the jobs; the first failure is raised as soon as it is there.
    `cancel_rest`: it, an interrupt (Ctrl-C), or `timeout` cancels those that have not ended.
    """
    jobs = list(jobs)
    results: dict[int, T] = {}
    try:
        for job in as_completed(jobs, timeout):
            results[id(job)] = job.result()
    except BaseException:
        if cancel_rest:
            cancel(jobs)
        raise
    return [results[id(job)] for job in jobs]


def cancel(jobs: Iterable[JobHandle[Any]]) -> None:
    """Those that have not ended."""
    left = [job for job in jobs if job.ended_view is None]
    if left:
        ids = tuple(dict.fromkeys(JobId(job.id) for job in left))
        try:
            asked(ChangeJobs(verb="cancel", job_ids=ids), endpoint_of(left))
        except RequestRefused as refused:
            if refused.code != "refused":  # Else all of them have ended meanwhile.
                raise


def endpoint_of(jobs: Sequence[JobHandle[Any]]) -> str | None:
    """Raises BadCall: they are of different controllers."""
    endpoints = {job.endpoint for job in jobs}
    if len(endpoints) > 1:
        raise BadCall("these jobs are of different controllers", "wait for those of each by themselves")
    return endpoints.pop() if endpoints else None
