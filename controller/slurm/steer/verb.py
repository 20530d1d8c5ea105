"""`cotenant steer slurm`: one of our orders for a live Slurm's waiting jobs: shown, set, taken back.

Rule: what is shown (`--dry-run`, `explain`) and what is set come from the same look at the queue.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

from cotenant.controller.cli.frame.command import argument, group, option
from cotenant.controller.cli.frame.output import FormFlag, JsonFlag, show_change, show_one, whole_number
from cotenant.controller.cli.offline.options import one_policy
from cotenant.controller.domain import texts
from cotenant.controller.policies import registry
from cotenant.controller.policies.base import Policy
from cotenant.controller.present import screen
from cotenant.controller.present.problem import FAILED, OK, Problem
from cotenant.controller.present.units import duration, local_time, plural
from cotenant.controller.slurm.steer.core.ordering import ORDERS
from cotenant.controller.slurm.steer.slurm import Slurm, SlurmConfig, SlurmProblem
from cotenant.controller.slurm.steer.steerer import (
    FILE_HINT,
    Steerer,
    Steering,
    Superseded,
    TouchedFile,
    read,
    release_all,
)
from cotenant.controller.slurm.steer.verb_page import job_document, job_page, show_order, why_absent
from cotenant.controller.submission.flags import duration_of
from cotenant.controller.system import paths

CHANGES_MAX: Final = 10_000
INTERVAL_S_MIN: Final = 1.0

OrderFlag = Annotated[
    str,
    option(
        "--order",
        metavar="POLICY[:KEY=VALUE]",
        help=f"{', '.join(ORDERS)}.",
        complete=lambda text: [each for each in ORDERS if each.startswith(text)],
    ),
]
PartitionFlag = Annotated[
    str, option("--partition", metavar="A,B", help="Only jobs of these partitions.", show_default="all")
]
SteerSinceFlag = Annotated[
    str, option("--since", metavar="TIME", help="Learn run times from the accounts of so long ago on.")
]
SteerStateFlag = Annotated[
    str,
    option(
        "--state",
        metavar="FILE",
        help="Lists the jobs that were touched.",
        show_default="one per cluster, below ~/.local/state/cotenant",
    ),
]
IntervalFlag = Annotated[str, option("--interval", metavar="TIME", help="Between two looks.")]
ChangesFlag = Annotated[
    str, option("--changes", metavar="N", help="Set so many priorities in a round, at most.")
]
SteerDryRunFlag = Annotated[
    bool, option("--dry-run", help="Show the order and what would be set, once; change nothing.")
]


@group()
def steer() -> None:
    """Set the order of another scheduler's waiting jobs by one of our policies.

    \b
    For example:
      cotenant steer slurm --dry-run
      cotenant steer slurm --order sjf --interval 30s
    """


@group(acts_alone=True)
def slurm(
    order: OrderFlag = "sjf",
    interval: IntervalFlag = "30s",
    changes: ChangesFlag = "200",
    partition: PartitionFlag = "",
    since: SteerSinceFlag = "14d",
    state: SteerStateFlag = "",
    dry_run: SteerDryRunFlag = False,
    form: FormFlag = "table",
) -> int:
    """Steer the priorities of a live Slurm's waiting jobs, until it is ended.

    Round after round the waiting jobs are read and ordered by one of our policies, with run times learned
    from sacct, and the priorities of those that stand wrong are set; held jobs are left alone. It needs the
    rights of an operator. At its end, and when it starts, every job that was touched gets its own priority
    back. One steers a cluster at a time: its mark is a held job named cotenant-steer.

    \b
    For example:
      cotenant steer slurm --dry-run
      cotenant steer slurm --order scorer --partition gpu --interval 1m --changes 100
      cotenant steer slurm explain 1234
      cotenant steer slurm release
    """
    import click

    if click.get_current_context().invoked_subcommand is not None:
        return OK
    interval_s = max(duration_of("--interval", interval) or 30.0, INTERVAL_S_MIN)
    most = whole_number("--changes", changes, CHANGES_MAX)
    policy, programs = _policy(order), Slurm(os.environ)
    config = programs.config()
    steering = _steering(programs, policy, _words(partition), since, most)
    where = _state(state, config)
    if dry_run:
        show_order(steering.look(read(where), time.time()), policy.name, form, steering.note)
        return OK
    _check_rights(programs, config)
    with closing(TouchedFile(where)) as file:
        file.write(cluster=config.cluster, order=order, partitions=_words(partition))
        steerer = Steerer(steering, file, host=socket.gethostname(), pid=os.getpid(), interval_s=interval_s)
        return _steer(steerer, config, interval_s)


steer.add_command(slurm)


@slurm.part("explain")
def explain(
    job: Annotated[str, argument(metavar="JOB", help="Slurm's number of a waiting job.")],
    order: OrderFlag = "",
    partition: PartitionFlag = "",
    since: SteerSinceFlag = "14d",
    state: SteerStateFlag = "",
    form: FormFlag = "table",
) -> None:
    """Say where a waiting job stands in the order, why, and which priority it has and would get.

    The order is that of the steerer at work, unless another is asked for.

    \b
    For example:
      cotenant steer slurm explain 1234
      cotenant steer slurm explain 1234 --order scorer -o json
    """
    number = job.partition("_")[0]
    if not texts.is_whole_number(number):
        raise Problem("usage", f"{job!r} is not a job's number", "see squeue")
    programs = Slurm(os.environ)
    touched = read(_state(state, programs.config()))
    policy = _policy(order or touched.order or "sjf")
    words = _words(partition) or touched.partitions
    found = _steering(programs, policy, words, since, CHANGES_MAX).look(touched, time.time())
    at = next((each for each in found.order.placed if each.job.job_id == int(number)), None)
    if at is None:
        raise why_absent(found, int(number))
    value = job_document(found, at, int(number) in touched.jobs)
    show_one(form, value, number, value, lambda it: job_page(it, policy.name, len(found.order.placed)))


@slurm.part("release")
def release(state: SteerStateFlag = "", as_json: JsonFlag = False) -> int:
    """Give every job that was touched its own priority back, after a steerer was killed.

    \b
    For example:
      cotenant steer slurm release
    """
    programs = Slurm(os.environ)
    config = programs.config()
    _check_rights(programs, config)
    with closing(TouchedFile(_state(state, config))) as file:
        count = len(file.now.jobs)
        left = release_all(programs, file, time.time())
        if file.now.mark:
            programs.remove_mark(file.now.mark)
            file.write(mark=0)
    done = {"touched": count, "left": left}
    lines = [f"{plural(count, 'job')} had been touched; {len(left)} could not be released"]
    show_change("steer slurm release", done, lines, "", as_json)
    return FAILED if left else OK


# --- The loop ------------------------------------------------------------------------------------------


def _steer(steerer: Steerer, config: SlurmConfig, interval_s: float) -> int:
    """Until it is asked to end; the exit code."""
    said, has_begun = "", False
    try:
        steerer.begin(time.time())
        has_begun = True
        screen.tell(
            f"steering {config.cluster} (Slurm {config.version}, {config.priority_type}) by "
            f"{steerer.steering.policy.name}, every {duration(interval_s)}; touched jobs are listed in "
            f"{steerer.file.path}"
        )
        if config.priority_type == "priority/basic":
            screen.tell("note: under priority/basic a new job stands first until the next round")
        while True:
            began_s = time.monotonic()
            said = _round(steerer, said)
            time.sleep(max(interval_s - (time.monotonic() - began_s), 0.1))
    except KeyboardInterrupt:
        return _end(steerer, OK)  # Being asked to end is its ordinary end.
    except Superseded:
        if has_begun:
            _end(steerer, FAILED)
        raise


def _round(steerer: Steerer, said: str) -> str:
    """Makes one round and prints what is new; returns what was printed last."""
    try:
        found = steerer.round(time.time())
    except SlurmProblem as problem:
        line = f"no round: {problem.message}; trying again"
    else:
        count = len(found.order.placed)
        line = f"{plural(count, 'job')} in order, {len(found.changes)} set"
        line += f", {len(found.refused)} refused: {found.refused[0]}" if found.refused else ""
        if not found.changes and not found.refused:
            line = ""
    for note in (*steerer.notes, steerer.steering.note):
        if note and note not in said:
            screen.tell(f"note: {note}")
            said += note
    steerer.notes.clear()
    if line:
        screen.tell(f"{local_time(time.time())}  {line}")
    return said


def _end(steerer: Steerer, code: int) -> int:
    hint = "run cotenant steer slurm release"
    try:
        left = steerer.end(time.time())
    except SlurmProblem as problem:
        why = f"the touched jobs were not released: {problem.message}"
        raise Problem("failed", why, hint) from None
    if left:
        listed = ", ".join(map(str, left[:5]))
        raise Problem("failed", f"{plural(len(left), 'job')} could not be released ({listed})", hint)
    screen.tell("every touched job has its own priority again")
    return code


# --- What it stands on ---------------------------------------------------------------------------------


def _policy(text: str) -> Policy:
    """Makes the policy that a text names. Raises Problem."""
    choice = one_policy(text)
    if choice.name not in ORDERS:
        raise Problem(
            "usage", f"{choice.name} is no order that priorities can carry out", f"take {', '.join(ORDERS)}"
        )
    return registry.make(choice.name, choice.parameters)


def _steering(
    programs: Slurm, policy: Policy, partitions: tuple[str, ...], since: str, most: int
) -> Steering:
    since_s = time.time() - (duration_of("--since", since) or 0.0)
    return Steering(programs, policy, partitions=partitions, most=most, since_s=since_s)


def _words(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _check_rights(programs: Slurm, config: SlurmConfig) -> None:
    if not programs.may_operate(config):
        raise Problem(
            "not-allowed",
            "priorities of other people's jobs need an operator's rights",
            f"run this as root or {config.slurm_user}, or: sacctmgr modify user NAME set adminlevel=Operator",
        )


def _state(state: str, config: SlurmConfig) -> Path:
    path = Path(state).expanduser().resolve() if state else paths.steer_file(config.cluster)
    if any(each.isspace() for each in str(path)):
        raise Problem("usage", f"{path}: white space cannot stand in the mark", FILE_HINT)
    return path
