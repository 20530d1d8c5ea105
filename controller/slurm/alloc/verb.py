"""`cotenant alloc`: hosts asked of Slurm as jobs need them; what is asked, what became of it, and why."""

from __future__ import annotations

import os
import time
from typing import Annotated, Final, Literal

import click

from cotenant.controller.cli.frame import output
from cotenant.controller.cli.frame.command import argument, group, option
from cotenant.controller.cli.frame.output import EndpointFlag, FormFlag, JsonFlag, Listing, show_listing
from cotenant.controller.client.asking import asking
from cotenant.controller.client.connection import Client
from cotenant.controller.domain import AllocationTerms, HostShape, texts
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.screen import say, tell
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import duration
from cotenant.controller.submission.flags import value_of
from cotenant.controller.submission.quantities import count, duration_s, size_mib
from cotenant.controller.wire import clients as wire

DECIDED_WITHIN_S: Final = 20.0
LOOK_S: Final = 0.25
SHAPES: Final = "gpus=8,cpus=64,mem=500G"

QueueArgument = Annotated[str, argument(metavar="NAME", help="Of the queue.")]
KindArgument = Annotated[Literal["slurm"], argument(metavar="slurm", help="The only kind there is.")]
MaxHostsFlag = Annotated[int, option("--max-hosts", metavar="N", help="At most so many at once.", min=1)]
ShapeFlag = Annotated[
    str, option("--shape", metavar="SHAPE", help=f"Of a host: {SHAPES}; slots=2: CPU slots.")
]
TimeLimitFlag = Annotated[str, option("--time-limit", metavar="TIME", help="Of each.")]
IdleFlag = Annotated[str, option("--idle", metavar="TIME", help="Given back after so long without jobs.")]
BacklogFlag = Annotated[int, option("--backlog", metavar="N", help="Requests that may wait in Slurm.", min=1)]
GraceFlag = Annotated[
    str, option("--grace", metavar="TIME", help="So long before its limit jobs save and leave a host.")
]
QueueNameFlag = Annotated[str, option("--name", metavar="NAME", help="Of the queue, and of its hosts.")]
BeforeFlag = Annotated[
    str, option("--before", metavar="SHELL", help="Run on a host first, such as 'module load cuda'.")
]
FolderFlag = Annotated[
    str,
    option(
        "--folder",
        metavar="DIR",
        help="On a file system of all hosts: keys, logs, checkpoints.",
        show_default="~/.local/share/cotenant/alloc/NAME",
    ),
]
SbatchArgument = Annotated[
    list[str] | None, argument(metavar="[SBATCH-OPTION]", help="For sbatch, after --.")
]


@group(acts_alone=True)
def alloc(context: click.Context) -> None:
    """Hosts from a Slurm cluster: asked for when a job fits nowhere, given back when idle. Alone: list.

    \b
    For example:
      cotenant alloc add slurm --max-hosts 4 --time-limit 4h --shape gpus=8,cpus=64,mem=500G -- -p gpu
      cotenant alloc list
      cotenant alloc log
    """
    if context.invoked_subcommand is None:
        list_queues()


@alloc.part("add")
def add(
    kind: KindArgument,
    max_hosts: MaxHostsFlag,
    shape: ShapeFlag,
    time_limit: TimeLimitFlag = "4h",
    idle: IdleFlag = "5m",
    backlog: BacklogFlag = 1,
    grace: GraceFlag = "2m",
    name: QueueNameFlag = "slurm",
    before: BeforeFlag = "",
    folder: FolderFlag = "",
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
    options: SbatchArgument = None,
) -> None:
    """Ask Slurm for hosts from now on, as waiting jobs need them.

    Each host is one Slurm job of yours, with the options after --. Before its time limit jobs save, and go on
    on the next host.

    \b
    For example:
      cotenant alloc add slurm --max-hosts 4 --shape gpus=8,cpus=64,mem=500G -- -p gpu -A project
      cotenant alloc add slurm --max-hosts 2 --shape slots=4,cpus=4 --time-limit 30m
    """
    where = os.path.abspath(os.path.expanduser(folder or f"~/.local/share/cotenant/alloc/{name}"))
    try:
        terms = AllocationTerms(
            name=name,
            options=tuple(options or ()),
            shape=host_shape(shape),
            max_hosts=max_hosts,
            backlog=backlog,
            idle_s=value_of("--idle", idle, duration_s),
            time_limit_s=value_of("--time-limit", time_limit, duration_s),
            grace_s=value_of("--grace", grace, duration_s),
            before=before,
            folder=where,
        )
    except ValueError as error:
        raise Problem("usage", str(error)) from None
    with asking(endpoint) as client:
        reply = client.ask(wire.AddAllocations(terms=terms))
        output.show_change("alloc add", {"queue": name}, reply.lines, f"added: {name}", as_json)
        if not as_json:
            say(texts.one_line(first_decision(client, name)))


def first_decision(client: Client, name: str) -> str:
    """What the controller has decided for the queue, once it has asked Slurm."""
    tell("asking Slurm what it has")
    until_s = time.monotonic() + DECIDED_WITHIN_S
    while True:
        queues = {queue.name: queue for queue in client.ask(wire.ListAllocations()).queues}
        if name in queues and queues[name].decided:
            return f"{name}: {queues[name].why}"
        if time.monotonic() > until_s:
            return f"{name}: Slurm has not answered yet; `cotenant alloc list` says what becomes of it"
        time.sleep(LOOK_S)


