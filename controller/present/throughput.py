"""What a step should take on so many devices with so many micro-batches, and how far that may be off.

Rule: a measured time is shown as one, a predicted one with its range; of a reach that was never measured the
model says nothing, and so does the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cotenant.controller.performance import ProfilePoint
from cotenant.controller.present import screen, units
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import NONE
from cotenant.controller.wire import StepTimeView, ThroughputView

_REACHES: Final = (("device", "one device"), ("host", "several of one host"), ("hosts", "several hosts"))
FIT_NEEDS: Final = "a fit needs three sub-batches or more, and their times to agree"


def seconds(value: float | None) -> str:
    """The text of a step time: three digits that matter."""
    return NONE if value is None else f"{value:.3g}s"


def throughput_lines(
    points: Sequence[ProfilePoint], view: ThroughputView | None, batch_size: int | None
) -> list[str]:
    """A heading and a table; nothing for a job that was never profiled, one line where there is no model."""
    if batch_size is None or not points:
        return []
    if view is None:
        return ["", f"time of a step: no model of it ({FIT_NEEDS})"]
    return ["", *_heading(view), _table(view)]


def _heading(view: ThroughputView) -> Iterator[str]:
    yield (
        f"time of a step, by devices and micro-batches (s): fitted to {units.plural(view.points, 'point')}, "
        f"off by {view.error_ratio:.1%} on average where it had not seen one"
    )
    unknown = [what for reach, what in _REACHES if reach not in view.reaches]
    if unknown:
        yield f"not measured, so not said: {', '.join(unknown)}"


def _table(view: ThroughputView) -> str:
    rows: dict[tuple[int, int], dict[int, StepTimeView]] = {}
    for step in view.steps:
        rows.setdefault((step.devices, step.hosts), {})[step.accumulation_steps] = step
    columns = [
        Column("DEVICES", lambda row: str(row[0][0]), right=True),
        Column("HOSTS", lambda row: str(row[0][1]), right=True),
        *(_column(s) for s in sorted({step.accumulation_steps for step in view.steps})),
    ]
    return screen.table(columns, list(rows.items()), None)


def _column(s: int) -> Column:
    return Column(f"S = {s}", lambda row: _step_time_text(row[1].get(s)), right=True)


def _step_time_text(step: StepTimeView | None) -> str:
    """`0.21s` as measured, `0.21s (0.18 to 0.25)` as predicted, the range that holds four in five."""
    if step is None:
        return NONE
    if step.measured_s is not None:
        return f"{step.measured_s:.3g}s"
    return f"{step.step_s:.3g}s ({step.low_s:.3g} to {step.high_s:.3g})"
