"""Queue: what runs, what waits, why, and what would have to happen first.

Rule: the controller finds and pages: at most `ROWS_MAX` rows of each kind are asked for, an array that waits
being one of them. Only to sort more than that the whole list is asked for, and then not again at every look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from msgspec import structs

from cotenant.controller.client.connection import Refusal
from cotenant.controller.domain import ON_DEVICES, WAITING, JobId, Phase
from cotenant.controller.present import etas
from cotenant.controller.present.controllers import lag_text, leader_text
from cotenant.controller.present.jobs import devices, gpus, left_s, left_text, steps
from cotenant.controller.web.page import Asking, Page, Params
from cotenant.controller.web.pages import changing
from cotenant.controller.web.rendering import about
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

ROWS_MAX: Final = 500
PAGE_JOBS: Final = 1_000
WHOLE_MAX: Final = 20_000
"""Rows to sort: of a longer list only the first so many are."""

RUNS: Final = tuple(sorted(ON_DEVICES | {Phase.RESERVED}))
WAITS: Final = tuple(sorted(WAITING))
KINDS: Final = {"runs": RUNS, "waits": WAITS}
"""By the name of their place in the address."""


class JobsOfKind(NamedTuple):
    """Rows of one kind."""

    jobs: Sequence[wire.JobView]
    of: int
    """Jobs that match."""
    more: int
    """Rows beyond these."""
    next: str
    """Where the next page begins; empty: there is none."""
    now: str


class QueueLook(NamedTuple):
    status: wire.ControllerStatus
    runs: JobsOfKind
    waits: JobsOfKind
    ended: int
    """Jobs that have ended and match."""
    why: wire.Explained | None
    """Of the job that was asked about, or of the first that waits."""
    controllers: wire.ControllersView


def look(asks: Asking, params: Params) -> QueueLook:
    status = asks.ask(wire.GetStatus())
    runs, waits = (
        _list_jobs(asks, _jobs_question(states, params), name, params) for name, states in KINDS.items()
    )
    for job in runs.jobs:
        asks.samples.note(wall_s(runs.now), job)
    ended = asks.ask(structs.replace(_jobs_question((), params), ended=True, fold=False, page=1))
    why = _why(asks, params.get("why"), waits.jobs)
    controllers = asks.ask(wire.GetControllers())
    return QueueLook(status, runs, waits, sum(ended.by_state.values()), why, controllers)


def _jobs_question(states: tuple[Phase, ...], params: Params) -> wire.ListJobs:
    array = params.get("array")
    return wire.ListJobs(
        states=states,
        job_ids=(JobId(array),) if array else (),
        user=params.get("user"),
        text=params.get("q"),
        fold=states == WAITS and not array,
        page=ROWS_MAX,
    )


def _list_jobs(asks: Asking, question: wire.ListJobs, name: str, params: Params) -> JobsOfKind:
    begin, sort = number_of(params.get(name)), params.get("sort")
    _, key = SORTS.get(sort.removeprefix(BACKWARDS), ("", None))
    if key is None:
        part = asks.ask(structs.replace(question, after=begin))
        of = sum(part.by_state.values())
        return JobsOfKind(part.jobs, of, part.more, str(part.next) if part.next else "", part.now)
    jobs, of, now = asks.keep(str(question), lambda: _whole(asks, question))
    rows = sorted(jobs, key=key, reverse=sort.startswith(BACKWARDS))[begin:]
    more = max(0, len(rows) - ROWS_MAX)
    return JobsOfKind(rows[:ROWS_MAX], of, more, str(begin + ROWS_MAX) if more else "", now)


def _whole(asks: Asking, question: wire.ListJobs) -> tuple[Sequence[wire.JobView], int, str]:
    """All rows, how many jobs they are, and when."""
    jobs: list[wire.JobView] = []
    part: wire.Jobs | None = None
    while part is None or (part.next and len(jobs) < WHOLE_MAX):
        after = part.next if part is not None else 0
        part = asks.ask(structs.replace(question, page=PAGE_JOBS, after=after))
        jobs += part.jobs
    return jobs, sum(part.by_state.values()), part.now


def number_of(text: str) -> int:
    """Whatever is no number is 0."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def _why(asks: Asking, asked: str, waits: Sequence[wire.JobView]) -> wire.Explained | None:
    job_id = JobId(asked) if asked else next((job.job_id for job in waits), None)
    if job_id is None:
        return None
    try:
        return asks.ask(wire.Explain(job_id=job_id))
    except Refusal:
        if asked:
            raise
        return None  # It has ended meanwhile, and is forgotten.


