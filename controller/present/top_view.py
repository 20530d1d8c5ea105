"""What the screen of `cotenant top` shows: panes of rows from the controller's answers, in the order and with
the filter that somebody chose; and what a change of a job would do. Pure.

Rule: a value that is not known stands last, whichever way a pane is sorted, and what a filter or a bounded
answer leaves out is counted in the pane's title.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cotenant.controller.domain import ENDED, ON_DEVICES, WAITING, JobId, Phase
from cotenant.controller.performance import INDICATOR_NAMES
from cotenant.controller.present import tables, top_page
from cotenant.controller.present.consequences import JobVerb
from cotenant.controller.present.devices import COLUMNS as DEVICE_COLUMNS
from cotenant.controller.present.devices import WIDE_COLUMNS, DeviceLine, columns_for, rows_of
from cotenant.controller.present.jobs import COLUMNS as JOB_COLUMNS
from cotenant.controller.present.jobs import left_s
from cotenant.controller.present.tables import GAP, Column
from cotenant.controller.present.units import NONE
from cotenant.controller.wire import clients as wire


class Choice(NamedTuple):
    """How somebody wants to see a pane."""

    sort: str = ""
    """Title of a column; empty: as it comes, trouble first."""
    is_reversed: bool = False
    pattern: str = ""
    """Only rows with this in one of their cells."""

    def next_sort(self, titles: Sequence[str]) -> Choice:
        """Sort by the next column; after the last one rows stay as they come."""
        order = ["", *titles]
        at = order.index(self.sort) if self.sort in order else 0
        return self._replace(sort=order[(at + 1) % len(order)], is_reversed=False)


class Row(NamedTuple):
    key: str
    cells: tuple[str, ...]
    colours: tuple[str, ...]


class Pane(NamedTuple):
    title: str
    titles: tuple[str, ...]
    """Titles of its columns."""
    heads: tuple[tuple[str, int], ...]
    """Label and width of each column."""
    rows: tuple[Row, ...]


def devices_pane(moment: top_page.Moment, choice: Choice, width: int) -> Pane:
    rows = rows_of(moment.nodes.nodes, moment.jobs.jobs)
    shown = _chosen_rows(
        sorted(rows, key=top_page.urgency_among(rows)), DEVICE_COLUMNS, choice, _device_number
    )
    counts = Counter(top_page.state_word(row) for row in rows)
    told = ", ".join(f"{count} {what}" for what, count in counts.items())
    title = f"Devices ({len(rows)}{f': {told}' if told else ''})"
    columns = columns_for(shown, width)
    return _pane(
        _matching(title, shown, rows, choice), columns, shown, choice, width, lambda row: row.device.device_id
    )


def jobs_pane(moment: top_page.Moment, choice: Choice, width: int) -> Pane:
    """The pane of jobs: those on devices, then those that wait, each in order of arrival."""
    rows = sorted(moment.jobs.jobs, key=lambda job: job.phase not in ON_DEVICES)
    shown = _chosen_rows(rows, JOB_COLUMNS, choice, _job_number)
    by_phase = moment.status.jobs_by_phase
    on_devices = sum(by_phase.get(phase.value, 0) for phase in ON_DEVICES)
    there_are = sum(by_phase.get(phase.value, 0) for phase in Phase if phase not in ENDED)
    left_out = f"; the first {len(rows)} of them" if there_are > len(rows) else ""
    title = f"Jobs ({on_devices} on devices, {max(0, there_are - on_devices)} waiting{left_out})"
    several = len({job.user for job in rows}) > 1
    columns = [each for each in JOB_COLUMNS if each.title != "USER" or several]
    return _pane(_matching(title, shown, rows, choice), columns, shown, choice, width, lambda job: job.job_id)


def decisions_pane(moment: top_page.Moment, choice: Choice, width: int) -> Pane:
    rows = top_page.decision_section(moment).rows
    shown = _chosen_rows(
        rows, top_page.DECISION_COLUMNS, choice, lambda title, row: row[0] if title == "AGO" else None
    )
    return _pane(
        "Decided last", top_page.DECISION_COLUMNS, shown, choice, width, lambda row: _decision(row[1])
    )


def _matching(title: str, shown: Sequence[Any], rows: Sequence[Any], choice: Choice) -> str:
    return f"{title}: {len(shown)} of {len(rows)} with {choice.pattern!r}" if choice.pattern else title


def _pane(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Any],
    choice: Choice,
    width: int,
    key: Callable[[Any], str],
) -> Pane:
    """Columns that fit, as wide as their texts; the last one takes what is left."""
    cells = tables.cells_of(columns, rows, is_cut=True)
    labels = [_label(column.title, choice) for column in columns]
    widths = tables.widths_of(cells, [len(label) for label in labels])
    kept = tables.that_fit(columns, widths, width)
    before = sum(widths[at] + len(GAP) for at in kept[:-1])
    widths[kept[-1]] = max(tables.LAST_WIDTH_MIN, width - before)
    return Pane(
        title=title,
        titles=tuple(columns[at].title for at in kept),
        heads=tuple((_align_cell(columns[at], labels[at], widths[at]), widths[at]) for at in kept),
        rows=tuple(
            Row(
                key(row),
                tuple(_align_cell(columns[at], line[at], widths[at]) for at in kept),
                tuple(_colour(columns[at], row) for at in kept),
            )
            for row, line in zip(rows, cells, strict=True)
        ),
    )


def _label(title: str, choice: Choice) -> str:
    return f"{title} {'▼' if choice.is_reversed else '▲'}" if title == choice.sort else title


def _align_cell(column: Column, text: str, width: int) -> str:
    text = tables.cut(text, width)
    return " " * (width - tables.columns_of(text)) + text if column.right else text


def _colour(column: Column, row: Any) -> str:
    return column.colour(row) if column.colour else ""


# --- Order and filter -------------------------------------------------------------------------------

NumberOf = Callable[[str, Any], float | None]
"""What a row is sorted by under a column's title; None: by its text."""


