"""Job: all that is known of one, what it wrote, and what can be done about it.

Rule: output is bounded. A look reads `TAIL_BYTES` of at most `ATTEMPTS_MAX` attempts; the whole output is
passed on as it is read. What a terminal would obey is left out of what is shown. What a change would do is
said before anybody says yes, told from what the job is now; whether it may be done, and by whom, the
controller decides.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from cotenant.controller.cli.cluster import top_view
from cotenant.controller.cli.frame.screen import duration
from cotenant.controller.cli.frame.terminal import last_words
from cotenant.controller.cli.jobs import sharing
from cotenant.controller.cli.jobs.eta import in_words
from cotenant.controller.cli.jobs.show import ATTEMPT_COLUMNS, asked_for, standing
from cotenant.controller.cli.jobs.view import devices, steps
from cotenant.controller.client import Refusal
from cotenant.controller.domain import ENDED, AttemptNo, JobId, Phase
from cotenant.controller.web import rendering
from cotenant.controller.web.access import change
from cotenant.controller.web.connections import Connections
from cotenant.controller.web.page import Asking, Page, Params, surroundings
from cotenant.controller.web.pages.queue import share_done
from cotenant.controller.web.samples import StepSample
from cotenant.controller.wire import (
    ChangeJobs,
    Decisions,
    Explain,
    Explained,
    GetDecisions,
    JobDetails,
    JobView,
    ListJobs,
    LogPart,
    ReadJobLog,
    ShowJob,
    wall_s,
)

DECISIONS_MAX: Final = 100
SAMPLES_SHOWN: Final = 12

TAIL_BYTES: Final = 32 * 1024
TAIL_LINES: Final = 200
ATTEMPTS_MAX: Final = 4
PART_BYTES: Final = 256 * 1024
FAR: Final = 1 << 62
"""Behind the end of any log: the answer says where that is."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*m")

ChangeVerb = Literal["cancel", "hold", "release", "preempt", "checkpoint", "requeue"]

POSSIBLE: Final[dict[ChangeVerb, frozenset[Phase]]] = {
    "checkpoint": frozenset({Phase.RUNNING}),
    "preempt": frozenset({Phase.LOADING, Phase.RUNNING}),
    "requeue": ENDED | {Phase.LOADING, Phase.RUNNING},
    "hold": frozenset({Phase.QUEUED, Phase.BLOCKED, Phase.RESERVED}),
    "release": frozenset({Phase.HELD}),
    "cancel": frozenset(set(Phase) - ENDED),
}
"""What is offered in which phase, as `controller/api/changes.py` takes it."""


class JobLook(NamedTuple):
    job: JobDetails
    now: str
    why: Explained
    decisions: Decisions
    outputs: tuple[AttemptTail, ...]
    no_output: str
    """Why it cannot be read."""
    samples: tuple[StepSample, ...]


def look(asks: Asking, params: Params) -> JobLook:
    job_id = JobId(params.get("job_id"))
    shown = asks.ask(ShowJob(job_id=job_id))
    job = shown.job
    asks.samples.note(wall_s(shown.now), job)
    outputs: tuple[AttemptTail, ...] = ()
    no_output = ""
    try:
        outputs = output_tail(asks, job_id, job.attempt, rank_of(params))
    except Refusal as refusal:
        no_output = refusal.failure.message
    return JobLook(
        job=job,
        now=shown.now,
        why=asks.ask(Explain(job_id=job_id)),
        decisions=asks.ask(GetDecisions(job_id=job_id, limit=DECISIONS_MAX)),
        outputs=outputs,
        no_output=no_output,
        samples=asks.samples.of(job_id),
    )


def rank_of(params: Params) -> int:
    rank = params.get("rank", "0")
    return int(rank) if rank.isascii() and rank.isdigit() and len(rank) < 7 else 0


def shown(looked: JobLook, params: Params) -> Mapping[str, Any]:
    job = looked.job
    return {
        "title": f"Job {job.job_id}",
        "job": job,
        "now": looked.now,
        "why": looked.why,
        "eta": in_words(job.eta),
        "standing": [(name, text) for name, text in standing(job) if text and name not in ("why", "eta")],
        "asked_for": [(name, text) for name, text in asked_for(job.spec, False) if text],
        "variables": sorted(job.spec.launch.env.items()),
        "attempt_columns": ATTEMPT_COLUMNS,
        "sharing_columns": sharing.ROWS,
        "sharing_words": sharing.in_words(job),
        "decisions": decided(looked.decisions),
        "outputs": looked.outputs,
        "no_output": looked.no_output,
        "rank": rank_of(params),
        "ranks": job.gpus,
        "verbs": offered(job),
        "has_ended": job.phase in ENDED,
        "samples": newest(looked.samples),
        "sample_count": len(looked.samples),
        "share_done": share_done(job),
        "steps": steps(job),
        "devices": devices,
        "asked": params.get("asked") if params.get("asked") in POSSIBLE else "",
    }


