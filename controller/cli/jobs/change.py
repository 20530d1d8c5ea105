"""`cotenant cancel`, `hold`, `release`, `preempt`, `requeue`, `checkpoint` ask for a change of jobs; `wait`
waits for the end.

Rule: the answer says what was asked for, not that it has happened; `wait` and `show` tell when it has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec

from cotenant.controller.cli.frame import output
from cotenant.controller.cli.frame.command import argument, option
from cotenant.controller.cli.frame.completing import complete_job
from cotenant.controller.cli.frame.output import EndpointFlag, JsonFlag, write_json
from cotenant.controller.cli.jobs.verify import Verified, verify
from cotenant.controller.client.asking import PATIENCE_S, asking
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import ENDED, ChangeVerb, JobId, Phase, texts
from cotenant.controller.present import screen, units
from cotenant.controller.present.problem import FAILED, OK, Problem
from cotenant.controller.present.screen import paint
from cotenant.controller.present.units import duration
from cotenant.controller.submission.flags import duration_of
from cotenant.controller.wire import clients as wire

VERIFY: Final = "verify"

JobsArgument = Annotated[
    list[str],
    argument(
        metavar="JOB", help="Numbers; an array's is all its tasks, 38_[0-3] some.", complete=complete_job
    ),
]


def cancel(jobs: JobsArgument, as_json: JsonFlag = False, endpoint: EndpointFlag = None) -> None:
    """End jobs, whether they wait or run. Their checkpoints stay for a while.

    For example:

      cotenant cancel 7 9
    """
    _change("cancel", jobs, as_json, endpoint)


def hold(jobs: JobsArgument, as_json: JsonFlag = False, endpoint: EndpointFlag = None) -> None:
    """Keep waiting jobs back until `cotenant release`.

    For example:

      cotenant hold 7
    """
    _change("hold", jobs, as_json, endpoint)


def release(jobs: JobsArgument, as_json: JsonFlag = False, endpoint: EndpointFlag = None) -> None:
    """Let held jobs go: they queue again.

    For example:

      cotenant release 7
    """
    _change("release", jobs, as_json, endpoint)


def preempt(jobs: JobsArgument, as_json: JsonFlag = False, endpoint: EndpointFlag = None) -> None:
    """Save running jobs, take their devices and queue them again. Only jobs that can resume.

    For example:

      cotenant preempt 7 && cotenant explain 7
    """
    _change("preempt", jobs, as_json, endpoint)


def requeue(jobs: JobsArgument, as_json: JsonFlag = False, endpoint: EndpointFlag = None) -> None:
    """Put jobs back in the queue: running ones, and those that have ended.

    Those that can resume go on from a save, others begin anew. A job that has finished, failed or was
    cancelled keeps its number and its output, and its next attempt goes on from its last save, if there is
    one. Its time limit and its retries count from there. It says what it will do.

    For example:

      cotenant requeue 7 && cotenant explain 7
      cotenant requeue 12_3
    """
    _change("requeue", jobs, as_json, endpoint)


def checkpoint(
    jobs: JobsArgument,
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
    steps: Annotated[
        int | None,
        option("--steps", metavar="N", min=2, help="With verify: only the first N steps."),
    ] = None,
) -> int:
    """Save running jobs, which then go on. `cotenant show JOB` names the step that is safe.

    `checkpoint verify -- CMD` tries out on this machine whether a command can be resumed: it is run to its
    end, then once more, stopped and resumed in several places, and what both have left is compared.

    For example:

      cotenant checkpoint 7
      cotenant checkpoint verify -- python train.py
      cotenant checkpoint verify --steps 40 -- python train.py
    """
    if jobs[0] == VERIFY:
        return _verify(jobs[1:], steps, as_json)
    _change("checkpoint", jobs, as_json, endpoint)
    return OK


def _verify(command: list[str], steps: int | None, as_json: bool) -> int:
    if not command:
        raise Problem("usage", "verify needs a command", "put it behind `--`, as in: -- python train.py")
    result = verify(command, steps)
    if as_json:
        output.write_json({"schema": "checkpoint-verify/2", **msgspec.to_builtins(result)})
    else:
        screen.say("\n".join(map(texts.one_line, _lines_of(result))))
    return OK if result.ok else FAILED


def _lines_of(result: Verified) -> Iterator[str]:
    if result.ok:
        *most, last = result.compared
        same = f"{', '.join(most)} and {last} are" if most else f"{last} are"
        yield f"resumable: {same} those of a run that nobody stopped, bit for bit"
    else:
        yield f"not resumable: {result.reason}"
    for stop in result.stops:
        where = f", {stop.place}" if stop.place else ""
        proven = (
            f"proven over {units.plural(stop.proven_steps, 'step')}" if stop.proven_steps else "not proven"
        )
        yield f"  stopped after step {stop.step} of {result.steps}{where}: {proven}"
    if result.left_out:
        yield f"  not compared, because they differ by themselves: {', '.join(result.left_out)}"
    yield from (f"  not tried: {each}" for each in result.not_reached)


def _change(
    verb: ChangeVerb,
    jobs: list[str],
    as_json: bool,
    endpoint: str | None,
) -> None:
    with asking(endpoint, patience_s=PATIENCE_S) as client:
        reply = client.ask(wire.ChangeJobs(verb=verb, job_ids=tuple(JobId(each) for each in jobs)))
    asked_for = f"{verb}: asked for {units.plural(len(jobs), 'job')}"
    output.show_change(verb, {"jobs": jobs}, reply.lines, asked_for, as_json)


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
    limit_s = duration_of("--timeout", timeout)
    with asking(endpoint, patience_s=PATIENCE_S if limit_s is None else min(PATIENCE_S, limit_s)) as client:
        reply = wait_until_ended(client, tuple(JobId(each) for each in jobs), limit_s)
    if as_json:
        write_json({"schema": "jobs/1", "now": reply.now, "more": reply.more, "jobs": reply.jobs})
    else:
        for job in reply.jobs:
            screen.say(ending(texts.escape_texts(job)))
    open_jobs = [job.job_id for job in reply.jobs if job.phase not in ENDED]
    if open_jobs:
        raise Problem("failed", f"not ended within {duration(limit_s)}: {', '.join(open_jobs[:10])}")
    return OK if all(job.phase is Phase.DONE for job in reply.jobs) else FAILED


def wait_until_ended(client: Client, jobs: tuple[JobId, ...], limit_s: float | None) -> wire.Jobs:
    """The jobs once all have ended, or as they stand after `limit_s`."""
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    while True:
        left_s = ROUND_S if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        reply = client.ask(wire.WaitJobs(job_ids=jobs, timeout_s=min(ROUND_S, left_s)))
        if all(job.phase in ENDED for job in reply.jobs) or (deadline_s is not None and left_s <= ROUND_S):
            return reply


def ending(job: wire.JobView) -> str:
    colour = "green" if job.phase is Phase.DONE else "red"
    code = f", exit code {job.exit_code}" if job.exit_code else ""
    text = f"job {job.job_id} ({job.name}) {paint(job.phase.value, colour)}{code}"
    return f"{text} after {duration(job.run_s)} of training" + (
        "" if job.phase is Phase.DONE else f": {job.reason}"
    )