def _device_number(title: str, row: DeviceLine) -> float | None:
    if title in INDICATOR_NAMES:
        return row.value(title)
    reading = row.device.reading
    numbers = {
        "MEMORY": reading.memory_used_mib if reading is not None else None,
        "PLANNED": row.device.planned_mib,
        "AGE": reading.age_s if reading is not None else None,
        "BUSY": row.busy,
        "MEMORY USED": row.filled,
    }
    return numbers.get(title)


def _job_number(title: str, job: wire.JobView) -> float | None:
    numbers = {
        "GPUS": job.gpus * job.gpu_fraction,
        "S": job.accumulation_steps if job.devices else None,
        "WAIT": job.wait_s,
        "RUN": job.run_s,
        "LEFT": left_s(job),
    }
    return numbers.get(title)


def _chosen_rows(
    rows: Sequence[Any], columns: Sequence[Column], choice: Choice, number: NumberOf
) -> list[Any]:
    wanted = choice.pattern.casefold()
    kept = [row for row in rows if not wanted or any(wanted in c.text(row).casefold() for c in columns)]
    column = next((each for each in columns if each.title == choice.sort), None)
    if column is None:
        return kept
    known = [row for row in kept if column.text(row) not in ("", NONE)]
    unknown = [row for row in kept if column.text(row) in ("", NONE)]

    def order(row: Any) -> tuple[bool, float, list[tuple[bool, int, str]]]:
        value = number(column.title, row)
        return value is None, value or 0.0, natural(column.text(row))

    return sorted(known, key=order, reverse=choice.is_reversed) + unknown


def natural(text: str) -> list[tuple[bool, int, str]]:
    """A sort key in which numbers count as numbers: gpu9 stands before gpu10."""
    pieces = re.findall(r"[0-9]+|[^0-9]+", text)
    return [
        (not p.isascii() or not p.isdigit(), int(p) if p.isascii() and p.isdigit() else 0, p.casefold())
        for p in pieces
    ]


# --- One of them ------------------------------------------------------------------------------------


def job_of(moment: top_page.Moment, key: str) -> wire.JobView | None:
    return next((job for job in moment.jobs.jobs if job.job_id == key), None)


def _decision(view: wire.DecisionView) -> str:
    return f"{view.at_s} {view.job_id} {view.what}"


def details(moment: top_page.Moment, pane: str, key: str) -> tuple[str, tuple[JobId, ...]]:
    """The text about a pane's row, and the jobs whose own pages say the rest."""
    if pane == "jobs":
        return "", (JobId(key),) if key else ()
    if pane == "decisions":
        view = next((each for each in moment.decisions.decisions if _decision(each) == key), None)
        return (f"{view.what}: {view.reason}", (view.job_id,) if view.job_id else ()) if view else ("", ())
    rows = rows_of(moment.nodes.nodes, moment.jobs.jobs)
    device = next((row for row in rows if row.device.device_id == key), None)
    return (_device_text(device), device.device.jobs) if device else ("", ())


def _device_text(row: DeviceLine) -> str:
    """Everything that is known of a device, a line each."""
    known = [(each.title, each.text(row) or NONE) for each in WIDE_COLUMNS[1:]]
    width = max(len(title) for title, _ in known)
    return "\n".join([row.device.device_id, *(f"  {title:<{width}}  {text}" for title, text in known)])


def refusal(verb: JobVerb, job: wire.JobView) -> str:
    """Why this cannot be done; empty if it can."""
    if job.phase in ENDED:
        return f"job {job.job_id} has ended already"
    if verb == "hold" and job.phase not in WAITING | {Phase.RESERVED}:
        return f"job {job.job_id} is on devices; only waiting jobs can be held"
    return ""