class DecisionLine(NamedTuple):
    ago_s: float
    what: str
    reason: str


def decided(decisions: Decisions) -> list[DecisionLine]:
    """The newest first."""
    return [
        DecisionLine(max(0.0, decisions.now_s - each.at_s), each.what, each.reason)
        for each in decisions.decisions
    ]


def newest(samples: Sequence[StepSample]) -> list[StepSample]:
    return list(reversed(samples[-SAMPLES_SHOWN:]))


# --- Besides the page itself ------------------------------------------------------------------------


async def series(request: Request) -> Response:
    """What the plot shows."""
    samples = request.app.state.connections.samples.of(JobId(request.path_params["job_id"]))
    columns = {name: [getattr(each, name) for each in samples] for name in StepSample._fields}
    return JSONResponse({"schema": "job-series/1", **columns})


async def output(request: Request) -> Response:
    """All of it, for a text editor."""
    job_id = JobId(request.path_params["job_id"])
    connections = request.app.state.connections
    rank = rank_of(Params(query=tuple(request.query_params.items())))
    job = await _job(request)
    # The first question is asked here: what is refused is said instead of a file.
    await connections.ask(lambda asks: output_tail(asks, job_id, job.attempt, rank))
    pieces = whole_output(connections, job_id, job.attempt, rank)
    name = f'attachment; filename="job-{"".join(c for c in job_id if c.isalnum() or c == "_")}.log"'
    return StreamingResponse(
        pieces, media_type="text/plain; charset=utf-8", headers={"content-disposition": name}
    )


async def question(request: Request) -> Response:
    """Says what a change would do, and asks."""
    verb = _verb(request)
    if verb is None:
        return RedirectResponse(f"/jobs/{request.path_params['job_id']}")
    job = await _job(request)
    told = {"job": job, "verb": verb, "consequence": consequence(verb, job), "doubt": doubt(verb, job)}
    return HTMLResponse(rendering.whole("change", {**surroundings(request), **told}))


async def act(request: Request, fields: Mapping[str, str]) -> Response:
    verb, job_id = _verb(request), JobId(request.path_params["job_id"])
    if verb is not None:
        await request.app.state.connections.ask(
            lambda asks: asks.ask(ChangeJobs(verb=verb, job_ids=(job_id,)))
        )
    return RedirectResponse(f"/jobs/{job_id}?asked={verb or ''}", 303)


def _verb(request: Request) -> ChangeVerb | None:
    verb = request.path_params["verb"]
    return cast(ChangeVerb, verb) if verb in POSSIBLE else None


async def _job(request: Request) -> JobView:
    """Raises Refusal: there is none."""
    question = ListJobs(job_ids=(JobId(request.path_params["job_id"]),), include_ended=True)
    found = await request.app.state.connections.ask(lambda asks: asks.ask(question))
    job: JobView = found.jobs[0]
    return job


ROUTES: Final = (
    Route("/jobs/{job_id}/series.json", series),
    Route("/jobs/{job_id}/output.log", output),
    Route("/jobs/{job_id}/change/{verb}", question, methods=["GET"]),
    change("/jobs/{job_id}/change/{verb}", act),
)
PAGE: Final = Page(
    name="job",
    title="Job",
    path="/jobs/{job_id}",
    look=look,
    shown=shown,
    parts=("standing", "why", "numbers", "attempts", "sharing", "output", "decisions"),
    is_in_menu=False,
    routes=ROUTES,
)


class AttemptTail(NamedTuple):
    """What one attempt wrote last."""

    attempt: int
    text: str
    missing: str = ""
    is_cut: bool = False
    """There is more before it."""