def host_shape(text: str) -> HostShape:
    """`gpus=8,type=h100,cpus=64,mem=500G` or `slots=2`. Raises Problem."""
    given: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or key not in ("gpus", "slots", "type", "cpus", "mem") or key in given:
            raise Problem(
                "usage", f"--shape {texts.one_line(text)!r} is not like {SHAPES}, or slots=2 for CPU slots"
            )
        given[key] = value
    if ("gpus" in given) == ("slots" in given):
        raise Problem("usage", "--shape takes either gpus=N or slots=N", f"for example --shape {SHAPES}")
    try:
        return HostShape(
            devices=count(given.get("gpus") or given.get("slots") or ""),
            kind="cuda" if "gpus" in given else "cpu",
            type=given.get("type", ""),
            cpus=count(given["cpus"]) if "cpus" in given else 0,
            memory_mib=size_mib(given["mem"]) if "mem" in given else 0,
        )
    except ValueError as error:
        raise Problem("usage", f"--shape: {error}") from None


# --- Reading ---------------------------------------------------------------------------------------


@alloc.part("list")
def list_queues(form: FormFlag = "table", endpoint: EndpointFlag = None) -> None:
    """The queues, how many hosts each has, and why it asks for more or does not. -o wide: each host too.

    \b
    For example:
      cotenant alloc list
      cotenant alloc list -o wide
    """
    with asking(endpoint) as client:
        reply = client.ask(wire.ListAllocations())
    show_listing(QUEUES.fill(reply.queues, now=reply.now), "table" if form == "wide" else form)
    hosts = [each for queue in reply.queues for each in queue.allocations]
    if form == "wide" and hosts:
        show_listing(HOSTS.fill(hosts), "wide")


def state_of(queue: wire.AllocationQueueView) -> str:
    return "removing" if queue.is_removed else "paused" if queue.is_paused else "on"


QUEUES: Final = Listing(
    noun="allocation-queue",
    identity=lambda row: row.name,
    columns=(
        Column("QUEUE", lambda q: q.name),
        Column("STATE", state_of),
        Column("HOSTS", lambda q: f"{q.working}+{q.coming}/{q.terms.max_hosts}", right=True),
        Column("LIMIT", lambda q: duration(q.terms.time_limit_s), rank=2, right=True),
        Column("IDLE", lambda q: duration(q.terms.idle_s), rank=3, right=True),
        Column("WHY", lambda q: q.why, wraps=True),
    ),
    nothing="no hosts are asked of Slurm; `cotenant alloc add slurm` begins",
)
HOSTS: Final = Listing(
    noun="allocation",
    identity=lambda row: row.host,
    columns=(
        Column("HOST", lambda row: row.host),
        Column("STATE", lambda row: row.state),
        Column("SLURM JOB", lambda row: row.slurm_id or ""),
        Column("NODE", lambda row: row.node or ""),
        Column("LEAVES AT", lambda row: row.leaves_at or ""),
        Column("JOBS", lambda row: ",".join(row.jobs)),
        Column("WHY", lambda row: row.why, wraps=True),
    ),
)
LINES: Final = Listing(
    noun="allocation-line",
    identity=lambda row: row.queue,
    columns=(
        Column("AT", lambda row: row.at),
        Column("QUEUE", lambda row: row.queue),
        Column("WHAT", lambda row: row.text, wraps=True),
    ),
    nothing="nothing was asked of Slurm yet",
)


@alloc.part("log")
def log(
    name: Annotated[str, argument(metavar="[NAME]", help="Of one queue.")] = "",
    limit: Annotated[int, option("-n", "--limit", metavar="N", help="Lines, the last ones.", min=1)] = 50,
    form: FormFlag = "table",
    endpoint: EndpointFlag = None,
) -> None:
    """What was asked of Slurm, what came of it, and why.

    \b
    For example:
      cotenant alloc log
      cotenant alloc log slurm -n 200 -o jsonl
    """
    with asking(endpoint) as client:
        reply = client.ask(wire.GetAllocationLog(name=name, limit=limit))
    show_listing(LINES.fill(reply.lines, now=reply.now), form)


# --- Changes ---------------------------------------------------------------------------------------


@alloc.part("pause")
def pause(name: QueueArgument, as_json: JsonFlag = False, endpoint: EndpointFlag = None) -> None:
    """Ask for nothing more. Hosts that are there stay until their limit, or until they are idle."""
    _change("pause", name, as_json, endpoint)


@alloc.part("resume")
def resume(name: QueueArgument, as_json: JsonFlag = False, endpoint: EndpointFlag = None) -> None:
    """Ask again: after a pause, and at once where failures have made it wait."""
    _change("resume", name, as_json, endpoint)


@alloc.part("remove")
def remove(name: QueueArgument, as_json: JsonFlag = False, endpoint: EndpointFlag = None) -> None:
    """Take back what is asked for, let jobs save and leave its hosts, give these back, and forget it."""
    _change("remove", name, as_json, endpoint)


def _change(
    verb: Literal["pause", "resume", "remove"], name: str, as_json: bool, endpoint: str | None
) -> None:
    with asking(endpoint) as client:
        reply = client.ask(wire.ChangeAllocations(verb=verb, name=name))
    output.show_change(f"alloc {verb}", {"queue": name}, reply.lines, f"{verb}: {name}", as_json)
