"""The page of `cotenant top --once`: the whole cluster, as long as that is; and the head of its screen. Pure.

Rule: it counts what the controller has left out. With no width the page is for a pipe.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from cotenant.controller.domain import ENDED, ON_DEVICES, HostState, Phase, texts
from cotenant.controller.present import screen, tables, units
from cotenant.controller.present.devices import DeviceLine, columns_for, legend, rows_of
from cotenant.controller.present.jobs import COLUMNS
from cotenant.controller.present.screen import paint
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import duration, plural
from cotenant.controller.wire import clients as wire

TROUBLES: Final = ("lost", "suspect", "draining", "out", "silent", "drained")
"""The worst first."""
DECISION_COLUMNS: Final = (
    Column("AGO", lambda each: duration(each[0]), right=True),
    Column("JOB", lambda each: each[1].job_id or ""),
    Column("WHAT", lambda each: each[1].what, limit=24),
    Column("REASON", lambda each: each[1].reason),
)


class Moment(NamedTuple):
    """All that one refresh asks for."""

    status: wire.ControllerStatus
    nodes: wire.Nodes
    jobs: wire.Jobs
    decisions: wire.Decisions
    policy: wire.PolicyView | None = None


class Section(NamedTuple):
    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    total: int | None
    """How many there are, also those that the controller has left out. None: there are always more."""


def page(moment: Moment, width: int | None) -> str:
    """The page, whole and as long as it likes; `width`: of a terminal, None for a pipe."""
    moment = texts.escape_texts(moment)
    now = [each for each in sections(moment, width) if each.rows or each.total]
    words = legend([column.title for each in now for column in each.columns])
    foot = [paint(each, "dim") for each in (textwrap.wrap(words, width) if width else [words])]
    blocks = [block(each, width) for each in (*now, decision_section(moment))]
    head = "\n".join(headline(moment, width))
    return "\n\n".join([head, *(each for each in blocks if each), "\n".join(foot)])


def lines_for(wants: Sequence[int], lines: int) -> list[int]:
    """Lines for each pane: none gets more than it needs, and the others share the rest."""
    given = [0] * len(wants)
    by_size = sorted(range(len(wants)), key=lambda at: wants[at])
    for done, at in enumerate(by_size):
        given[at] = min(wants[at], lines // (len(wants) - done))
        lines -= given[at]
    return given


def headline(moment: Moment, width: int | None) -> list[str]:
    parts = about(moment.status)
    while width and len(parts) > 1 and len("  ".join(text for text, _ in parts)) > width:
        parts.pop()
    counts = phases_in_words(moment.status)
    first = "  ".join(paint(text, colour) for text, colour in parts)
    told = [counts, *quota_lines(moment.policy)]
    return [first, *(line for each in told for line in (textwrap.wrap(each, width) if width else [each]))]


def quota_lines(policy: wire.PolicyView | None) -> list[str]:
    """What spot jobs may have and what that rests on, a line per device type; none without classes."""
    classes = policy.classes if policy is not None else None
    if classes is None:
        return []
    lines = []
    for pool in classes.pools:
        parts = [
            f"quota of spot on {pool.device_type}: {pool.spot_may_take} more of {pool.free} free",
            f"{pool.kept_back} kept back for hp",
        ]
        if pool.forecast_upper:
            parts.append(f"hp forecast {pool.forecast_median[0]:.0f} to {pool.forecast_upper[0]:.0f}")
        if classes.eta is not None:
            parts.append(f"eta {classes.eta:.2f}")
        parts.append(f"{classes.guaranteed_h:g} h guaranteed")
        lines.append(", ".join(parts))
    return lines


def about(status: wire.ControllerStatus) -> list[tuple[str, str]]:
    """The controller in a line, with colours; what matters least stands last."""
    return [
        ("cotenant", "bold"),
        (f"policy {status.policy}", "cyan"),
        (f"{plural(status.hosts, 'host')}, {plural(status.devices, 'device')}", ""),
        (units.local_time(status.wall_s), ""),
        (f"up {duration(status.uptime_s)}", ""),
    ]


def phases_in_words(status: wire.ControllerStatus) -> str:
    """How many jobs there are in each phase, in the order of a job's life."""
    known = [phase.value for phase in Phase]
    phases = sorted(
        status.jobs_by_phase.items(), key=lambda each: (each[0] not in known, known.index(each[0]))
    )
    return ", ".join(f"{count} {phase}" for phase, count in phases if count) or "no jobs"


def sections(moment: Moment, width: int | None) -> list[Section]:
    """The devices and jobs of a page; all counts are the cluster's, not those of a bounded answer."""
    devices = rows_of(moment.nodes.nodes, moment.jobs.jobs)
    running = [job for job in moment.jobs.jobs if job.phase in ON_DEVICES]
    waiting = [job for job in moment.jobs.jobs if job.phase not in ON_DEVICES]
    by_phase = moment.status.jobs_by_phase
    on_devices = sum(by_phase.get(phase.value, 0) for phase in ON_DEVICES)
    others = sum(by_phase.get(phase.value, 0) for phase in Phase if phase not in (*ON_DEVICES, *ENDED))
    return [
        Section("Devices", columns_for(devices, width), devices, len(devices)),
        Section("On devices", COLUMNS, running, max(on_devices, len(running))),
        Section("Waiting", COLUMNS, waiting, max(others, len(waiting))),
    ]


def urgency_among(rows: Sequence[DeviceLine]) -> Callable[[DeviceLine], int]:
    """The sort key that puts devices in trouble first, the worst before the others. A host that is gone is in
    trouble once: its other empty devices do not crowd out those that work."""
    again: set[str] = set()
    gone: set[str] = set()
    for row in rows:
        if row.host_state is not HostState.OK and not row.device.jobs:
            if row.host in gone:
                again.add(row.device.device_id)
            gone.add(row.host)

    def urgency(row: DeviceLine) -> int:
        if row.device.device_id in again:
            return len(TROUBLES) + 2
        return (TROUBLES.index(row.trouble) if row.trouble in TROUBLES else len(TROUBLES)) + (not row.trouble)

    return urgency


def decision_section(moment: Moment) -> Section:
    """What was decided last, the newest first."""
    now_s = moment.decisions.now_s
    rows: list[tuple[float, wire.DecisionView]] = [
        (max(0.0, now_s - each.at_s), each) for each in moment.decisions.decisions
    ]
    rows.sort(key=lambda each: each[0])
    return Section("Decided last", DECISION_COLUMNS, rows, None)


def block(section: Section, width: int | None) -> str:
    """Title, table and how many are left out; empty where there is nothing."""
    if not section.total and not section.rows:
        return ""
    title = paint(section.title, "bold") + (f" ({section.total})" if section.total is not None else "")
    lines = [title, screen.table(section.columns, section.rows, width)] if section.rows else [title]
    left = section.total - len(section.rows) if section.total is not None else 0
    if section.rows and left:
        lines.append(tables.cut(f"  and {left} more", width or 0))
    return "\n".join(lines)


def state_word(row: DeviceLine) -> str:
    """What a device is, for counting."""
    return row.trouble or ("free", "alone", "shared")[min(2, len(row.device.jobs))]
