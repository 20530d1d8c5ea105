"""Job: all that is known of one, what it wrote, and what can be done about it.

Rule: output is bounded. A look reads `TAIL_BYTES` of at most `ATTEMPTS_MAX` attempts; the whole output is
passed on as it is read. What a terminal would obey is left out of what is shown.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from cotenant.controller.client.connection import Refusal
from cotenant.controller.client.output import read_end
from cotenant.controller.domain import ENDED, AttemptNo, JobId, array_of
from cotenant.controller.present import etas, sharing, terminal
from cotenant.controller.present.job_page import ATTEMPT_COLUMNS, asked_for, standing
from cotenant.controller.present.jobs import devices, steps
from cotenant.controller.web.connections import Connections
from cotenant.controller.web.page import Asking, Page, Params, ShownElsewhere
from cotenant.controller.web.pages import changing
from cotenant.controller.web.pages.queue import share_done
from cotenant.controller.web.samples import StepSample
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

DECISIONS_MAX: Final = 100
JOB_ROWS: Final = ("shares with",)
"""What a job's page says in job numbers alone."""
SAMPLES_SHOWN: Final = 12

TAIL_BYTES: Final = 32 * 1024
TAIL_LINES: Final = 200
ATTEMPTS_MAX: Final = 4
PART_BYTES: Final = 256 * 1024


class JobLook(NamedTuple):
    job: wire.JobDetails
    now: str
    why: wire.Explained
    decisions: wire.Decisions
    outputs: tuple[AttemptTail, ...]
    no_output: str
    """Why it cannot be read."""
    samples: tuple[StepSample, ...]


def look(asks: Asking, params: Params) -> JobLook:
    job_id = JobId(params.get("job_id"))
    try:
        shown = asks.ask(wire.ShowJob(job_id=job_id))
    except Refusal as refusal:
        if refusal.failure.code == "not-found" and is_array(asks, job_id):
            raise ShownElsewhere(f"/queue?{urlencode({'array': job_id})}") from None
        raise
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
        why=asks.ask(wire.Explain(job_id=job_id)),
        decisions=asks.ask(wire.GetDecisions(job_id=job_id, limit=DECISIONS_MAX)),
        outputs=outputs,
        no_output=no_output,
        samples=asks.samples.samples_of(job_id),
    )


def is_array(asks: Asking, name: JobId) -> bool:
    """Whether a name that is no job's is an array's number. Raises Refusal: it is neither."""
    found = asks.ask(wire.ListJobs(job_ids=(name,), include_ended=True, limit=1)).jobs
    return any(array_of(each.job_id) == name != each.job_id for each in found)


def rank_of(params: Params) -> int:
    rank = params.get("rank", "0")
    return int(rank) if rank.isascii() and rank.isdigit() and len(rank) < 7 else 0


def fill(looked: JobLook, params: Params) -> Mapping[str, Any]:
    job = looked.job
    return {
        "title": f"Job {job.job_id}",
        "job": job,
        "now": looked.now,
        "why": looked.why,
        "eta": etas.describe_eta(job.eta),
        "standing": [(name, text) for name, text in standing(job) if text and name not in ("why", "eta")],
        "asked_for": [(name, text) for name, text in asked_for(job.spec, False) if text],
        "variables": sorted(job.spec.launch.env.items()),
        "attempt_columns": ATTEMPT_COLUMNS,
        "sharing_columns": sharing.ROWS,
        "sharing_words": sharing.sharing_notes(job),
        "decisions": looked.decisions.decisions,
        "now_s": looked.decisions.now_s,
        "job_rows": JOB_ROWS,
        "outputs": looked.outputs,
        "no_output": looked.no_output,
        "rank": rank_of(params),
        "ranks": job.gpus,
        "changes": [(verb, changing.address(verb, job.job_id)) for verb in job.verbs],
        "settings": changing.address(changing.SET, job.job_id) if job.settable else "",
        "has_ended": job.phase in ENDED,
        "samples": newest(looked.samples),
        "has_loss": any(each.loss is not None for each in looked.samples),
        "sample_count": len(looked.samples),
        "share_done": share_done(job),
        "steps": steps(job),
        "devices": devices,
        "asked": changing.asked_in_words(params),
    }


def newest(samples: Sequence[StepSample]) -> list[StepSample]:
    return list(reversed(samples[-SAMPLES_SHOWN:]))


# --- Besides the page itself ------------------------------------------------------------------------


async def series(request: Request) -> Response:
    """Answers with the series that the plot shows."""
    samples = request.app.state.connections.samples.samples_of(JobId(request.path_params["job_id"]))
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


async def _job(request: Request) -> wire.JobView:
    """Asks for the job that the address names. Raises Refusal: there is no such job."""
    question = wire.ListJobs(job_ids=(JobId(request.path_params["job_id"]),), include_ended=True)
    found = await request.app.state.connections.ask(lambda asks: asks.ask(question))
    job: wire.JobView = found.jobs[0]
    return job


ROUTES: Final = (
    Route("/jobs/{job_id}/series.json", series),
    Route("/jobs/{job_id}/output.log", output),
)
PAGE: Final = Page(
    name="job",
    title="Job",
    path="/jobs/{job_id}",
    look=look,
    fill=fill,
    parts=("standing", "why", "numbers", "attempts", "sharing", "output", "decisions"),
    is_in_menu=False,
    routes=ROUTES,
)


class AttemptTail(NamedTuple):
    """The output that one attempt wrote last."""

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
    end = read_end(asks, job_id, attempt, rank, TAIL_BYTES)
    if end is None:
        return None
    is_cut = end.next_offset > len(end.data) or end.data.count(b"\n") > lines
    return AttemptTail(attempt, terminal.last_words(end.data, lines, colours=False), end.missing, is_cut)


def _part(
    asks: Asking, job_id: JobId, attempt: int, rank: int, offset: int, limit: int
) -> wire.LogPart | None:
    """Reads a part of an attempt's log. None: this attempt has no output, or none yet."""
    try:
        return asks.ask(
            wire.ReadJobLog(job_id=job_id, attempt=AttemptNo(attempt), rank=rank, offset=offset, limit=limit)
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
