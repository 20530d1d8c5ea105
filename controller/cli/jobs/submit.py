"""`cotenant submit`: queue a command, a YAML file or a script, and print the job's id; and the job's options
as flags of `run`, `submit` and `profile`, made from the one table of options.

Rule: a verb says `flags: JobFlags` and gets what was given, parsed and checked; it never lists flags.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import click
import msgspec

from cotenant.controller.cli.frame.command import Made, argument, option
from cotenant.controller.cli.frame.output import EndpointFlag, JsonFlag, write_json, write_lines
from cotenant.controller.client.asking import PATIENCE_S, asking, loaded_settings
from cotenant.controller.client.connection import Client
from cotenant.controller.client.submitter import own_submitter
from cotenant.controller.domain import JobId, texts
from cotenant.controller.flags import Declared
from cotenant.controller.present import screen, units
from cotenant.controller.present.problem import OK, Problem
from cotenant.controller.present.screen import tell
from cotenant.controller.submission import options
from cotenant.controller.submission.build import Sbatch, Submission, submission
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s


def _flag(option: options.Option) -> tuple[Any, Any]:
    """A job option as one of the command line: its annotation and default."""
    kind: Any = bool if option.switch else list[str] | None if option.repeat else str | None
    words = option.help[0].upper() + option.help[1:] + "."
    declared = Declared(option.flags, metavar=option.metavar or None, help=words)
    return Annotated[kind, declared], False if option.switch else None


def _read_flags(container: str | None, **given: Any) -> options.Options:
    if container is not None:
        raise Problem("usage", f"--container: {options.CONTAINERS}")
    flags: options.Options = {}
    for each in options.OPTIONS:
        value = given[_PREFIX + each.key]
        if value in (None, False, []):
            continue
        texts = ("yes",) if each.switch else tuple(value) if each.repeat else (value,)
        flags[each.key] = options.read(each, texts, each.flag)
    return flags


_PREFIX: Final = "job_"
_REFUSED: Final = {"container": (Annotated[str | None, Declared(("--container",), hidden=True)], None)}
JobFlags = Annotated[
    options.Options,
    Made(_read_flags, {_PREFIX + each.key: _flag(each) for each in options.OPTIONS} | _REFUSED),
]


def prepare_request(
    words: Sequence[str], flags: options.Options, endpoint: str | None, *, command_only: bool
) -> wire.Submit:
    """The request for one job or one array; notes go to the person at once.

    Raises:
        Problem: something in the submission is wrong, or it wants a series of profiles first.
    """
    made = prepared_submission(words, flags, endpoint, command_only=command_only)
    if made.full_profile:
        raise Problem("usage", "--profile full queues several jobs: it is for submit", "cotenant submit ...")
    return made.request


def prepared_submission(
    words: Sequence[str],
    flags: options.Options,
    endpoint: str | None,
    *,
    command_only: bool,
    sbatch: Sbatch | None = None,
) -> Submission:
    """The submission that a command line means, with its notes.

    Raises:
        Problem: something in the submission is wrong.
    """
    loaded = loaded_settings(endpoint)
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        raise Problem("usage", "the folder you are in does not exist any more", "cd to another") from None
    where = own_submitter(loaded.settings, folder)
    made = submission(words, flags, where, command_only=command_only, sbatch=sbatch)
    for note in made.notes:
        tell(f"note: {note}")
    return made


def is_after_dashes(all_words: Sequence[str], command: Sequence[str]) -> bool:
    """Whether `--` stood right before the command: then it is a command, whatever it looks like."""
    before = list(all_words[: len(all_words) - len(command)])
    return before[-1:] == ["--"]


SUBMIT_TIMEOUT_S = 30.0
ETA_WITHIN_S = 2.0
ETA_LOOK_S = 0.1

WordsArgument = Annotated[
    list[str] | None,
    argument(metavar="[--] CMD...|FILE.yaml|SCRIPT.sh", help="What to run; arguments may follow."),
]
PrintFlag = Annotated[bool, option("--print", help="Show the typed spec as JSON; submit nothing.")]
DryRunFlag = Annotated[bool, option("--dry-run", help="Let the controller check it; change nothing.")]
WhatIfFlag = Annotated[
    bool, option("--what-if", help="Say when it would start and end, and whom it delays; submit nothing.")
]
WhatIfPolicyFlag = Annotated[
    str,
    option(
        "--what-if-policy",
        metavar="NAME[:KEY=VALUE]",
        help="With --dry-run: when it would end under this policy.",
    ),
]


def submit(
    context: click.Context,
    words: WordsArgument = None,
    show: PrintFlag = False,
    dry_run: DryRunFlag = False,
    what_if: WhatIfFlag = False,
    what_if_policy: WhatIfPolicyFlag = "",
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
    *,
    flags: JobFlags,
) -> int:
    """Queue a job and print its id.

    The job is a command, a YAML file, or a script with #COTENANT (or #SBATCH) lines. The command
    runs once and sees all its GPUs; a Python script that makes a process group runs once per GPU, with
    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; torchrun, accelerate launch and deepspeed run
    once per host. --launch says it otherwise. Flags stand before it and win over what a file says.

    For example:

      cotenant submit -g 2 -t 4h --batch-size 64 -- python train.py --lr 0.1
      cotenant submit train.yaml
      cotenant submit --array 0-9 train.sh
      cotenant submit --grid lr=.1,.01 --grid seed=0..4%2 -- python train.py --lr {lr} --seed {seed}
      cotenant submit --after 7 -- python evaluate.py
      cotenant submit --what-if -g 2 --expect 3h -- python train.py
      cotenant submit --dry-run --what-if-policy srtf -g 2 --expect 2h -- python train.py
      cotenant submit --by 18:00 --expect 2h -- python train.py
    """
    command = list(words or ())
    made = prepared_submission(command, flags, endpoint, command_only=is_after_dashes(context.obj, command))
    request, full = made.request, made.full_profile
    if what_if_policy and not dry_run:
        raise Problem("usage", "--what-if-policy goes with --dry-run: it changes nothing", "add --dry-run")
    if show:
        write_json(printable_specs(request))
        return OK
    if full and (request.array_indices or len(request.specs) != 1):
        raise Problem(
            "usage", "--profile full is for one job, not for an array", "profile it first: cotenant profile"
        )
    if what_if:
        from cotenant.controller.cli.jobs.arrival import foresee

        foresee(request, "json" if as_json else "table", endpoint)
        return OK
    with asking(endpoint, patience_s=PATIENCE_S) as client:
        if full:
            request = request_with_series(client, request)
        if dry_run:
            asked = msgspec.structs.replace(request, dry_run=True)
            show_dry_run(client, asked, what_if_policy, as_json, made.notes)
        else:
            submit_request(client, request, made.notes, series=full, as_json=as_json)
    return OK


def show_dry_run(
    client: Client, request: wire.Submit, policy: str, as_json: bool, notes: Sequence[str]
) -> None:
    """Says what the controller would do, under `policy` too if one is named. `notes`: of the submission."""
    from cotenant.controller.cli.jobs import arrival

    reply = client.ask(request, timeout_s=SUBMIT_TIMEOUT_S)
    foreseen = arrival.foresight(client, request, policy)
    tasks = [dict(spec.parameters) for spec in request.specs if spec.parameters]
    if as_json:
        document = submission_document(
            reply, (), foreseen and arrival.foreseen_json(foreseen), notes, dry_run=True
        )
        write_json({**document, "tasks": tasks} if tasks else document)
        return
    for at, values in enumerate(tasks):
        screen.say(
            f"task {at}: {texts.one_line(' '.join(f'{name}={value}' for name, value in values.items()))}"
        )
    _tell_reply(reply, "would be promised")
    if foreseen is not None:
        write_lines([screen.table(arrival.FORESEEN_COLUMNS, foreseen.rows, screen.terminal_width())])
        screen.tell(arrival.foreseen_summary(foreseen))
    screen.tell(f"{units.plural(len(request.specs), 'job')} would be accepted; nothing was changed")


def submit_request(
    client: Client, request: wire.Submit, notes: Sequence[str], *, series: bool, as_json: bool
) -> None:
    """Submits and prints the id; `series`: only that of the last job, which waits for the others. `notes`: of
    the submission."""
    reply = client.ask(request, timeout_s=SUBMIT_TIMEOUT_S)
    ids = [str(each) for each in (reply.job_ids[-1:] if series else reply.job_ids)]
    if as_json:
        write_json(submission_document(reply, ids, None, notes, dry_run=False))
        return
    eta = "" if len(reply.job_ids) != 1 else first_eta(client, reply.job_ids[0])
    _tell_reply(reply, "promised")
    write_lines(whole_array(ids) if request.array_indices else ids)
    if eta:
        screen.tell(eta)


def submission_document(
    reply: wire.Submitted, ids: Sequence[str], foreseen: Any, notes: Sequence[str], *, dry_run: bool
) -> dict[str, Any]:
    """What `--json` prints of a submission; `foreseen`: when it would end, if that was asked."""
    known = {"schema": "submission/1", "jobs": list(ids), "notes": [*notes, *reply.notes]}
    return {**known, "dry_run": dry_run, "promised_at": reply.promised_at, "foreseen": foreseen}


def _tell_reply(reply: wire.Submitted, promised: str) -> None:
    for note in reply.notes:
        screen.tell(f"note: {note}")
    if reply.promised_at is not None:
        screen.tell(f"{promised} to end by {units.local_time(wall_s(reply.promised_at))}")


def first_eta(client: Client, job_id: JobId, within_s: float = ETA_WITHIN_S) -> str:
    """When the job ends, if the controller finds it out soon and a person is at the terminal."""
    if not screen.is_terminal(sys.stderr):
        return ""
    from cotenant.controller.present.etas import describe_eta

    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        found = client.ask(wire.ListEtas(job_ids=(job_id,))).etas
        if not found or found[0].told_at is not None:
            return describe_eta(found[0]) if found else ""
        time.sleep(ETA_LOOK_S)
    return f"when it ends: cotenant eta {job_id}"


def request_with_series(client: Client, request: wire.Submit) -> wire.Submit:
    """The series that measures the job, and the job behind it. Says what that costs."""
    from cotenant.controller.client.profile_series import job_of_series, plan_series

    spec = request.specs[0]
    plan = plan_series(client, spec)
    tell(f"profiling first: {plan.announcement()}")
    return msgspec.structs.replace(request, specs=(*plan.specs, job_of_series(spec, plan.specs)))


def printable_specs(request: wire.Submit) -> wire.SpecView | dict[str, Any]:
    """Secrets are named, never shown."""

    specs = [wire.spec_view(spec) for spec in request.specs]
    if not request.array_indices:
        return specs[0]
    return {"schema": "job-specs/1", "array_indices": list(request.array_indices), "job-specs": specs}


def whole_array(ids: list[str]) -> list[str]:
    """The number of the array alone where all `ids` are its tasks: every verb takes it for all tasks."""
    numbers = {each.partition("_")[0] for each in ids}
    return sorted(numbers) if len(numbers) == 1 else ids
