"""Queue: what runs, what waits, why, and what would have to happen first.

Rule: at most `ROWS_MAX` rows of each are shown, and it is said of how many. Only to filter or sort more than
that is the whole list asked for, in pages, and then not again at every look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from cotenant.controller.cli.jobs import eta as etas
from cotenant.controller.cli.jobs.view import devices, steps
from cotenant.controller.client import Refusal
from cotenant.controller.domain import ON_DEVICES, WAITING, JobId, Phase
from cotenant.controller.web.page import Asking, Page, Params
from cotenant.controller.wire import (
    ControllerStatus,
    Explain,
    Explained,
    GetStatus,
    Jobs,
    JobView,
    ListJobs,
    wall_s,
)

ROWS_MAX: Final = 500
PAGE_JOBS: Final = 1_000
WHOLE_MAX: Final = 20_000
"""To filter and sort in: a longer list is cut, and it is said so."""

RUNS: Final = tuple(sorted(ON_DEVICES | {Phase.RESERVED}))
WAITS: Final = tuple(sorted(WAITING))


class JobsOfKind(NamedTuple):
    """Jobs of one kind."""

    jobs: Sequence[JobView]
    more: int
    """Those beyond them."""
    now: str


class QueueLook(NamedTuple):
    status: ControllerStatus
    runs: JobsOfKind
    waits: JobsOfKind
    why: Explained | None
    """Of the job that was asked about, or of the first that waits."""


def look(asks: Asking, params: Params) -> QueueLook:
    status = asks.ask(GetStatus())
    chosen = bool(params.get("q") or params.get("sort"))
    user = params.get("user")
    runs = _listed(asks, RUNS, user, is_whole=chosen)
    waits = _listed(asks, WAITS, user, is_whole=chosen)
    for job in runs.jobs:
        asks.samples.note(wall_s(runs.now), job)
    return QueueLook(status, runs, waits, _why(asks, params.get("why"), waits.jobs))


def _listed(asks: Asking, states: tuple[Phase, ...], user: str, *, is_whole: bool) -> JobsOfKind:
    first = asks.ask(ListJobs(states=states, user=user, limit=ROWS_MAX))
    if not is_whole or not first.more:
        return JobsOfKind(first.jobs, first.more, first.now)
    return asks.kept(f"{states} of {user}", lambda: _whole(asks, states, user))


def _whole(asks: Asking, states: tuple[Phase, ...], user: str) -> JobsOfKind:
    jobs: list[JobView] = []
    part: Jobs | None = None
    while part is None or (part.next and len(jobs) < WHOLE_MAX):
        after = part.next if part is not None else 0
        part = asks.ask(ListJobs(states=states, user=user, page=PAGE_JOBS, after=after))
        jobs += part.jobs
    return JobsOfKind(jobs, part.more, part.now)


def _why(asks: Asking, asked: str, waits: Sequence[JobView]) -> Explained | None:
    job_id = JobId(asked) if asked else next((job.job_id for job in waits), None)
    if job_id is None:
        return None
    try:
        return asks.ask(Explain(job_id=job_id))
    except Refusal:
        if asked:
            raise
        return None  # It has ended meanwhile, and is forgotten.


# --- What is shown ----------------------------------------------------------------------------------

SortKey = Callable[[JobView], Any]
SORTS: Final[dict[str, tuple[str, SortKey]]] = {
    "name": ("Name", lambda job: job.name.casefold()),
    "user": ("User", lambda job: job.user.casefold()),
    "state": ("State", lambda job: job.phase.value),
    "gpus": ("GPUs", lambda job: job.gpus),
    "waited": ("Waited", lambda job: job.wait_s),
    "ran": ("Ran", lambda job: job.run_s),
    "left": ("Left", lambda job: (job.left_s is None, job.left_s or 0.0)),
    "ends": ("Ends", lambda job: _end_s(job)),
}
BACKWARDS: Final = "-"
"""Before a sort's name."""


class ShownRows(NamedTuple):
    rows: Sequence[JobView]
    of: int
    """Of so many that match."""
    unseen: int
    """Not even looked at."""


def shown(looked: QueueLook, params: Params) -> Mapping[str, Any]:
    counts = looked.status.jobs_by_phase
    return {
        "status": looked.status,
        "runs": _chosen(looked.runs, params),
        "waits": _chosen(looked.waits, params),
        "why": looked.why,
        "running": sum(counts.get(phase.value, 0) for phase in RUNS),
        "waiting": sum(counts.get(phase.value, 0) for phase in WAITS),
        "now": looked.runs.now,
        "heads": {name: head(name, title, params) for name, (title, _) in SORTS.items()},
        "query": params.get("q"),
        "user": params.get("user"),
        "sort": params.get("sort"),
        "why_link": lambda job_id: link(params, why=job_id),
        "devices": devices,
        "steps": steps,
        "share_done": share_done,
        "starts": lambda job: interval(job, is_start=True),
        "ends": lambda job: interval(job, is_start=False),
        "eta_words": etas.in_words,
    }


def _chosen(found: JobsOfKind, params: Params) -> ShownRows:
    wanted = params.get("q").casefold()
    rows = [job for job in found.jobs if not wanted or wanted in _text(job)]
    sort = params.get("sort")
    _, key = SORTS.get(sort.removeprefix(BACKWARDS), ("", None))
    if key is not None:
        rows.sort(key=key, reverse=sort.startswith(BACKWARDS))
    is_cut_by_question = not wanted and key is None
    of = len(rows) + (found.more if is_cut_by_question else 0)
    return ShownRows(rows[:ROWS_MAX], of, 0 if is_cut_by_question else found.more)


def _text(job: JobView) -> str:
    return f"{job.job_id} {job.name} {job.user} {job.phase.value} {job.reason} {job.organisation}".casefold()


def _end_s(job: JobView) -> tuple[bool, float]:
    finish = job.eta.finish if job.eta is not None else None
    at = (finish.p50_at or finish.p90_at) if finish is not None else None
    return at is None, wall_s(at) if at is not None else 0.0


class SortHead(NamedTuple):
    """Of a column: what a click on it asks for, and how it is sorted now."""

    title: str
    href: str
    aria: str


def head(name: str, title: str, params: Params) -> SortHead:
    sort = params.get("sort")
    state = {name: "ascending", BACKWARDS + name: "descending"}.get(sort, "")
    following = {"ascending": BACKWARDS + name, "descending": ""}.get(state, name)
    return SortHead(title, link(params, sort=following), state)


def link(params: Params, **changed: str) -> str:
    """This page with something else in its query."""
    query = {**dict(params.query), **changed}
    kept = urlencode({name: value for name, value in query.items() if value})
    return f"/queue?{kept}" if kept else "/queue"


def share_done(job: JobView) -> float | None:
    total = job.iterations or job.total_steps
    return min(1.0, job.step / total) if total else None


def interval(job: JobView, *, is_start: bool) -> str:
    eta = job.eta
    times = (eta.start if is_start else eta.finish) if eta is not None else None
    return "-" if eta is None or times is None else f"{etas.interval(times)}{etas.caveats(eta)}"


PAGE: Final = Page(
    name="queue", title="Queue", path="/queue", look=look, shown=shown, parts=("summary", "why", "table")
)
