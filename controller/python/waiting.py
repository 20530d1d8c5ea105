"""Until jobs have ended: one question is open at a time, and the controller answers it as the first one
ends.

Rule: waiting here keeps nothing but this thread, and a connection until it is over. A job that hosts failed
too often counts as ended: it waits for a person, and that may be the caller.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from cotenant.controller.client import Client
from cotenant.controller.domain import ENDED, WAITING, JobId, Phase, for_people
from cotenant.controller.python.connection import connected
from cotenant.controller.python.errors import JobPreempted, StillRunning
from cotenant.controller.python.results import said
from cotenant.controller.wire import JobView, ListJobs, WaitJobs

ROUND_S: Final = 5.0
"""Of one question; between two, jobs that wait for a person are looked for."""


def first_ended(client: Client, job_ids: Sequence[JobId], timeout_s: float) -> list[JobView]:
    """Those of them that are over, as soon as one is; none when the time is up."""
    reply = client.ask(WaitJobs(job_ids=tuple(job_ids), timeout_s=max(0.0, timeout_s), first=True))
    over = [job for job in reply.jobs if job.phase in ENDED]
    if not over:
        held = client.ask(ListJobs(job_ids=tuple(job_ids), states=(Phase.HELD,))).jobs
        over = [job for job in held if job.is_given_up]
    return [for_people(job) for job in over]


def as_they_end(
    job_ids: Sequence[JobId], endpoint: str | None, timeout_s: float | None, round_s: float = ROUND_S
) -> Iterator[list[JobView]]:
    """One or more at a time, until all have ended. Raises StillRunning after `timeout_s`."""
    waiting = dict.fromkeys(job_ids)
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    with connected(endpoint, patient=True) as client:
        while waiting:
            left_s = round_s if until_s is None else min(round_s, until_s - time.monotonic())
            over = first_ended(client, list(waiting), left_s)
            for view in over:
                waiting.pop(view.job_id, None)
            if over:
                yield over
            elif until_s is not None and time.monotonic() >= until_s:
                raise _time_is_up(client, list(waiting), timeout_s or 0.0)


def _time_is_up(client: Client, job_ids: Sequence[JobId], timeout_s: float) -> StillRunning:
    """With the state of the one that is waited for, where there is one."""
    if len(job_ids) > 1:
        return StillRunning(f"{len(job_ids)} jobs have not ended within {timeout_s:g} s")
    view = for_people(client.ask(ListJobs(job_ids=tuple(job_ids), include_ended=True)).jobs[0])
    text = f"job {view.job_id} has not ended within {timeout_s:g} s; it is {said(view)}"
    made_room = view.preemptions > 0 and view.phase in (*WAITING, Phase.RESERVED)
    return JobPreempted(text) if made_room else StillRunning(text)
