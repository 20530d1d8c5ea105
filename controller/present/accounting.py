"""What sharing and preemption brought and cost, in device-hours: the report as text, and its tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cotenant.controller.present import screen, units
from cotenant.controller.present.amounts import hours
from cotenant.controller.present.screen import paint
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import device_hours, local_time
from cotenant.controller.wire import InterruptionView, PairTotals, ReportView, wall_s

PAIRS_SHOWN: Final = 5
IDLE_SHOWN: Final = 5
"""Users, those with most."""
CAUSES: Final = {
    "preempted": "preempted for another job",
    "by-hand": "preempted by a person",
    "parted": "parted from a co-tenant",
    "crowded": "out of memory beside another",
    "faulted": "GPU fault beside another",
    "resized": "given another number of devices",
}


def page(report: ReportView, room: int | None) -> str:
    """The page of the report. `room`: columns to keep to."""
    lines = [*held_in_words(report), "", *_sharing(report)]
    if report.interruptions:
        lines += ["", paint("Jobs that had to leave their devices, device-hours", "bold")]
        lines += [screen.table(INTERRUPTIONS, report.interruptions, room)]
    if report.pairs:
        lines += ["", paint("Kinds of jobs that shared, device-hours", "bold")]
        lines += [screen.table(PAIRS, best_and_worst(report.pairs), room)]
        left_out = len(report.pairs) - 2 * PAIRS_SHOWN + report.more_pairs
        lines += [f"{units.plural(left_out, 'pair')} between them: -o json"] if left_out > 0 else []
    lines += ["", paint("Formulas", "bold")]
    lines += [
        f"  {name.removesuffix('_device_s')} = {screen.wrap_text(text, 4, room)}"
        for name, text in report.formulas.items()
    ]
    lines += ["", paint("Not known", "bold")]
    lines += [f"  {screen.wrap_text(text, 4, room)}" for text in report.not_known]
    return "\n".join(lines)


def held_in_words(report: ReportView) -> Iterator[str]:
    """The time that the report is about, and how long devices were held in it."""
    since = report.since if report.since is not None else report.remembered_since
    if since is None:
        yield "no jobs yet"
        return
    span = f"from {local_time(wall_s(since))} to {local_time(wall_s(report.now))}"
    yield f"{span}: devices were held for {hours(report.held_device_s)} device-hours"
    if report.idle_device_s > 0.0:
        most = [f"{user} {hours(idle_s)}" for user, idle_s in report.idle_by_user.items()]
        more = f", {len(most) - IDLE_SHOWN} more" if len(most) > IDLE_SHOWN else ""
        yield (
            f"held and idle: {hours(report.idle_device_s)} device-hours of them "
            f"({', '.join(most[:IDLE_SHOWN])}{more})"
        )
    used = f"{report.energy_kwh:.3g} kWh"
    if report.energy_unknown_attempts:
        unknown = units.plural(report.energy_unknown_attempts, "attempt")
        used = f"{used}; unknown of {unknown}" if report.energy_kwh > 0.0 else "unknown"
    yield f"energy of GPUs: {used}"
    if report.forgotten_jobs:
        yield (
            f"{units.plural(report.forgotten_jobs, 'older job')} only the journal knows: counted in nothing "
            "here (controller.keep_ended)"
        )


def _sharing(report: ReportView) -> Iterator[str]:
    shared = report.sharing
    yield paint("Sharing", "bold") + f": {units.plural(shared.jobs, 'job')} trained beside others"
    for name, amount in shared_work(report):
        unit = " device-hours" if name == ALONE else f"  ({WHY_UNKNOWN})" if name == NOT_COMPARED else ""
        yield f"  {name:<21}  {amount:>9}{unit}"


ALONE: Final = "alone this work takes"
NOT_COMPARED: Final = "not compared"
WHY_UNKNOWN: Final = "a pace alone is unknown: such time is in none of the others"


def shared_work(report: ReportView) -> list[tuple[str, str]]:
    """The rows on what sharing brought and cost: names, and device-hours."""
    shared, rows = report.sharing, []
    if shared.jobs and shared.measured_device_s > 0.0:
        rows = [
            (ALONE, hours(shared.alone_device_s)),
            ("measured", hours(shared.measured_device_s)),
            ("won", device_hours(shared.won_device_s)),
            ("cost of undoing it", hours(shared.cost_device_s)),
            ("net", device_hours(shared.net_device_s)),
        ]
    if shared.jobs and shared.unknown_device_s > 0.0:
        rows.append((NOT_COMPARED, hours(shared.unknown_device_s)))
    return rows


def best_and_worst(pairs: tuple[PairTotals, ...]) -> tuple[PairTotals, ...]:
    if len(pairs) <= 2 * PAIRS_SHOWN:
        return pairs
    return (*pairs[:PAIRS_SHOWN], *pairs[-PAIRS_SHOWN:])


def _cause(row: InterruptionView) -> str:
    return CAUSES.get(row.cause, row.cause)


INTERRUPTIONS: Final = (
    Column("WHY", _cause),
    Column("TIMES", lambda row: str(row.count), right=True),
    Column("SAVE", lambda row: hours(row.save_device_s), right=True),
    Column("LOAD", lambda row: hours(row.load_device_s), right=True),
    Column("REWORK", lambda row: hours(row.rework_device_s), right=True),
    Column("FUTILE", lambda row: hours(row.futile_device_s), right=True),
    Column("COST", lambda row: hours(row.cost_device_s), right=True),
)
PAIRS: Final = (
    Column("FIRST", lambda pair: pair.first, limit=40),
    Column("SECOND", lambda pair: pair.second, limit=40),
    Column("MEASURED", lambda pair: hours(pair.measured_device_s), right=True),
    Column("ALONE", lambda pair: hours(pair.alone_device_s), right=True),
    Column("WON", lambda pair: device_hours(pair.won_device_s), right=True),
)
