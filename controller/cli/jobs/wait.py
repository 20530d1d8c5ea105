"""`cotenant wait`: until jobs have ended. Exit code 0 if all finished well."""

from __future__ import annotations

import time
from typing import Annotated

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.asking import PATIENCE_S, asking
from cotenant.controller.cli.frame.output import EndpointFlag, JsonFlag, write_json
from cotenant.controller.cli.frame.parameters import option
from cotenant.controller.cli.frame.problem import FAILED, OK, Problem
from cotenant.controller.cli.frame.screen import duration, paint
from cotenant.controller.cli.jobs.change import JobsArgument
from cotenant.controller.cli.submission.quantities import duration_s
from cotenant.controller.client import Client
from cotenant.controller.domain.ids import JobId
from cotenant.controller.domain.job import ENDED, Phase
from cotenant.controller.domain.texts import for_people
from cotenant.controller.wire.clients import Jobs, JobView, WaitJobs

ROUND_S = 20.0
"""One question waits at most this long; then it is asked again."""


def wait(
    jobs: JobsArgument,
    timeout: Annotated[str, option("--timeout", metavar="TIME", help="At most this long: 90s, 10m.")] = "",
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> int:
    """Wait until jobs have ended; exit code 0 if all of them finished, 1 otherwise.

    For example:

      cotenant wait $(cotenant submit -- python train.py) && echo trained
    """
    limit_s = None
    if timeout:
        try:
            limit_s = duration_s(timeout)
        except ValueError as error:
            raise Problem("usage", f"--timeout {error}") from None
    with asking(endpoint, patience_s=PATIENCE_S if limit_s is None else min(PATIENCE_S, limit_s)) as client:
        reply = until_ended(client, tuple(JobId(each) for each in jobs), limit_s)
    if as_json:
        write_json({"schema": "jobs/1", "now": reply.now, "more": reply.more, "jobs": reply.jobs})
    else:
        for job in reply.jobs:
            screen.say(ending(for_people(job)))
    open_jobs = [job.job_id for job in reply.jobs if job.phase not in ENDED]
    if open_jobs:
        raise Problem("failed", f"not ended within {duration(limit_s)}: {', '.join(open_jobs[:10])}")
    return OK if all(job.phase is Phase.DONE for job in reply.jobs) else FAILED


def until_ended(client: Client, jobs: tuple[JobId, ...], limit_s: float | None) -> Jobs:
    """The jobs once all have ended, or as they stand after `limit_s`."""
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    while True:
        left_s = ROUND_S if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        reply = client.ask(WaitJobs(job_ids=jobs, timeout_s=min(ROUND_S, left_s)))
        if all(job.phase in ENDED for job in reply.jobs) or (deadline_s is not None and left_s <= ROUND_S):
            return reply


def ending(job: JobView) -> str:
    colour = "green" if job.phase is Phase.DONE else "red"
    code = f", exit code {job.exit_code}" if job.exit_code else ""
    text = f"job {job.job_id} ({job.name}) {paint(job.phase.value, colour)}{code}"
    return f"{text} after {duration(job.run_s)} of training" + (
        "" if job.phase is Phase.DONE else f": {job.reason}"
    )
