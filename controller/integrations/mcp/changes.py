"""The tools that change jobs: each is planned, its plan shown with a token, and carried out by the token.

Rule: what is sent is the request that was previewed: nothing is read from disk again. Where the preview does
not hold any more when it is confirmed, nothing is sent. A token is random, good once, for `GOOD_FOR_S`, and
for the very request that was previewed; any try uses it up.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Final, NamedTuple

from msgspec import structs
from pydantic import Field

from cotenant.controller.cli.jobs.arrival import foreseen_json, foresight
from cotenant.controller.cli.jobs.submit import SUBMIT_TIMEOUT_S, submission_document
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import ENDED, WAITING, JobId, Phase
from cotenant.controller.integrations.mcp import questions
from cotenant.controller.integrations.mcp.bounds import Document
from cotenant.controller.present.consequences import consequence
from cotenant.controller.present.problem import Problem
from cotenant.controller.submission.settings import setting
from cotenant.controller.wire import clients as wire

GOOD_FOR_S: Final = 300.0
TOKENS_MAX: Final = 64
"""Beyond it the oldest is forgotten."""
JOBS_MAX: Final = 50
"""In one change."""

Token = Annotated[str, Field(max_length=64, description="From the preview of the same request.")]


class PlannedChange(NamedTuple):
    """What a change would do, and the request for it."""

    document: Document
    request: wire.Question[Any]
    basis: Any
    """What the document rests on: planned again, it has to be the same. None: the controller checks it."""


def submit(
    client: Client,
    command: questions.CommandWords,
    options: questions.GivenOptions = {},  # noqa: B006
) -> PlannedChange:
    """Queue a job. The option workdir, absolute, is the folder that it runs in. The preview says whether it
    would be accepted, the controller's notes, and when it would start and end on how many devices."""
    made = questions.submission_of(command, options)
    trial = structs.replace(made.request, dry_run=True)
    reply = client.ask(trial, SUBMIT_TIMEOUT_S)
    foreseen = foresight(client, trial, "")
    document = submission_document(reply, (), foreseen and foreseen_json(foreseen), made.notes, dry_run=True)
    launch = made.request.specs[0].launch
    what = {"jobs": len(made.request.specs), "command": launch.argv, "workdir": launch.workdir}
    return PlannedChange({**document, "would_submit": what}, made.request, None)


def cancel(client: Client, jobs: questions.JobNumbers) -> PlannedChange:
    """End jobs, whether they wait or run; this cannot be undone. An array's number is all its tasks. The
    preview says what work of each would be lost."""
    found = _jobs_in(client, jobs, [phase for phase in Phase if phase not in ENDED])
    rows = [
        {"job": each.job_id, "name": each.name, "user": each.user, "consequence": consequence("cancel", each)}
        for each in found
    ]
    request = wire.ChangeJobs(verb="cancel", job_ids=tuple(each.job_id for each in found))
    return PlannedChange({"jobs": rows}, request, [(each.job_id, each.phase, each.attempt) for each in found])


def set(client: Client, jobs: questions.JobNumbers, changes: questions.GivenOptions) -> PlannedChange:
    """Change options of jobs, all of them or none, such as priority, time or gpus; - takes a value back. Of
    jobs that run only time (longer by an admin), name, notify, idle and priority. The preview has the old and
    new values."""
    new = dict(setting(f"{key}={value}") for key, value in changes.items())
    found = _jobs_in(client, jobs, [phase for phase in Phase if phase not in ENDED])
    ids = tuple(each.job_id for each in found if each.phase in WAITING) or tuple(
        each.job_id for each in found
    )
    rows = []
    for job_id in ids:
        old = client.ask(wire.ShowJob(job_id=job_id)).job.settable
        if lacking := [key for key in new if key not in old]:
            can = ", ".join(old) or "nothing"
            raise Problem("refused", f"{lacking[0]} of job {job_id} cannot be set now", f"what can: {can}")
        rows.append({"job": job_id, "changes": {key: {"old": old[key], "new": new[key]} for key in new}})
    return PlannedChange({"jobs": rows}, wire.SetJobs(job_ids=ids, changes=new), rows)


def _jobs_in(client: Client, names: list[str], states: Iterable[Phase]) -> Sequence[wire.JobView]:
    """Those that are in one of the states. Raises Problem: none is, or too many for one change."""
    job_ids = tuple(map(JobId, names))
    reply = client.ask(wire.ListJobs(job_ids=job_ids, states=tuple(states), limit=JOBS_MAX))
    if not reply.jobs or not names:
        raise Problem("refused", "none of these jobs is in a state to be changed", "the tool job says why")
    if reply.more:
        many = f"these are {len(reply.jobs) + reply.more} jobs; {JOBS_MAX} can be changed at once"
        raise Problem("usage", many, "name fewer, such as single tasks of the array")
    return reply.jobs


class TokenHolder:
    """Previews of changes, until their token confirms them. For several threads."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s, self._lock = now_s, threading.Lock()
        self._kept: dict[str, tuple[Any, PlannedChange, float]] = {}
        """By token: the call, what it would do, until when."""

    def preview(self, client: Client, plan: Callable[..., PlannedChange], **arguments: Any) -> Document:
        """What the call would do, and its token. Raises Problem."""
        planned = plan(client, **arguments)
        token = secrets.token_urlsafe(16)
        with self._lock:
            self._kept[token] = ((plan, arguments), planned, self._now_s() + GOOD_FOR_S)
            while len(self._kept) > TOKENS_MAX:
                del self._kept[next(iter(self._kept))]
        known = {"schema": "preview/1", "verb": plan.__name__, "token": token, "good_for_s": GOOD_FOR_S}
        return {**planned.document, **known}

    def confirm(
        self, client: Client, plan: Callable[..., PlannedChange], token: str, **arguments: Any
    ) -> Document:
        """Carries the call out. Raises Problem: its token is another's, or its preview does not hold."""
        with self._lock:
            call, planned, until_s = self._kept.pop(token, ((plan, arguments), None, 0.0))
        if planned is None:
            raise _refusal(plan, "this token was never given, or has been used")
        if self._now_s() >= until_s:
            raise _refusal(plan, f"this token is older than {GOOD_FOR_S / 60:g} minutes")
        if call != (plan, arguments):
            raise _refusal(plan, "this token is that of another request")
        if planned.basis is not None and plan(client, **arguments).basis != planned.basis:
            raise _refusal(plan, "what its preview said does not hold any more")
        reply = client.ask(planned.request, SUBMIT_TIMEOUT_S)
        if isinstance(reply, wire.Submitted):
            return submission_document(reply, reply.job_ids, None, (), dry_run=False)
        return {"schema": "change/1", "verb": plan.__name__, **arguments, "lines": reply.lines}


def _refusal(plan: Callable[..., PlannedChange], why: str) -> Problem:
    verb = plan.__name__
    return Problem("refused", f"{verb}: {why}; nothing was changed", f"call preview_{verb}, then {verb}")
