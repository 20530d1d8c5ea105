"""When a job will start and end, for a person: the early, likely and late time, and what they rest on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import NONE, duration, local_time
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

OVERDUE: Final = "longer than foreseen"
UNSURE: Final = "nobody knows how sure"
TimesOf = Callable[[Any], tuple[wire.EtaTimes | None, wire.EtaTimes | None]]
"""When a row's job starts and ends."""


def hits(eta: wire.EtaView) -> str:
    """How often what was told has held."""
    if eta.hit_rate is None:
        return f"no interval under {eta.policy} has been compared with what came yet"
    return f"{eta.hit_rate:.0%} of the last {eta.hits_of} under {eta.policy} held; 80 % should"


def shown_times(times: wire.EtaTimes | None) -> tuple[str, str, str]:
    """The early, the likely and the late time, as far as there are such: one alone where nobody knows how far
    off it may be, or where it is a time limit."""
    if times is None or times.is_overdue:
        return NONE, NONE, NONE if times is None else OVERDUE
    ats = (times.p10_at, times.p50_at, times.p90_at)
    early, likely, late = (NONE if at is None else local_time(wall_s(at)) for at in ats)
    if times.is_limit:
        return NONE, NONE, late
    return (
        (early, likely, late) if times.is_spread_known else (NONE, early if likely == NONE else likely, NONE)
    )


def age(eta: wire.EtaView | None) -> str:
    """How long ago an estimate was told."""
    return NONE if eta is None or eta.age_s is None else f"{duration(eta.age_s)} ago"


def describe_eta(eta: wire.EtaView | None) -> str:
    """`ends about 14:05 (13:50 to 14:40) (told 12s ago)`, before it the start of a job that waits; or why
    nobody can say."""
    if eta is None:
        return ""
    starts = "" if eta.start is None else _phrase("starts", "waits", eta.start)
    if eta.finish is None:
        end = eta.basis if eta.basis.startswith("its end") else f"its end is {eta.basis}"
        return f"{starts}{caveats(eta)}; {end}" if starts else end
    return f"{', '.join(filter(None, (starts, _phrase('ends', 'takes', eta.finish))))}{caveats(eta)}"


def caveats(eta: wire.EtaView) -> str:
    """What follows the times of an estimate: whether outcomes have corrected them, and how old they are."""
    told = "" if eta.age_s is None else f" (told {age(eta)})"
    return told if eta.is_calibrated else f", uncalibrated{told}"


def _phrase(when: str, how_long: str, times: wire.EtaTimes) -> str:
    return f"{how_long} {OVERDUE}" if times.is_overdue else f"{when} {interval(times)}"


def interval(times: wire.EtaTimes) -> str:
    early, likely, late = shown_times(times)
    if times.is_overdue:
        return OVERDUE
    if times.is_limit:
        return f"by {late} at the latest"
    if not times.is_spread_known:
        return f"about {likely} ({UNSURE})"
    if early == late:
        return f"about {early}"
    until = f"to {late}" if times.p90_at is not None else "or any time later"
    return f"{early} {until}" if times.p50_at is None else f"about {likely} ({early} {until})"


def time_columns(times_of: TimesOf, *, wide: bool = False) -> tuple[Column, ...]:
    """Columns of when the job of a row starts and ends; `wide`: with the early and late start."""

    def column(title: str, which: int, level: int, rank: int = 0) -> Column:
        return Column(title, lambda row: shown_times(times_of(row)[which])[level], rank=rank)

    starts = (column("STARTS EARLY", 0, 0), column("LIKELY START", 0, 1, 2), column("STARTS LATE", 0, 2))
    ends = (column("ENDS EARLY", 1, 0, 1), column("LIKELY", 1, 1), column("LATE", 1, 2))
    return (*(starts if wide else starts[1:2]), *ends)


COLUMNS, WIDE_COLUMNS = (
    (
        Column("JOB", lambda e: e.job_id),
        Column("NAME", lambda e: e.name, rank=3, limit=14),
        Column("STATE", lambda e: e.phase.value),
        *time_columns(lambda e: (e.start, e.finish), wide=wide),
        Column("TOLD", age, rank=4),
        Column("BASIS", lambda e: e.basis),
    )
    for wide in (False, True)
)
