"""Job: all that is known of one, what it wrote, and what can be done about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from cotenant.controller.cli.jobs import sharing
from cotenant.controller.cli.jobs.eta import in_words
from cotenant.controller.cli.jobs.show import ATTEMPT_COLUMNS, asked_for, standing
from cotenant.controller.cli.jobs.view import devices, steps
from cotenant.controller.client import Refusal
from cotenant.controller.domain import ENDED, JobId
from cotenant.controller.web import logs, rendering
from cotenant.controller.web.changes import change
from cotenant.controller.web.consequences import POSSIBLE, ChangeVerb, consequence, doubt, offered
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
    ShowJob,
    wall_s,
)

DECISIONS_MAX: Final = 100
SAMPLES_SHOWN: Final = 12


class JobLook(NamedTuple):
    job: JobDetails
    now: str
    why: Explained
    decisions: Decisions
    outputs: tuple[logs.AttemptTail, ...]
    no_output: str
    """Why it cannot be read."""
    samples: tuple[StepSample, ...]


def look(asks: Asking, params: Params) -> JobLook:
    job_id = JobId(params.get("job_id"))
    shown = asks.ask(ShowJob(job_id=job_id))
    job = shown.job
    asks.samples.note(wall_s(shown.now), job)
    outputs: tuple[logs.AttemptTail, ...] = ()
    no_output = ""
    try:
        outputs = logs.tail(asks, job_id, job.attempt, rank_of(params))
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
        "sharing_words": [
            *map(sharing.promised, job.promises),
            *([sharing.in_all(job)] if job.shared else []),
        ],
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
    await connections.ask(lambda asks: logs.tail(asks, job_id, job.attempt, rank))
    pieces = logs.whole(connections, job_id, job.attempt, rank)
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
