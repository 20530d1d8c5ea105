"""`cotenant down`: ends the controller and agent that `up` or `run` started here.

Rule: it says what will happen to jobs before it does anything. Jobs that run go on, unless the user cancels
them; where any run it asks, and a script has to say --yes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.frame.output import EndpointFlag, JsonFlag, write_json
from cotenant.controller.cli.jobs.change import wait_until_ended
from cotenant.controller.cli.setup import owners
from cotenant.controller.client.asking import asking, loaded_settings
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import ON_DEVICES, JobId
from cotenant.controller.present.problem import FAILED, OK, Problem
from cotenant.controller.present.screen import said_yes, say, tell
from cotenant.controller.present.units import plural
from cotenant.controller.system.paths import client_endpoint
from cotenant.controller.wire import clients as wire

NAMED_MAX: Final = 5
JOBS_MAX: Final = 1000
CANCELLED_WITHIN_S: Final = 120.0


def down(
    cancel: Annotated[bool, option("--cancel", help="Cancel the jobs that run or wait first.")] = False,
    yes: Annotated[bool, option("-y", "--yes", help="Do not ask.")] = False,
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> int:
    """End the controller and agent that `cotenant up` or `cotenant run` started on this machine.

    Jobs that run go on without them and keep their devices; jobs that wait stay in the queue. The next
    `cotenant up` (or `run`) finds both. --cancel ends them all first.

    For example:

      cotenant down
      cotenant down --cancel --yes
    """
    where = client_endpoint(loaded_settings(endpoint).settings)
    found = owners.owner(where)
    jobs = unfinished_jobs(endpoint, is_needed=found is None)
    if found is None:
        if jobs is None:
            return report_end(as_json, where, (), "nothing to end: no controller answers", cancelled=False)
        raise Problem(
            "refused",
            f"the controller at {where} was not started by `cotenant up` or `cotenant run`",
            "end it where it was started (systemctl stop cotenant-controller, or Ctrl-C)",
        )
    running = [job for job in jobs or () if job.phase in ON_DEVICES]
    for line in consequences(jobs or (), running, cancel=cancel):
        tell(line)
    if (running or (cancel and jobs)) and not yes and not confirm_end():
        tell("nothing was done")
        return FAILED
    if cancel and jobs:
        with asking(endpoint) as client:
            cancel_jobs(client, jobs)
    owners.end(found)
    return report_end(as_json, where, running, f"ended: controller and agent at {where}", cancelled=cancel)


def unfinished_jobs(endpoint: str | None, *, is_needed: bool) -> Sequence[wire.JobView] | None:
    """Jobs that have not ended; None: no controller answers or, unless `is_needed`, it fails to in time."""
    try:
        with asking(endpoint, timeout_s=5.0) as client:
            return client.ask(wire.ListJobs(limit=JOBS_MAX)).jobs
    except Problem as problem:
        if problem.code != "unreachable" and is_needed:
            raise
        return None


def consequences(jobs: Sequence[wire.JobView], running: Sequence[wire.JobView], *, cancel: bool) -> list[str]:
    """What will happen to jobs, a line each; none where there are none."""
    waiting = [job for job in jobs if job.phase not in ON_DEVICES]
    if cancel:
        return [f"cancelling {plural(len(jobs), 'job')}: {job_list_text(jobs)}"] if jobs else []
    lines = []
    if running:
        lines.append(
            f"{plural(len(running), 'job')} on devices: {job_list_text(running)}; what runs goes on without "
            "a controller, and the next `cotenant up` finds it (--cancel ends it first)"
        )
    if waiting:
        lines.append(
            f"{plural(len(waiting), 'job')} waiting: {job_list_text(waiting)}; what waits stays in the "
            "queue, for the next `cotenant up`"
        )
    return lines


def job_list_text(jobs: Sequence[wire.JobView]) -> str:
    shown = ", ".join(f"{job.job_id} ({job.name})" for job in jobs[:NAMED_MAX])
    return shown + (f" and {len(jobs) - NAMED_MAX} more" if len(jobs) > NAMED_MAX else "")


def confirm_end() -> bool:
    """Raises Problem where there is nobody to ask."""
    answer = said_yes("end controller and agent?")
    if answer is None:
        raise Problem("refused", "there are jobs, and no terminal to ask at", "say --yes, or --cancel --yes")
    return answer


def cancel_jobs(client: Client, jobs: Sequence[wire.JobView]) -> None:
    """Returns once they have ended.

    Raises:
        Problem: one does not end in time.
    """
    ids = tuple(JobId(job.job_id) for job in jobs)
    client.ask(wire.ChangeJobs(verb="cancel", job_ids=ids))
    left = [job for job in wait_until_ended(client, ids, CANCELLED_WITHIN_S).jobs if not job.ended_at]
    if left:
        raise Problem(
            "failed", f"{job_list_text(left)} did not end within {CANCELLED_WITHIN_S:.0f} s", "try again"
        )


def report_end(
    as_json: bool, where: str, running: Sequence[wire.JobView], text: str, *, cancelled: bool
) -> int:
    if as_json:
        ids = [job.job_id for job in running]
        left = {"running": [], "cancelled": ids} if cancelled else {"running": ids, "cancelled": []}
        write_json({"schema": "down/1", "endpoint": where, **left, "message": text})
    else:
        say(text)
    return OK