# --- What is shown ----------------------------------------------------------------------------------

SortKey = Callable[[wire.JobView], Any]
SORTS: Final[dict[str, tuple[str, SortKey]]] = {
    "name": ("Name", lambda job: job.name.casefold()),
    "user": ("User", lambda job: job.user.casefold()),
    "state": ("State", lambda job: job.phase.value),
    "gpus": ("GPUs", lambda job: job.gpus * job.gpu_fraction),
    "waited": ("Waited", lambda job: job.wait_s),
    "ran": ("Ran", lambda job: job.run_s),
    "left": ("Left", lambda job: (left_s(job) is None, left_s(job))),
    "ends": ("Ends", lambda job: _end_s(job)),
}
BACKWARDS: Final = "-"
"""Before a sort's name."""


def fill(looked: QueueLook, params: Params) -> Mapping[str, Any]:
    return {
        "status": looked.status,
        "controllers": looked.controllers,
        "leader_text": leader_text,
        "lag_text": lag_text,
        "runs": looked.runs,
        "waits": looked.waits,
        "next_pages": {
            name: link(params, **{name: found.next}) if found.next else ""
            for name, found in (("runs", looked.runs), ("waits", looked.waits))
        },
        "first_pages": {name: link(params, **{name: ""}) if params.get(name) else "" for name in KINDS},
        "ended_link": link(params, "/ended", sort="", why="", runs="", waits="", asked=""),
        "array": params.get("array"),
        "array_link": lambda array: link(params, array=array, waits=""),
        "is_filtered": any(params.get(name) for name in ("q", "user", "array")),
        "why": looked.why,
        "ended": looked.ended,
        "now": looked.runs.now,
        "heads": {name: head(name, title, params) for name, (title, _) in SORTS.items()},
        "query": params.get("q"),
        "user": params.get("user"),
        "sort": params.get("sort"),
        "why_link": lambda job_id: link(params, why=job_id),
        "asked": changing.asked_in_words(params),
        "may_change": partial(changing.may_change, looked.status),
        "verbs": changing.offered_verbs(looked.status, (*looked.runs.jobs, *looked.waits.jobs)),
        "devices": devices,
        "gpus": gpus,
        "left_text": partial(left_text, known=about),
        "steps": steps,
        "share_done": share_done,
        "starts": lambda job: interval(job, is_start=True),
        "ends": lambda job: interval(job, is_start=False),
        "eta_words": etas.describe_eta,
    }


def _end_s(job: wire.JobView) -> tuple[bool, float]:
    finish = job.eta.finish if job.eta is not None else None
    at = (finish.p50_at or finish.p90_at) if finish is not None else None
    return at is None, wall_s(at) if at is not None else 0.0


class SortHead(NamedTuple):
    """The head of a column: what a click on it asks for, and how the column is sorted now."""

    title: str
    href: str
    aria: str


def head(name: str, title: str, params: Params) -> SortHead:
    sort = params.get("sort")
    state = {name: "ascending", BACKWARDS + name: "descending"}.get(sort, "")
    following = {"ascending": BACKWARDS + name, "descending": ""}.get(state, name)
    return SortHead(title, link(params, sort=following, runs="", waits=""), state)


def link(params: Params, path: str = "/queue", **changed: str) -> str:
    """The address of this page, or of that of `path`, with something else in its query."""
    query = {**dict(params.query), **changed}
    kept = urlencode({name: value for name, value in query.items() if value})
    return f"{path}?{kept}" if kept else path


def share_done(job: wire.JobView) -> float | None:
    total = job.iterations or job.total_steps
    return min(1.0, job.step / total) if total else None


def interval(job: wire.JobView, *, is_start: bool) -> str:
    eta = job.eta
    times = (eta.start if is_start else eta.finish) if eta is not None else None
    return "-" if eta is None or times is None else f"{etas.interval(times)}{etas.caveats(eta)}"


PAGE: Final = Page(
    name="queue",
    title="Queue",
    path="/queue",
    look=look,
    fill=fill,
    parts=("summary", "why", "actions", "table"),
    routes=changing.ROUTES,
)
