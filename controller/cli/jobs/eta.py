"""`cotenant eta`: when jobs start and end, and how often what was told has held."""

from __future__ import annotations

from typing import Annotated, Final

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.asking import asking, complete_job
from cotenant.controller.cli.frame.command import argument
from cotenant.controller.cli.frame.output import (
    EndpointFlag,
    Format,
    JsonFlag,
    Listing,
    OutputFlag,
    chosen,
    show_listing,
)
from cotenant.controller.cli.frame.screen import Column
from cotenant.controller.domain import JobId
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.units import NONE, duration, local_time
from cotenant.controller.wire import Etas, EtaTimes, EtaView, ListEtas, wall_s

SCORE: Final = "score"
OVERDUE: Final = "longer than foreseen"


def eta(
    jobs: Annotated[
        list[str] | None,
        argument(metavar="[JOB...|score]", help="Only these; score: how good it was.", complete=complete_job),
    ] = None,
    output: OutputFlag = None,
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> None:
    """When jobs start and end: nine in ten end after EARLY, half before LIKELY, nine in ten before LATE.

    The controller rolls its own state out into possible futures, under the policy in force and with arrivals
    as they were lately, and corrects what comes of it by how wrong it was before. What nobody can know is
    unknown. `score` says how often the intervals have held, by policy.

    For example:

      cotenant eta
      cotenant eta 7
      cotenant eta score
      cotenant eta -o json | jq '.etas[] | {job, finish}'
    """
    form = chosen(output, as_json)
    words = jobs or []
    if SCORE in words and len(words) > 1:
        raise Problem("usage", "score is asked for alone", "cotenant eta score")
    asked = tuple(JobId(each) for each in words if each != SCORE)
    with asking(endpoint) as client:
        reply = client.ask(ListEtas(job_ids=asked))
    if SCORE in words:
        show_scores(reply, form)
    else:
        show_etas(reply, form, nothing="none of them waits or runs" if asked else "no job waits or runs")


def show_etas(reply: Etas, form: Format, nothing: str) -> None:
    show_listing(
        Listing(
            noun="eta",
            rows=reply.etas,
            identity=lambda each: each.job_id,
            columns=COLUMNS,
            extra={"now": reply.now},
            nothing=nothing,
        ),
        form,
    )
    if form in ("table", "wide") and reply.etas:
        screen.hint(hits(reply.etas[0]))


def hits(eta: EtaView) -> str:
    """How often what was told has held."""
    if eta.hit_rate is None:
        return f"no interval under {eta.policy} has been compared with what came yet"
    return f"{eta.hit_rate:.0%} of the last {eta.hits_of} under {eta.policy} held; 80 % should"


def show_scores(reply: Etas, form: Format) -> None:
    show_listing(
        Listing(
            noun="eta-score",
            rows=reply.scores,
            identity=lambda each: f"{each.policy}\t{each.kind}",
            columns=SCORE_COLUMNS,
            extra={"now": reply.now, "promises": reply.promises},
            nothing="nothing was told yet",
        ),
        form,
    )
    counts = reply.promises
    if form in ("table", "wide") and counts is not None and counts.kept + counts.broken + counts.open:
        screen.hint(
            f"promised ends: {counts.kept} kept, {counts.broken} broken, "
            f"{counts.open} open, {counts.void} void"
        )


def early(times: EtaTimes | None) -> str:
    has_one = times is not None and not is_limit(times) and not times.is_overdue
    return local_time(wall_s(times.p10_at)) if has_one and times is not None else NONE


def is_limit(times: EtaTimes) -> bool:
    """Whether only the job's time limit is known: a latest end, and no earliest one."""
    return times.p50_at is None and times.p10_at == times.p90_at


def likely(times: EtaTimes | None) -> str:
    return NONE if times is None or times.p50_at is None else local_time(wall_s(times.p50_at))


def late(times: EtaTimes | None) -> str:
    if times is not None and times.is_overdue:
        return OVERDUE
    return NONE if times is None or times.p90_at is None else local_time(wall_s(times.p90_at))


def age(eta: EtaView | None) -> str:
    """How long ago an estimate was told."""
    return NONE if eta is None or eta.age_s is None else f"{duration(eta.age_s)} ago"


def in_words(eta: EtaView | None) -> str:
    """`ends about 14:05 (13:50 to 14:40) (told 12s ago)`, before it the start of a job that waits; or why
    nobody can say."""
    if eta is None:
        return ""
    starts = "" if eta.start is None else _phrase("starts", "waits", eta.start)
    if eta.finish is None:
        return f"{starts}{caveats(eta)}; its end is {eta.basis}" if starts else eta.basis
    return f"{', '.join(filter(None, (starts, _phrase('ends', 'takes', eta.finish))))}{caveats(eta)}"


def caveats(eta: EtaView) -> str:
    """What follows the times of an estimate: whether outcomes have corrected them, and how old they are."""
    told = "" if eta.age_s is None else f" (told {age(eta)})"
    return told if eta.is_calibrated else f", uncalibrated{told}"


def _phrase(when: str, how_long: str, times: EtaTimes) -> str:
    return f"{how_long} {OVERDUE}" if times.is_overdue else f"{when} {interval(times)}"


def interval(times: EtaTimes) -> str:
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


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"


SCORE_COLUMNS: Final = (
    Column("POLICY", lambda s: s.policy),
    Column("TOLD AT", lambda s: s.kind),
    Column("COUNTED", lambda s: str(s.predictions), right=True),
    Column("UNCALIBRATED", lambda s: str(s.uncalibrated), right=True),
    Column("HELD", lambda s: _share(s.coverage_80), right=True),
    Column("LAST 100", lambda s: _share(s.hit_rate_100), right=True),
    Column("BIAS", lambda s: _share(s.median_bias), right=True),
    Column("ERROR", lambda s: _share(s.median_abs_error), right=True),
    Column(
        "WIDTH/JCT", lambda s: NONE if s.width_over_jct is None else f"{s.width_over_jct:.2f}", right=True
    ),
)
