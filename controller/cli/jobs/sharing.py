"""What a job did beside others, for a person: predicted, measured, alone, of the same steps; won or lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.screen import NONE, Column, device_hours, duration
from cotenant.controller.wire import JobView, PromiseView, SharingView

SHOWN_MAX: Final = 4
"""Co-tenants in one row of `queue -o wide`, the last ones."""


def beside(row: SharingView) -> str:
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


def slowed(seconds: float | None, row: SharingView, margin_s: float | None = None) -> str:
    """`2m10s (1.43x)`: a time, and the slowdown of these steps."""
    if seconds is None:
        return NONE
    if not row.alone_s:
        return duration(seconds)
    margin = "" if margin_s is None else f" ± {margin_s / row.alone_s:.2f}"
    return f"{exact(seconds)} ({seconds / row.alone_s:.2f}x{margin})"


def exact(seconds: float | None) -> str:
    """Times below a minute get a decimal, because readers compare two of them."""
    return f"{seconds:.1f}s" if seconds is not None and seconds < 60.0 else duration(seconds)


def predicted(row: SharingView) -> str:
    if row.predicted_s is None:
        return NONE if row.predicted_slowdown is None else f"{row.predicted_slowdown:.2f}x"
    return slowed(row.predicted_s, row, row.predicted_margin_s)


def measured(row: SharingView) -> str:
    return slowed(row.measured_s, row)


def alone(row: SharingView) -> str:
    return exact(row.alone_s)


def _won(row: SharingView) -> str:
    return device_hours(row.won_device_s)


def _each(of: Callable[[SharingView], str]) -> Callable[[JobView], str]:
    def cell(job: JobView) -> str:
        left_out = len(job.shared) - SHOWN_MAX
        first = [f"{left_out} before"] if left_out > 0 and of is beside else []
        return "; ".join([*first, *map(of, job.shared[-SHOWN_MAX:])])

    return cell


DISTURBED: Final = 0.95
"""A slowdown below this means that the step time alone was measured badly; from here to 1 it is noise."""

ROWS: Final = (
    Column("BESIDE JOB", beside, limit=24),
    Column("STEPS", lambda row: f"{row.steps:.0f}", right=True),
    Column("PREDICTED", predicted, right=True),
    Column("MEASURED", measured, right=True),
    Column("ALONE", alone, right=True),
    Column("WON, DEVICE-H", _won, right=True),
    Column("PREDICTED FROM", source, rank=1),
)
"""One row per set of co-tenants."""

OF_JOBS: Final = (
    Column("BESIDE", _each(beside)),
    Column("PREDICTED", _each(predicted)),
    Column("MEASURED", _each(measured)),
    Column("ALONE", _each(alone)),
    Column("WON, DEVICE-H", lambda job: device_hours(job.won_device_s), right=True),
)
"""One row per job, all its co-tenants in it."""


def at_the_end(job: JobView) -> list[str]:
    """What `run` says about sharing when the job has ended."""
    lines = [
        f"beside job {beside(row)}, {row.steps:.0f} steps: predicted {predicted(row)} from {source(row)}, "
        f"measured {measured(row)}, alone {alone(row)}"
        for row in job.shared[-SHOWN_MAX:]
    ]
    lines += [promised(each) for each in job.promises]
    if job.shared:
        lines.append(in_all(job))
    return lines


def promised(promise: PromiseView) -> str:
    """What the policy expected, and what happened."""
    took = "not both have finished" if promise.took_s is None else f"it took {exact(promise.took_s)}"
    return (
        f"average completion beside job {promise.beside}: promised {exact(promise.promised_s)}, {took}; "
        f"one after the other, {exact(promise.sequential_s)} was expected"
    )


def in_all(job: JobView) -> str:
    told = _in_all(job)
    if any(row.alone_s is not None and row.measured_s < DISTURBED * row.alone_s for row in job.shared):
        told += "; it was slower when it was measured alone, which counts as no slowdown and as no gain"
    return told


def _in_all(job: JobView) -> str:
    if job.won_device_s is None:
        return "whether sharing paid is not known: what a step takes alone was not seen of each of them"
    verb = "won" if job.won_device_s >= 0.0 else "lost"
    hours = device_hours(abs(job.won_device_s)).removeprefix("+")
    return f"sharing {verb} {hours} device-hours (this job's part)"


def table(job: JobView, room: int | None) -> list[str]:
    """For `show`."""
    if not job.shared:
        return []
    said = [*map(promised, job.promises), in_all(job)]
    return ["", screen.table(ROWS, job.shared, room), *(screen.wrapped(each, 2, room) for each in said)]
