"""`cotenant nodes`: hosts and their devices; `drain`, `resume`, `lost`."""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple

import click
import msgspec

from cotenant.controller.cli.frame import output
from cotenant.controller.cli.frame.command import argument, group, option
from cotenant.controller.cli.frame.completing import complete_host
from cotenant.controller.cli.frame.output import EndpointFlag, FormFlag, JsonFlag, Listing, show_listing
from cotenant.controller.cli.setup.owners import owner
from cotenant.controller.client.asking import asking, loaded_settings
from cotenant.controller.domain import FOREIGN, RUNTIMES, HostId, sharing_in_words
from cotenant.controller.present.devices import reserved_in_words
from cotenant.controller.present.screen import tell
from cotenant.controller.present.tables import STATE_COLOURS, Column
from cotenant.controller.present.units import NONE, duration, size
from cotenant.controller.system import paths
from cotenant.controller.wire import clients as wire

HostArgument = Annotated[str, argument(metavar="HOST", help="Its name.", complete=complete_host)]


QUIET_S: Final = 60.0
"""Of a device that others hold: shorter silences are usual."""


class NodeRow(NamedTuple):
    """A row of one device; a host without devices has one row as well."""

    node: wire.NodeView
    device: wire.DeviceView | None


@group(acts_alone=True)
def nodes(
    context: click.Context,
    hosts: Annotated[str, option("--host", metavar="HOST", help="Only this one.")] = "",
    foreign: Annotated[bool, option("--foreign", help="Only devices that others' processes hold.")] = False,
    form: FormFlag = "table",
    endpoint: EndpointFlag = None,
) -> None:
    """List hosts and their devices: who is on them, how much memory is planned.

    \b
    For example:
      cotenant nodes
      cotenant nodes --foreign      who holds GPUs outside of jobs, since when
      cotenant nodes drain gpu07    no new work there; what runs goes on
    """
    if context.invoked_subcommand is not None:
        return
    with asking(endpoint) as client:
        reply = client.ask(wire.ListNodes())
    shown = [node for node in reply.nodes if hosts in ("", node.host)]
    if foreign:
        kept = {
            node.host: tuple(each for each in node.devices if each.note.startswith(FOREIGN)) for node in shown
        }
        shown = [msgspec.structs.replace(each, devices=kept[each.host]) for each in shown if kept[each.host]]
    if form not in ("table", "wide"):
        show_listing(NODES.fill(shown, now=reply.now), form)
    elif shown or not foreign:
        rows = [NodeRow(node, device) for node in shown for device in node.devices or (None,)]
        show_listing(NODES.fill(rows, nothing="" if shown else _nobody(endpoint)), form)
    else:
        tell("no device is held by a process that is no job's")


def _nobody(endpoint: str | None) -> str:
    """Why there is no host, and what to do."""
    if owner(paths.client_endpoint(loaded_settings(endpoint).settings)) is not None:
        return "no host has joined yet: the agent of `cotenant up` is starting; look again in a few seconds"
    return "no host has joined; start an agent with: cotenant agent"


def _device(row: NodeRow) -> str:
    if row.device is None:
        return NONE
    return row.device.device_id.rpartition("/")[2]


def _device_state(row: NodeRow) -> str:
    """The state of a row's device, where `out` is a device that works and takes no jobs; the note says
    why."""
    if row.device is None:
        return ""
    if row.device.state == "ok" and row.device.reserved is not None and row.device.reserved.is_now:
        return "reserved"
    if row.device.state == "ok" and not row.device.healthy:
        return "out"
    return row.device.state


def _memory(device: wire.DeviceView | None) -> str:
    if device is None:
        return ""
    return size(device.usable_mib) if device.memory_mib > 1 else "-"  # 1: unknown, as of a MIG instance.


def _jobs(device: wire.DeviceView) -> str:
    """`7,8`, `7 idle`, or `7 (0.5),8 (0.25)` of a device that is divided."""
    parts = device.parts or (1.0,) * len(device.jobs)
    pairs = zip(device.jobs, parts, strict=True)
    told = ((job_id, f" ({part:g})" if part < 1.0 else "") for job_id, part in pairs)
    return ",".join(f"{each}{part}{' idle' if each in device.idle_jobs else ''}" for each, part in told)


