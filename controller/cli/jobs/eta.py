"""`cotenant eta`: when jobs start and end, and how often what was told has held."""

from __future__ import annotations

from typing import Annotated, Final

from cotenant.controller.cli.frame.command import argument
from cotenant.controller.cli.frame.completing import complete_job
from cotenant.controller.cli.frame.output import EndpointFlag, Format, FormFlag, Listing, show_listing
from cotenant.controller.client.asking import asking
from cotenant.controller.domain import JobId
from cotenant.controller.present import screen
from cotenant.controller.present.etas import COLUMNS, WIDE_COLUMNS, hits
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import NONE
from cotenant.controller.wire import clients as wire

SCORE: Final = "score"
ETAS: Final = Listing(
    noun="eta", identity=lambda each: each.job_id, columns=COLUMNS, wide_columns=WIDE_COLUMNS
)


def eta(
    jobs: Annotated[
        list[str] | None,
        argument(metavar="[JOB...|score]", help="Only these; score: how good it was.", complete=complete_job),
    ] = None,
    form: FormFlag = "table",
    endpoint: EndpointFlag = None,
) -> None:
    """Show when jobs start and end: nine in ten end after EARLY, half before LIKELY, nine in ten before LATE.

    The controller rolls its own state out into possible futures, under the policy in force and with arrivals
    as they were lately, and corrects what comes of it by how wrong it was before. What nobody can know is
    unknown. `score` says how often the intervals have held, by policy.

    For example:

      cotenant eta
      cotenant eta 7
      cotenant eta score
      cotenant eta -o json | jq '.etas[] | {job, finish}'
    """
    words = jobs or []
    if SCORE in words and len(words) > 1:
        raise Problem("usage", "score is asked for alone", "cotenant eta score")
    asked = tuple(JobId(each) for each in words if each != SCORE)
    with asking(endpoint) as client:
        reply = client.ask(wire.ListEtas(job_ids=asked))
    if SCORE in words:
        show_scores(reply, form)
        return
    nothing = "none of them waits or runs" if asked else "no job waits or runs"
    show_listing(ETAS.fill(reply.etas, nothing=nothing, now=reply.now), form)
    if form in ("table", "wide") and reply.etas:
        screen.hint(hits(reply.etas[0]))


def show_scores(reply: wire.Etas, form: Format) -> None:
    show_listing(SCORES.fill(reply.scores, now=reply.now, promises=reply.promises), form)
    counts = reply.promises
    if form in ("table", "wide") and counts is not None and counts.kept + counts.broken + counts.open:
        screen.hint(
            f"promised ends: {counts.kept} kept, {counts.broken} broken, "
            f"{counts.open} open, {counts.void} void"
        )


def _share(value: float | None, form: str = ".0%") -> str:
    return NONE if value is None else format(value, form)


SCORES: Final = Listing(
    noun="eta-score",
    identity=lambda each: f"{each.policy}\t{each.kind}",
    columns=(
        Column("POLICY", lambda s: s.policy),
        Column("TOLD AT", lambda s: s.kind),
        Column("COUNTED", lambda s: str(s.predictions), right=True),
        Column("UNCALIBRATED", lambda s: str(s.uncalibrated), right=True),
        Column("HELD", lambda s: _share(s.coverage_80), right=True),
        Column("LAST 100", lambda s: _share(s.hit_rate_100), right=True),
        Column("BIAS", lambda s: _share(s.median_bias), right=True),
        Column("ERROR", lambda s: _share(s.median_abs_error), right=True),
        Column("WIDTH/JCT", lambda s: _share(s.width_over_jct, ".2f"), right=True),
    ),
    nothing="nothing was told yet",
)
