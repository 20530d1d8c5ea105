"""Changing jobs, one or several: what is asked for, what it would do, and after a yes the change itself.

Rule: nothing is changed but by a form that says before what will happen, told from what the jobs are at that
moment. Whether it may be done, and by whom, the controller decides. An array's number is all its tasks, and
stays its number until the controller is asked, so that a form is small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from cotenant.controller.domain import CHANGEABLE, ENDED, WAITING, ChangeVerb, JobId, Phase
from cotenant.controller.present import consequences
from cotenant.controller.present.jobs import devices
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.units import NONE, duration, size
from cotenant.controller.submission.options import BY_KEY, Option
from cotenant.controller.submission.settings import setting
from cotenant.controller.web import rendering
from cotenant.controller.web.access import change
from cotenant.controller.web.page import Asking, Params, surroundings
from cotenant.controller.wire import clients as wire

NAMED_MAX: Final = 1_000
"""Numbers in one request: more than a page has rows."""
JOBS_MAX: Final = 1_000
"""Jobs that are looked at before a change; of more only the number is told."""
TOLD_MAX: Final = 20
"""Jobs whose change is told one by one."""
ALIKE_MAX: Final = 10
"""Jobs whose present options stand beside the fields."""
SET: Final = "set"
DURATIONS: Final = ("expect", "time")
SIZES: Final = ("mem", "host_mem")


def address(verb: str, *names: str) -> str:
    """Where a change of these jobs is asked for."""
    path = "/set" if verb == SET else "/change"
    asked = [*([] if verb == SET else [("verb", verb)]), *(("job", name) for name in names)]
    return f"{path}?{urlencode(asked)}"


def asked_in_words(params: Params) -> str:
    """The change that was just asked for; empty for what no form of ours can have asked for."""
    asked = params.get("asked")
    return asked if asked in CHANGEABLE or asked == SET else ""


def may_change(status: wire.ControllerStatus, job: wire.JobView) -> bool:
    return status.asker_is_admin or job.user == status.asker


def offered_verbs(status: wire.ControllerStatus, jobs: Sequence[wire.JobView]) -> list[str]:
    """What means something for at least one of these that is this user's to change."""
    own = [job for job in jobs if may_change(status, job)]
    verbs: list[str] = [
        verb
        for verb in CHANGEABLE
        if (verb != "preempt" or status.asker_is_admin) and any(not doubt(verb, job) for job in own)
    ]
    return [*verbs, *([SET] if any(job.phase not in ENDED for job in own) else [])]


async def question(request: Request) -> Response:
    """Says what a change would do, and asks."""
    verb, names = _verb(request.query_params), _names(request.query_params.getlist("job"))
    if verb is None or not names:
        return RedirectResponse("/queue")
    found = await _find_jobs(request, names)
    able = [job for job in found.jobs if not doubt(verb, job)]
    others = [job for job in found.jobs if doubt(verb, job)]
    wanted = {part for job in able for part in (job.job_id, job.job_id.partition("_")[0])}
    told = {
        "verb": verb,
        "able": able,
        "consequences": [(job, consequence(verb, job)) for job in able[:TOLD_MAX]],
        "others": others,
        "doubts": [doubt(verb, job) for job in others[:TOLD_MAX]],
        "names": [name for name in names if name in wanted or found.more],
        "of": one_of(names, found),
        "more": found.more,
    }
    return HTMLResponse(rendering.whole("change", {**surroundings(request), **told}))


async def act(request: Request, fields: Mapping[str, str]) -> Response:
    verb, names = _verb(fields), _names(fields.get("jobs", "").split())
    if verb is None or not names:
        return RedirectResponse("/queue", 303)
    asked = wire.ChangeJobs(verb=verb, job_ids=names)
    await request.app.state.connections.ask(lambda asks: asks.ask(asked))
    return _redirect_back(verb, fields)


def _redirect_back(verb: str, fields: Mapping[str, str]) -> Response:
    """Back to the one job that was changed, or to the queue."""
    path = f"/jobs/{quote(fields['of'], safe='')}" if fields.get("of") else "/queue"
    return RedirectResponse(f"{path}?asked={verb}", 303)


def _verb(fields: Mapping[str, str]) -> ChangeVerb | None:
    verb = fields.get("verb")
    return next((each for each in CHANGEABLE if each == verb), None)


def _names(texts: Sequence[str]) -> tuple[JobId, ...]:
    return tuple(dict.fromkeys(map(JobId, texts[:NAMED_MAX])))


async def _find_jobs(request: Request, names: tuple[JobId, ...], states: tuple[Phase, ...] = ()) -> wire.Jobs:
    """Asks for the jobs of these numbers. Raises Refusal: one of them is not known."""
    asked = wire.ListJobs(job_ids=names, states=states, limit=JOBS_MAX)
    found: wire.Jobs = await request.app.state.connections.ask(lambda asks: asks.ask(asked))
    return found


def one_of(names: Sequence[JobId], found: wire.Jobs) -> str:
    """The only job that is asked about; empty where there are several."""
    return names[0] if len(names) == 1 and [job.job_id for job in found.jobs] == list(names) else ""