def _note(row: NodeRow) -> str:
    own = row.device.note if row.device else "no device is offered"
    reserved = reserved_in_words(row.device) if row.device else ""
    if row.device and row.device.reserved is not None and row.device.reserved.is_now:
        own = ""
    if row.device and row.device.state != "ok":
        own = own.removeprefix(f"{row.device.state}: ")
    if row.device and row.device.healthy and not own and row.device.kind == "cpu":
        own = (
            f"CPU slot on cores {','.join(map(str, row.device.cores))}, time-slicing"
            if row.device.cores
            else ""
        )
    quiet_s = row.device.reading.quiet_s if row.device and row.device.reading else 0.0
    if own.startswith(FOREIGN) and quiet_s >= QUIET_S:
        own += f"; nothing has run on it for {duration(quiet_s)}"
    is_gpu = row.device is not None and row.device.healthy and row.device.kind == "cuda"
    sharing = sharing_in_words(row.device) if row.device and is_gpu else ""
    return "; ".join(part for part in (row.node.reason, own, reserved, sharing) if part)


def _containers(node: wire.NodeView) -> str:
    """The programs that start containers there, else why none does."""
    return ", ".join(each for each in node.features if each in RUNTIMES) or node.container_note or NONE


def _main_memory(row: NodeRow) -> str:
    """What its jobs have asked for, of what it has."""
    asked, there = row.node.memory_asked_mib, row.node.memory_mib
    return f"{size(asked) if asked else 0}/{size(there) if there else NONE}"


def _fork_servers(row: NodeRow) -> str:
    """What the host keeps ready for warm starts, and its cost."""
    kept = row.node.fork_servers
    return NONE if kept is None else f"{kept.count}, {size(kept.memory_mib)} of {size(kept.allowed_mib)}"


COLUMNS: Final = (
    Column("HOST", lambda r: r.node.host, limit=24),
    Column("STATE", lambda r: r.node.state.value, colour=lambda r: STATE_COLOURS.get(r.node.state.value, "")),
    Column("SEEN", lambda r: duration(r.node.heartbeat_age_s), rank=5, right=True),
    Column("DEVICE", _device),
    Column("HEALTH", _device_state, rank=1),
    Column("TYPE", lambda r: r.device.type if r.device else "", rank=3, limit=20),
    Column("MEMORY", lambda r: _memory(r.device), rank=2, right=True),
    Column("PLANNED", lambda r: size(r.device.planned_mib) if r.device else "", rank=4, right=True),
    Column("JOBS", lambda r: _jobs(r.device) if r.device else ""),
    Column("NOTE", _note, wraps=True),
)
WIDE_COLUMNS: Final = (
    *COLUMNS[:-1],
    Column("CORES", lambda r: f"{r.node.cpus_asked}/{r.node.cpus}", right=True),
    Column("MAIN MEMORY", _main_memory, right=True),
    Column("CONTAINERS", lambda r: _containers(r.node), wraps=True),
    Column("FORK SERVERS", _fork_servers),
    COLUMNS[-1],
)
NODES: Final = Listing(
    noun="node", identity=lambda node: node.host, columns=COLUMNS, wide_columns=WIDE_COLUMNS
)


# --- Changes ----------------------------------------------------------------------------------------


@nodes.part("drain")
def drain(host: HostArgument, as_json: JsonFlag = False, endpoint: EndpointFlag = None) -> None:
    """Give a host no new work. What runs there goes on."""
    _change("drain", host, as_json, endpoint)


@nodes.part("resume")
def resume(host: HostArgument, as_json: JsonFlag = False, endpoint: EndpointFlag = None) -> None:
    """Let a drained, suspect or lost host work again, and its suspect or draining devices."""
    _change("resume", host, as_json, endpoint)


@nodes.part("lost")
def declare_lost(host: HostArgument, as_json: JsonFlag = False, endpoint: EndpointFlag = None) -> None:
    """Say that a silent host will not come back: its jobs start elsewhere.

    Only when nothing runs there any more: a job that cannot resume would otherwise run twice.
    """
    _change("lost", host, as_json, endpoint)


def _change(verb: Literal["drain", "resume", "lost"], host: str, as_json: bool, endpoint: str | None) -> None:
    with asking(endpoint) as client:
        reply = client.ask(wire.ChangeNode(verb=verb, host_id=HostId(host)))
    output.show_change(verb, {"host": host}, reply.lines, f"{verb}: {host}", as_json)