def output_tail(asks: Asking, job_id: JobId, attempt: int, rank: int) -> tuple[AttemptTail, ...]:
    """The newest attempt's last lines, and of those before it as many as there is room for; the oldest first.

    Raises:
        Refusal: it is somebody else's, or no rank of it.
    """
    found: list[AttemptTail] = []
    room = TAIL_LINES
    for number in range(attempt, max(0, attempt - ATTEMPTS_MAX), -1):
        if room <= 0:
            break
        output = _end_of(asks, job_id, number, rank, room)
        if output is not None:
            found.append(output)
            room -= output.text.count("\n") + 1
    return tuple(reversed(found))


def _end_of(asks: Asking, job_id: JobId, attempt: int, rank: int, lines: int) -> AttemptTail | None:
    end = _part(asks, job_id, attempt, rank, FAR, 1)
    if end is None:
        return None
    begin = max(0, end.next_offset - TAIL_BYTES)
    part = _part(asks, job_id, attempt, rank, begin, TAIL_BYTES)
    if part is None:
        return None
    text = _COLOUR.sub("", last_words(part.data, lines))
    is_cut = begin > 0 or part.data.count(b"\n") > lines
    return AttemptTail(attempt, text, part.missing, is_cut)


def _part(asks: Asking, job_id: JobId, attempt: int, rank: int, offset: int, limit: int) -> LogPart | None:
    """None: this attempt has no output, or none yet."""
    try:
        return asks.ask(
            ReadJobLog(job_id=job_id, attempt=AttemptNo(attempt), rank=rank, offset=offset, limit=limit)
        )
    except Refusal as refusal:
        if refusal.failure.code == "not-found":
            return None
        raise


async def whole_output(
    connections: Connections, job_id: JobId, attempts: int, rank: int
) -> AsyncIterator[bytes]:
    """Everything, byte for byte; a line of ours before each further attempt."""
    for number in range(1, attempts + 1):
        if number > 1:
            yield f"--- attempt {number} ---\n".encode()
        offset, part = 0, None
        while part is None or not (part.at_end or part.closed):
            at, attempt = offset, number
            part = await connections.ask(lambda asks: _part(asks, job_id, attempt, rank, at, PART_BYTES))  # noqa: B023
            if part is None or (part.next_offset <= offset and not part.data):
                break
            if part.missing:
                yield f"--- missing: {part.missing} ---\n".encode()
            yield part.data
            offset = part.next_offset


def offered(job: JobView) -> tuple[ChangeVerb, ...]:
    return tuple(verb for verb, phases in POSSIBLE.items() if job.phase in phases)


def consequence(verb: ChangeVerb, job: JobView) -> str:
    match verb:
        case "preempt":
            return f"{_saving(job)} It leaves {_places(job)} and queues again{_return(job)}.{_others(job)}"
        case "checkpoint":
            return f"{_saving(job)} It keeps {_places(job)} and goes on."
        case "requeue" if job.phase in ENDED:
            start = f"its save at step {job.durable_step}" if job.durable_step else "its beginning"
            return f"It queues again under its number, as attempt {job.attempt + 1}, from {start}."
        case "requeue":
            start = _saving(job) if job.resumable else "It cannot resume: it begins anew."
            return f"{start} It leaves {_places(job)} and queues again.{_others(job)}"
        case "cancel" | "hold" | "release":
            return top_view.consequence(verb, job)


def doubt(verb: ChangeVerb, job: JobView) -> str:
    """Why the controller will hardly agree; empty if nothing is known against it."""
    if job.phase not in POSSIBLE[verb]:
        return f"Job {job.job_id} is {job.phase.value} now: that means nothing for it."
    if verb in ("preempt", "checkpoint") and not job.resumable:
        return f"It cannot resume: {job.resumable_note or 'the script has not said that it can'}."
    return ""


def _saving(job: JobView) -> str:
    last = f"the last save is of step {job.durable_step}" if job.durable_step else "nothing was saved yet"
    pause = (
        f", which should take {duration(job.expected_pause_s)}" if job.expected_pause_s is not None else ""
    )
    return f"It saves its state at about step {job.step} ({last}){pause}."


def _places(job: JobView) -> str:
    return devices(job.devices) or "its devices"


def _return(job: JobView) -> str:
    if job.expected_load_s is None:
        return ""
    return f"; when it gets devices again, loading should take {duration(job.expected_load_s)}"


def _others(job: JobView) -> str:
    others = " and ".join(f"job {each}" for each in job.co_tenants)
    return f" {others[:1].upper()}{others[1:]} beside it keeps the devices." if others else ""
