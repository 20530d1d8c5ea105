"""`cotenant cancel`, `hold`, `release`, `preempt`, `checkpoint`: ask for a change of jobs.

Rule: the answer says what was asked for, not that it has happened; `wait` and `show` tell when it has.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from cotenant.controller.cli.frame import output, screen
from cotenant.controller.cli.frame.asking import asking
from cotenant.controller.cli.frame.output import EndpointFlag, JsonFlag
from cotenant.controller.cli.frame.parameters import argument, option
from cotenant.controller.cli.frame.problem import FAILED, OK, Problem
from cotenant.controller.cli.jobs.verify import STEPS, verify
from cotenant.controller.cli.setup.completion import complete_job
from cotenant.controller.domain.ids import JobId
from cotenant.controller.domain.texts import one_line
from cotenant.controller.wire.clients import ChangeJobs

VERIFY: Final = "verify"

JobsArgument = Annotated[
    list[str],
    argument(metavar="JOB", help="Numbers; an array's number is all its tasks.", complete=complete_job),
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


def checkpoint(
    jobs: JobsArgument,
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
    steps: Annotated[
        int, option("--steps", metavar="N", min=2, help="With verify: how many optimizer steps.")
    ] = STEPS,
) -> int:
    """Save running jobs; they go on. `cotenant show JOB` names the step that is safe.

    `checkpoint verify -- CMD` tries out on this machine whether a command can be resumed: it is run, stopped
    half way, resumed, and compared with a run that was not stopped.

    For example:

      cotenant checkpoint 7
      cotenant checkpoint verify --steps 40 -- python train.py
    """
    if jobs[0] == VERIFY:
        return _verify(jobs[1:], steps, as_json)
    _change("checkpoint", jobs, as_json, endpoint)
    return OK


def _verify(command: list[str], steps: int, as_json: bool) -> int:
    if not command:
        raise Problem("usage", "verify needs a command", "put it behind `--`, as in: -- python train.py")
    result = verify(command, steps)
    if as_json:
        output.write_json({"schema": "checkpoint-verify/1", **msgspec.to_builtins(result)})
    elif result.ok:
        kind = "exact" if result.exact else f"equivalent ({result.reason})"
        screen.say(
            f"resumable: stopped after step {result.stopped_at} and resumed, its parameters after step "
            f"{result.steps} are those of a run that was not stopped, bit for bit; it calls the resume {kind}"
        )
    else:
        screen.say(f"not resumable: {one_line(result.reason)}")
    return OK if result.ok else FAILED


def _change(
    verb: Literal["cancel", "hold", "release", "preempt", "checkpoint"],
    jobs: list[str],
    as_json: bool,
    endpoint: str | None,
) -> None:
    with asking(endpoint) as client:
        reply = client.ask(ChangeJobs(verb=verb, job_ids=tuple(JobId(each) for each in jobs)))
    if as_json:
        output.write_json({"schema": "change/1", "verb": verb, "jobs": jobs, "lines": list(reply.lines)})
        return
    for line in reply.lines or (f"{verb}: asked for {screen.plural(len(jobs), 'job')}",):
        screen.say(one_line(line))
