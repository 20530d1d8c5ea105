"""What a job did beside others, for a person: predicted, measured, alone, of the same steps; won or lost.

Rule: the three stand in one unit in one row, for readers compare them; the ratios are told below the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cotenant.controller.performance import RATIO_STEPS_MIN
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import NONE, device_hours
from cotenant.controller.wire import PromiseView, SharingView
from cotenant.controller.wire import clients as wire

SHOWN_MAX: Final = 4
"""Co-tenants in one row of `queue -o wide`, the last ones."""


def co_tenant_list(row: SharingView) -> str:
    return " and ".join(row.beside)


def source(row: SharingView) -> str:
    return SOURCES.get(row.predicted_from or "", NONE)


SOURCES: Final = {
    "observed": "seen before",
    "measured": "measured before",
    "predicted": "a trained model",
    "duty-cycle": "duty cycles",
    "default": "an assumption",
}


UNITS: Final = ((36_000.0, 3_600.0, "h"), (600.0, 60.0, "min"), (0.0, 1.0, "s"))
"""From which time on, in seconds, a unit of so many seconds is used."""


def same_unit_times(*times_s: float | None) -> tuple[str, ...]:
    """Times that readers compare, in the unit of the longest."""
    longest_s = max((each for each in times_s if each is not None), default=0.0)
    size_s, unit = next((size_s, unit) for from_s, size_s, unit in UNITS if longest_s >= from_s)
    return tuple(NONE if each is None else f"{each / size_s:.1f}{unit}" for each in times_s)


def _three(row: SharingView) -> tuple[str, ...]:
    return same_unit_times(row.predicted_s, row.measured_s, row.alone_s)


def predicted_time(row: SharingView) -> str:
    return _three(row)[0]


def measured_time(row: SharingView) -> str:
    return _three(row)[1]


def alone(row: SharingView) -> str:
    return _three(row)[2]


def slowdown(row: SharingView) -> str:
    """The ratios of a row, as measured and as predicted; empty where neither is known."""
    foreseen = "" if row.predicted_slowdown is None else f"{row.predicted_slowdown:.2f}"
    if foreseen and row.alone_s and row.predicted_margin_s is not None:
        foreseen += f" ± {row.predicted_margin_s / row.alone_s:.2f}"
    if not row.alone_s:
        return (
            f"beside job {co_tenant_list(row)}: {foreseen} times as long as alone, as predicted"
            if foreseen
            else ""
        )
    if row.steps < RATIO_STEPS_MIN:
        return f"beside job {co_tenant_list(row)}: too few steps yet ({row.steps:.0f} of {RATIO_STEPS_MIN})"
    told = f"beside job {co_tenant_list(row)}: {row.measured_s / row.alone_s:.2f} times as long as alone"
    return f"{told}, {foreseen} predicted" if foreseen else told


def slowdowns(job: wire.JobView) -> list[str]:
    return [told for row in job.shared[-SHOWN_MAX:] if (told := slowdown(row))]


def _won_hours(row: SharingView) -> str:
    return device_hours(row.won_device_s)


def _each(of: Callable[[SharingView], str]) -> Callable[[wire.JobView], str]:
    def cell(job: wire.JobView) -> str:
        left_out = len(job.shared) - SHOWN_MAX
        first = [f"{left_out} before"] if left_out > 0 and of is co_tenant_list else []
        return "; ".join([*first, *map(of, job.shared[-SHOWN_MAX:])])

    return cell


DISTURBED: Final = 0.95
"""A slowdown below this means that the step time alone was measured badly; from here to 1 it is noise."""

ROWS: Final = (
    Column("BESIDE JOB", co_tenant_list, limit=24),
    Column("STEPS", lambda row: f"{row.steps:.0f}", right=True),
    Column("PREDICTED", predicted_time, right=True),
    Column("MEASURED", measured_time, right=True),
    Column("ALONE", alone, right=True),
    Column("WON, DEVICE-H", _won_hours, right=True),
    Column("PREDICTED FROM", source, rank=1),
)
"""One row per set of co-tenants."""

OF_JOBS: Final = (
    Column("BESIDE", _each(co_tenant_list)),
    Column("PREDICTED", _each(predicted_time)),
    Column("MEASURED", _each(measured_time)),
    Column("ALONE", _each(alone)),
    Column("WON, DEVICE-H", lambda job: device_hours(job.won_device_s), right=True),
)
"""One row per job, all its co-tenants in it."""


def closing_lines(job: wire.JobView) -> list[str]:
    """What `run` says about sharing when the job has ended."""
    lines = [
        f"beside job {co_tenant_list(row)}, {row.steps:.0f} steps: predicted {predicted_time(row)} "
        f"from {source(row)}, measured {measured_time(row)}, alone {alone(row)}"
        for row in job.shared[-SHOWN_MAX:]
    ]
    return lines + sharing_notes(job)


def promise_outcome(promise: PromiseView) -> str:
    """What the policy expected, and what happened."""
    foreseen, took, in_turn = same_unit_times(promise.promised_s, promise.took_s, promise.sequential_s)
    ended = "not both have finished" if promise.took_s is None else f"it took {took}"
    return (
        f"average completion beside job {promise.beside}: promised {foreseen}, {ended}; "
        f"one after the other, {in_turn} was expected"
    )


def sharing_balance(job: wire.JobView) -> str:
    told = _device_hours_balance(job)
    if any(row.alone_s is not None and row.measured_s < DISTURBED * row.alone_s for row in job.shared):
        told += "; it was slower when it was measured alone, which counts as no slowdown and as no gain"
    return told


def _device_hours_balance(job: wire.JobView) -> str:
    if job.won_device_s is None:
        return "whether sharing paid is not known: what a step takes alone was not seen of each of them"
    verb = "won" if job.won_device_s >= 0.0 else "lost"
    hours = device_hours(abs(job.won_device_s)).removeprefix("+")
    return f"sharing {verb} {hours} device-hours (this job's part)"


def sharing_notes(job: wire.JobView) -> list[str]:
    """The lines below the table of co-tenants: ratios, what the policy had promised, and the balance."""
    return [
        *slowdowns(job),
        *map(promise_outcome, job.promises),
        *([sharing_balance(job)] if job.shared else []),
    ]
