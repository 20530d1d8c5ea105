"""What a step should take on so many devices with so many micro-batches, and how far that may be off.

Rule: a measured time is shown as one, a predicted one with its range; of a reach that was never measured the
model says nothing, and so does the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.screen import NONE, Column
from cotenant.controller.domain.perf import Profile
from cotenant.controller.domain.throughput import Gang, StepTimePrediction, ThroughputModel

STEPS_SHOWN: Final = (1, 2, 4, 8)
"""Of accumulation; those that leave each micro-batch a sample."""
DEVICES_SHOWN: Final = 8
"""As many at least; more for a job that has more."""
FIT_NEEDS: Final = "a fit needs three sub-batches or more, and their times to agree"


class Cell(NamedTuple):
    """One gang at one s. Seconds per optimizer step."""

    gang: Gang
    accumulation_steps: int
    measured_s: float | None
    predicted: StepTimePrediction | None


def cells(profile: Profile, batch_size: int, own: Gang) -> list[Cell]:
    """What is known of gangs like the job's: measured, else by the model; nothing of what neither knows."""
    found = []
    for gang in gangs(profile, own):
        for s in steps_of(profile, batch_size):
            measured_s = _measured_s(profile, s, gang, own)
            law = profile.throughput
            predicted = law.predict(batch_size, s, gang) if law is not None else None
            if measured_s is not None or predicted is not None:
                found.append(Cell(gang, s, measured_s, predicted))
    return found


def gangs(profile: Profile, own: Gang) -> list[Gang]:
    """One device, two, four, ... of one host, then of two; the job's own; those that were measured."""
    most = max(DEVICES_SHOWN, own.devices)
    doubled = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    listed = {own, *(point.gang for point in profile.points if point.gang is not None)}
    listed |= {Gang(devices=devices) for devices in doubled}
    listed |= {Gang(devices=devices, hosts=2) for devices in doubled if devices > 1}
    return sorted(listed, key=lambda gang: (gang.hosts, gang.devices))


def steps_of(profile: Profile, batch_size: int) -> list[int]:
    asked = {point.accumulation_steps for point in profile.points}
    return sorted(asked | {s for s in STEPS_SHOWN if s <= batch_size})


def _measured_s(profile: Profile, s: int, gang: Gang, own: Gang) -> float | None:
    for point in profile.points:
        if point.accumulation_steps == s and (point.gang or own) == gang:
            return point.step_s
    return None


# --- JSON -------------------------------------------------------------------------------------------


def throughput_json(profile: Profile | None, batch_size: int | None, own: Gang) -> dict[str, Any] | None:
    """Null without a model."""
    law = profile.throughput if profile is not None else None
    if profile is None or law is None or batch_size is None:
        return None
    return {
        "schema": "throughput/1",
        "error_ratio": law.error_ratio,
        "points": law.steps,
        "reaches": list(law.reaches),
        "steps": [
            {
                "devices": cell.gang.devices,
                "hosts": cell.gang.hosts,
                "accumulation_steps": cell.accumulation_steps,
                "measured_s": cell.measured_s,
                "step_s": None if cell.predicted is None else cell.predicted.step_s,
                "low_s": None if cell.predicted is None else cell.predicted.low_s,
                "high_s": None if cell.predicted is None else cell.predicted.high_s,
            }
            for cell in cells(profile, batch_size, own)
        ],
    }


# --- For a person -----------------------------------------------------------------------------------


def throughput_lines(profile: Profile | None, batch_size: int | None, own: Gang) -> list[str]:
    """A heading and a table; nothing of a job that was never profiled, one line where there is no model."""
    if profile is None or batch_size is None or not profile.points:
        return []
    law = profile.throughput
    if law is None:
        return ["", f"time of a step: no model of it ({FIT_NEEDS})"]
    return ["", *_heading(law), _table(cells(profile, batch_size, own), steps_of(profile, batch_size))]


def _heading(law: ThroughputModel) -> Iterator[str]:
    yield (
        f"time of a step, by devices and micro-batches (s): fitted to {screen.plural(law.steps, 'point')}, "
        f"off by {law.error_ratio:.1%} on average where it had not seen one"
    )
    unknown = [what for reach, what in _REACHES if reach not in law.reaches]
    if unknown:
        yield f"not measured, so not said: {', '.join(unknown)}"


_REACHES: Final = (("device", "one device"), ("host", "several of one host"), ("hosts", "several hosts"))


def _table(found: list[Cell], steps: list[int]) -> str:
    rows: dict[Gang, dict[int, Cell]] = {}
    for cell in found:
        rows.setdefault(cell.gang, {})[cell.accumulation_steps] = cell
    columns = [
        Column("DEVICES", lambda row: str(row[0].devices), right=True),
        Column("HOSTS", lambda row: str(row[0].hosts), right=True),
        *(_column(s) for s in steps),
    ]
    return screen.table(columns, list(rows.items()), None)


def _column(s: int) -> Column:
    return Column(f"S = {s}", lambda row: _in_words(row[1].get(s)), right=True)


def _in_words(cell: Cell | None) -> str:
    """`0.21s` as measured, `0.21s (0.18 to 0.25)` as predicted, the range that holds four in five."""
    if cell is None:
        return NONE
    if cell.measured_s is not None:
        return f"{cell.measured_s:.3g}s"
    assert cell.predicted is not None
    p = cell.predicted
    return f"{p.step_s:.3g}s ({p.low_s:.3g} to {p.high_s:.3g})"
