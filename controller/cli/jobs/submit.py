"""`cotenant submit`: queue a command, a YAML file or a script, and print the job's id."""

from __future__ import annotations

from typing import Annotated, Any

import click
import msgspec

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.asking import asking
from cotenant.controller.cli.frame.output import EndpointFlag, JsonFlag, write_json, write_lines
from cotenant.controller.cli.frame.parameters import argument, option
from cotenant.controller.cli.frame.problem import OK, Problem
from cotenant.controller.cli.frame.screen import tell
from cotenant.controller.cli.jobs.preparing import after_dashes, prepared_submission, takes_job_flags
from cotenant.controller.cli.profiles.series import planned
from cotenant.controller.cli.submission.options import Options
from cotenant.controller.cli.submission.series import behind
from cotenant.controller.client import Client
from cotenant.controller.wire.clients import SpecView, Submit, spec_view

SUBMIT_TIMEOUT_S = 30.0


@takes_job_flags
def submit(
    context: click.Context,
    flags: Options,
    words: Annotated[
        list[str] | None,
        argument(
            metavar="[--] CMD...|FILE.yaml|SCRIPT.sh",
            help="What to run; arguments may follow.",
        ),
    ] = None,
    show: Annotated[bool, option("--print", help="Show the typed spec as JSON; submit nothing.")] = False,
    dry_run: Annotated[
        bool, option("--dry-run", help="Let the controller check it; change nothing.")
    ] = False,
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> int:
    """Queue a job and print its id.

    The job is a command, a YAML file, or a script with #COTENANT (or #SBATCH) lines. The command
    runs once per GPU with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; torchrun, accelerate
    launch and deepspeed run once per host. Flags stand before it and win over what a file says.

    For example:

      cotenant submit -g 2 -t 4h --batch-size 64 -- python train.py --lr 0.1
      cotenant submit train.yaml
      cotenant submit --array 0-9 train.sh
      cotenant submit --after 7 -- python evaluate.py
    """
    command = list(words or ())
    made = prepared_submission(command, flags, endpoint, command_only=after_dashes(context.obj, command))
    request, full = made.request, made.full_profile
    if show:
        write_json(printed(request))
        return OK
    if full and (request.array_indices or len(request.specs) != 1):
        raise Problem(
            "usage", "--profile full is for one job, not for an array", "profile it first: cotenant profile"
        )
    with asking(endpoint) as client:
        if full:
            request = with_series(client, request)
        if dry_run:
            request = msgspec.structs.replace(request, dry_run=True)
        reply = client.ask(request, timeout_s=SUBMIT_TIMEOUT_S)
    ids = [str(each) for each in (reply.job_ids[-1:] if full else reply.job_ids)]
    if as_json:
        known = {"schema": "submission/1", "jobs": [] if dry_run else ids, "notes": list(reply.notes)}
        write_json({**known, "dry_run": dry_run})
        return OK
    for note in reply.notes:
        screen.tell(f"note: {note}")
    if dry_run:
        screen.tell(f"{screen.plural(len(request.specs), 'job')} would be accepted; nothing was changed")
    else:
        write_lines(whole_array(ids) if request.array_indices else ids)
    return OK


def with_series(client: Client, request: Submit) -> Submit:
    """The series that measures the job, and the job behind it. Says what that costs."""
    spec = request.specs[0]
    plan = planned(client, spec)
    tell(f"profiling first: {plan.announcement()}")
    return msgspec.structs.replace(request, specs=(*plan.specs, behind(spec, plan.specs)))


def printed(request: Submit) -> SpecView | dict[str, Any]:
    """Secrets are named, never shown."""
    specs = [spec_view(spec) for spec in request.specs]
    if not request.array_indices:
        return specs[0]
    return {"schema": "job-specs/1", "array_indices": list(request.array_indices), "job-specs": specs}


def whole_array(ids: list[str]) -> list[str]:
    """The array's number: every verb takes it for all tasks."""
    numbers = {each.partition("_")[0] for each in ids}
    return sorted(numbers) if len(numbers) == 1 else ids