# --- Options of jobs --------------------------------------------------------------------------------


class SettableOption(NamedTuple):
    option: Option
    now: str
    """Its present value; of several jobs that differ, all of them."""
    given: str
    """What somebody has written already."""


async def settings(request: Request) -> Response:
    """The options that can be set, and what they are now."""
    names = _names(request.query_params.getlist("job"))
    return await _settings(request, names, {}) if names else RedirectResponse("/queue")


async def _settings(
    request: Request, names: tuple[JobId, ...], given: Mapping[str, str], wrong: str = ""
) -> Response:
    found = await _find_settable(request, names)
    alike = await request.app.state.connections.ask(
        lambda asks: [present_options(asks, job.job_id) for job in found.jobs[:ALIKE_MAX]]
    )
    told = {
        "jobs": found.jobs,
        "more": found.more,
        "options": settable(alike, given),
        "names": names,
        "of": one_of(names, found),
        "wrong": wrong,
    }
    page = rendering.whole("settings", {**surroundings(request), **told})
    return HTMLResponse(page, 400 if wrong else 200)


async def _find_settable(request: Request, names: tuple[JobId, ...]) -> wire.Jobs:
    """Those that wait; where none does, those that hold devices: less can be changed of them."""
    waiting = await _find_jobs(request, names, tuple(WAITING))
    return waiting if waiting.jobs else await _find_jobs(request, names, tuple(set(Phase) - ENDED))


def present_options(asks: Asking, job_id: JobId) -> Mapping[str, Any]:
    return asks.ask(wire.ShowJob(job_id=job_id)).job.settable


def settable(alike: Sequence[Mapping[str, Any]], given: Mapping[str, str]) -> list[SettableOption]:
    """What can be set in all of them; priority first, because it is changed most often."""
    keys = [key for key in (alike[0] if alike else ()) if all(key in each for each in alike)]
    keys.sort(key=lambda key: key != "priority")
    return [
        SettableOption(
            BY_KEY[key],
            ", ".join(dict.fromkeys(value_in_words(key, each[key]) for each in alike)),
            given.get(key, ""),
        )
        for key in keys
        if key in BY_KEY
    ]


def value_in_words(key: str, value: Any) -> str:
    if value is None or value == "":
        return NONE
    if key in DURATIONS:
        return duration(float(value))
    if key in SIZES:
        return size(float(value)) if value else NONE
    return f"{value:g}" if isinstance(value, float) else str(value)


async def set_options(request: Request, fields: Mapping[str, str]) -> Response:
    """All of it or nothing, for those of the jobs that wait, or else that run."""
    names = _names(fields.get("jobs", "").split())
    given = {key: fields[key].strip() for key in BY_KEY if fields.get(key, "").strip()}
    if not names:
        return RedirectResponse("/queue", 303)
    try:
        changes = dict(setting(f"{key}={text}") for key, text in given.items())
    except Problem as problem:
        return await _settings(request, names, given, problem.sentence)
    if not changes:
        return await _settings(request, names, given, "nothing was changed: fill in at least one field")
    open_jobs = await _find_settable(request, names)
    # Of more than were looked at the numbers stand for all: the controller says so where one does not wait.
    job_ids = names if open_jobs.more else tuple(job.job_id for job in open_jobs.jobs)
    asked = wire.SetJobs(job_ids=job_ids, changes=changes)
    await request.app.state.connections.ask(lambda asks: asks.ask(asked))
    return _redirect_back(SET, fields)


ROUTES: Final = (
    Route("/change", question, methods=["GET"]),
    change("/change", act),
    Route("/set", settings, methods=["GET"]),
    change("/set", set_options),
)


# --- What is said before ----------------------------------------------------------------------------


def consequence(verb: ChangeVerb, job: wire.JobView) -> str:
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
            return consequences.consequence(verb, job)


def doubt(verb: ChangeVerb, job: wire.JobView) -> str:
    """Why the controller will hardly agree; empty if nothing is known against it."""
    if job.phase not in CHANGEABLE[verb]:
        return f"Job {job.job_id} is {job.phase.value} now: that means nothing for it."
    if verb in ("preempt", "checkpoint") and not job.resumable:
        why = job.resumable_note or "the script has not said that it can"
        return f"Job {job.job_id} cannot resume: {why}."
    return ""


def _saving(job: wire.JobView) -> str:
    last = f"the last save is of step {job.durable_step}" if job.durable_step else "nothing was saved yet"
    pause = (
        f", which should take {duration(job.expected_pause_s)}" if job.expected_pause_s is not None else ""
    )
    return f"It saves its state at about step {job.step} ({last}){pause}."


def _places(job: wire.JobView) -> str:
    return devices(job.devices) or "its devices"


def _return(job: wire.JobView) -> str:
    if job.expected_load_s is None:
        return ""
    return f"; when it gets devices again, loading should take {duration(job.expected_load_s)}"


def _others(job: wire.JobView) -> str:
    others = " and ".join(f"job {each}" for each in job.co_tenants)
    return f" {others[:1].upper()}{others[1:]} beside it keeps the devices." if others else ""
