"""The page of `cotenant top`: as much of the cluster as a screen shows, and whatever is wrong first. Pure.

Rule: it counts what does not fit, never drops it silently, and never leaves out a device or host in trouble.
With no width and height the page is for a pipe: whole, and as long as it likes.
"""

from __future__ import annotations

import textwrap
from collections import Counter
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

AROUND: Final = 3
"""Lines of a section beside its rows: title, column heads, and the blank before it."""
LEGEND_LINES_MIN: Final = 30
"""A screen with fewer lines has no room for a legend."""
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
    urgency: Callable[[Any], tuple[int, int]] | None = None
    """If not all rows fit, those with the smallest value are shown. Otherwise rows stay as they came."""

    @property
    def has_more(self) -> bool:
        return self.total is not None and self.total > len(self.rows)

    @property
    def lines(self) -> int:
        """Lines that the whole section takes."""
        return len(self.rows) + AROUND + self.has_more


def page(moment: Moment, width: int | None, height: int | None, trouble: str = "") -> str:
    """The page for the whole screen. `trouble`: why this is not of now; it stands first."""
    moment, trouble = texts.escape_texts(moment), texts.one_line(trouble)
    head = [*([paint(trouble, "red")] if trouble else []), *headline(moment, width)]
    now = [each for each in sections(moment, width) if each.rows or each.total]
    words = legend([column.title for each in now for column in each.columns])
    foot = [paint(each, "dim") for each in (textwrap.wrap(words, width) if width else [words])]
    if height is None:
        blocks = [block(each, width, None) for each in (*now, decision_section(moment))]
        return "\n\n".join(["\n".join(head), *(each for each in blocks if each), "\n".join(foot)])
    if height < LEGEND_LINES_MIN:
        foot = []
    lines = max(0, height - 1 - len(head) - len(foot))
    given = lines_for([each.lines for each in now], lines)
    last = decision_section(moment)
    if last.rows and lines - sum(given) > AROUND:  # Only in lines that no other section needs.
        now.append(last)
        given.append(min(lines - sum(given), last.lines))
    text = [block(each, width, room - 1) for each, room in zip(now, given, strict=True)]
    shown = "\n\n".join(["\n".join(head), *(each for each in text if each)]).split("\n")
    return "\n".join([*shown[: height - 1 - len(foot)], *foot])


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
    devices = rows_of(moment.nodes.nodes, moment.jobs.jobs)
    running = [job for job in moment.jobs.jobs if job.phase in ON_DEVICES]
    waiting = [job for job in moment.jobs.jobs if job.phase not in ON_DEVICES]
    by_phase = moment.status.jobs_by_phase
    on_devices = sum(by_phase.get(phase.value, 0) for phase in ON_DEVICES)
    others = sum(by_phase.get(phase.value, 0) for phase in Phase if phase not in (*ON_DEVICES, *ENDED))
    return [
        Section("Devices", columns_for(devices, width), devices, len(devices), urgency_among(devices)),
        Section("On devices", COLUMNS, running, max(on_devices, len(running))),
        Section("Waiting", COLUMNS, waiting, max(others, len(waiting))),
    ]


def urgency_among(rows: Sequence[DeviceLine]) -> Callable[[DeviceLine], tuple[int, int]]:
    """A host that is gone is in trouble once: its other empty devices do not crowd out those that work."""
    again: set[str] = set()
    gone: set[str] = set()
    for row in rows:
        if row.host_state is not HostState.OK and not row.device.jobs:
            if row.host in gone:
                again.add(row.device.device_id)
            gone.add(row.host)
    last = (len(TROUBLES) + 2, 0)
    return lambda row: last if row.device.device_id in again else _urgency(row)


def _urgency(row: DeviceLine) -> tuple[int, int]:
    """The sort key that puts devices in trouble first, the worst before the others; then by how many jobs
    there are."""
    rank = TROUBLES.index(row.trouble) if row.trouble in TROUBLES else len(TROUBLES)
    return rank + (not row.trouble), -len(row.device.jobs)


def decision_section(moment: Moment) -> Section:
    """What was decided last, the newest first."""
    now_s = moment.decisions.now_s
    rows: list[tuple[float, wire.DecisionView]] = [
        (max(0.0, now_s - each.at_s), each) for each in moment.decisions.decisions
    ]
    rows.sort(key=lambda each: each[0])
    return Section("Decided last", DECISION_COLUMNS, rows, None)


def block(section: Section, width: int | None, room: int | None) -> str:
    """Title, table and what is left out, in so many lines; empty where there is nothing."""
    if not section.total and not section.rows:
        return ""
    shown, left_out = fit_rows(section, room)
    left = section.total - len(shown) if section.total is not None else 0
    title = paint(section.title, "bold") + (f" ({section.total})" if section.total is not None else "")
    lines = [title, screen.table(section.columns, shown, width)] if shown else [title]
    if shown and left:
        told = _left_out_counts(left_out) if len(left_out) == left else ""
        lines.append(tables.cut(f"  and {left} more{told}", width or 0))
    return "\n".join(lines)


def fit_rows(section: Section, room: int | None) -> tuple[list[Any], list[Any]]:
    """The rows that fit, and the others."""
    rows = list(section.rows)
    if room is None:
        return rows, []
    if section.lines - 1 <= room:
        return rows, []
    if section.urgency is not None:
        rows.sort(key=section.urgency)
    kept = max(0, room - AROUND + (section.total is None))
    return rows[:kept], rows[kept:]


def _left_out_counts(left_out: Sequence[Any]) -> str:
    """How many devices or jobs of each state are not shown."""
    words = Counter(state_word(each) for each in left_out)
    return f": {', '.join(f'{count} {word}' for word, count in words.items())}"


def state_word(row: Any) -> str:
    """What a device or job is, for counting."""
    if isinstance(row, DeviceLine):
        return row.trouble or ("free", "alone", "shared")[min(2, len(row.device.jobs))]
    assert isinstance(row, wire.JobView), f"nobody counts these: {row}"
    return row.phase.value
