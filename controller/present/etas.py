"""When a job will start and end, for a person: the early, likely and late time, and what they rest on."""

from __future__ import annotations

from typing import Final

from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import NONE, duration, local_time
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

OVERDUE: Final = "longer than foreseen"


def hits(eta: wire.EtaView) -> str:
    """How often what was told has held."""
    if eta.hit_rate is None:
        return f"no interval under {eta.policy} has been compared with what came yet"
    return f"{eta.hit_rate:.0%} of the last {eta.hits_of} under {eta.policy} held; 80 % should"


def early(times: wire.EtaTimes | None) -> str:
    has_one = times is not None and not is_limit(times) and not times.is_overdue
    return local_time(wall_s(times.p10_at)) if has_one and times is not None else NONE


def is_limit(times: wire.EtaTimes) -> bool:
    """Whether only the job's time limit is known: a latest end, and no earliest one."""
    return times.p50_at is None and times.p10_at == times.p90_at


def likely(times: wire.EtaTimes | None) -> str:
    return NONE if times is None or times.p50_at is None else local_time(wall_s(times.p50_at))


def late(times: wire.EtaTimes | None) -> str:
    if times is not None and times.is_overdue:
        return OVERDUE
    return NONE if times is None or times.p90_at is None else local_time(wall_s(times.p90_at))


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
        return f"{starts}{caveats(eta)}; its end is {eta.basis}" if starts else eta.basis
    return f"{', '.join(filter(None, (starts, _phrase('ends', 'takes', eta.finish))))}{caveats(eta)}"


def caveats(eta: wire.EtaView) -> str:
    """What follows the times of an estimate: whether outcomes have corrected them, and how old they are."""
    told = "" if eta.age_s is None else f" (told {age(eta)})"
    return told if eta.is_calibrated else f", uncalibrated{told}"


def _phrase(when: str, how_long: str, times: wire.EtaTimes) -> str:
    return f"{how_long} {OVERDUE}" if times.is_overdue else f"{when} {interval(times)}"


def interval(times: wire.EtaTimes) -> str:
    if times.is_overdue:
        return OVERDUE
    if is_limit(times):
        return f"by {late(times)} at the latest"
    until = f"to {late(times)}" if times.p90_at is not None else "or any time later"
    if times.p50_at is None:
        return f"{early(times)} {until}"
    if (
        times.p10_at == times.p90_at
    ):  # All futures are equal, and no outcomes yet tell how far off they may be.
        return f"about {likely(times)}"
    return f"about {likely(times)} ({early(times)} {until})"


COLUMNS: Final = (
    Column("JOB", lambda e: e.job_id),
    Column("NAME", lambda e: e.name, limit=14),
    Column("STATE", lambda e: e.phase.value),
    Column("STARTS", lambda e: likely(e.start), rank=2),
    Column("ENDS EARLY", lambda e: early(e.finish), rank=1),
    Column("LIKELY", lambda e: likely(e.finish)),
    Column("LATE", lambda e: late(e.finish)),
    Column("TOLD", age, rank=3),
    Column("BASIS", lambda e: e.basis),
)
