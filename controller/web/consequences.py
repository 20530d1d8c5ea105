"""What a change would do to a job, said before anybody says yes. Pure.

Rule: it is told from what the job is now; whether it may be done, and by whom, the controller decides.
"""

from __future__ import annotations

from typing import Final, Literal

from cotenant.controller.cli.cluster import top_view
from cotenant.controller.cli.frame.screen import duration
from cotenant.controller.cli.jobs.view import devices
from cotenant.controller.domain import ENDED, Phase
from cotenant.controller.wire import JobView

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
