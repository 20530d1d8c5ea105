"""`cotenant report`: what sharing and preemption brought and cost on this cluster; `cotenant usage`: who used
how much of the devices. Both are answers of `controller/api/accounting.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Final, Literal

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.asking import asking
from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.frame.output import (
    LIST_FORMATS,
    EndpointFlag,
    JsonFlag,
    Listing,
    ListOutputFlag,
    OutputFlag,
    chosen,
    duration_of,
    show_listing,
    show_one,
    whole_number,
)
from cotenant.controller.cli.frame.screen import paint
from cotenant.controller.cli.jobs.history import SinceFlag, hours
from cotenant.controller.cli.jobs.queue import tell_rest
from cotenant.controller.present import units
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import NONE, device_hours, duration, local_time
from cotenant.controller.wire import InterruptionView, PairTotals, ReportView, wall_s
from cotenant.controller.wire import clients as wire

PAIRS_SHOWN: Final = 5
CAUSES: Final = {
    "preempted": "preempted for another job",
    "by-hand": "preempted by a person",
    "parted": "parted from a co-tenant",
    "crowded": "out of memory beside another",
    "faulted": "GPU fault beside another",
    "resized": "given another number of devices",
}

ROWS_MAX: Final = 100_000

By = Literal["user", "kind", "organisation"]


def report(
    since: Annotated[
        str, option("--since", metavar="TIME", help="Only the last so long.", show_default="all")
    ] = "",
    output: OutputFlag = None,
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> None:
    """What sharing and preemption brought and cost, in device-hours, with the formula.

    Won by sharing is the work that was done beside others, as long as it would have taken alone, minus the
    time that it took on the devices. What cannot be known from what happened is said to be unknown.

    For example:

      cotenant report
      cotenant report --since 7d
      cotenant report -o json | jq .sharing.net_device_s
    """
    form = chosen(output, as_json)
    since_s = duration_of("--since", since)
    with asking(endpoint) as client:
        reply = client.ask(wire.GetReport(since_s=since_s))
    room = screen.terminal_width()
    show_one(form, reply.report, "report", reply.report, lambda shown: page(shown, room))


def page(report: ReportView, room: int | None) -> str:
    """`room`: columns to keep to."""
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
        f"  {name.removesuffix('_device_s')} = {screen.wrapped(text, 4, room)}"
        for name, text in report.formulas.items()
    ]
    lines += ["", paint("Not known", "bold")]
    lines += [f"  {screen.wrapped(text, 4, room)}" for text in report.not_known]
    return "\n".join(lines)


def held_in_words(report: ReportView) -> Iterator[str]:
    """The time that the report is about, and how long devices were held in it."""
    since = report.since if report.since is not None else report.remembered_since
    if since is None:
        yield "no jobs yet"
        return
    span = f"from {local_time(wall_s(since))} to {local_time(wall_s(report.now))}"
    yield f"{span}: devices were held for {hours(report.held_device_s)} device-hours"
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
    """What sharing brought and cost: names, and device-hours."""
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


def usage(
    since: SinceFlag = "",
    by: Annotated[
        By, option("--by", metavar="user|kind|organisation", help="Whose jobs count together.")
    ] = "user",
    limit: Annotated[str, option("--limit", metavar="N", help="At most N rows, the greatest.")] = "1000",
    output: ListOutputFlag = None,
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> None:
    """Device-hours by user, kind of jobs or organisation: held, shared, lost; and how long their jobs waited.

    A second of a device counts once, in equal parts for the jobs that held it: the rows' sum is what `report`
    says was held. SHARED is what they held while training beside others; LOST is what having to leave cost:
    saves, loads and steps done once more. The one who held most stands first. Where fair share is on, DECAYED
    is what it counts: whoever has less than half of another's goes first.

    For example:

      cotenant usage --since 7d
      cotenant usage --by organisation --since 30d -o csv
      cotenant usage --by kind -o json
    """
    form = chosen(output, as_json, LIST_FORMATS)
    request = wire.GetUsage(by=by, since_s=duration_of("--since", since))
    most = whole_number("--limit", limit, ROWS_MAX)
    with asking(endpoint) as client:
        last, rows = all_rows(client.ask, request)
    show_listing(
        Listing(
            noun="use",
            plural="usage",
            rows=rows[:most],
            identity=lambda row: row.name or NONE,
            columns=(
                Column(by.upper(), lambda row: row.name or NONE, limit=60),
                *COLUMNS,
                *(() if last.half_life_s is None else (DECAYED,)),
            ),
            extra={
                "by": by,
                "now": last.now,
                "since": last.since,
                "half_life_s": last.half_life_s,
                "more": max(0, len(rows) - most),
                "forgotten_jobs": last.forgotten_jobs,
            },
            nothing="nobody had a job here" + (" since then" if since else ""),
        ),
        form,
    )
    if form in ("table", "wide"):
        if len(rows) > most:
            screen.tell(f"{units.plural(len(rows) - most, 'more row')}: see --limit")
        tell_rest(0, last.forgotten_jobs)


def all_rows(
    ask: Callable[[wire.GetUsage], wire.UsageRows], request: wire.GetUsage
) -> tuple[wire.UsageRows, list[wire.UsageView]]:
    """The last answer, and the rows of all of them; the one who held most stands first."""
    reply = ask(request)
    rows = list(reply.rows)
    while reply.next is not None and len(rows) < ROWS_MAX:
        reply = ask(wire.GetUsage(by=request.by, since_s=request.since_s, after=reply.next))
        rows += reply.rows
    return reply, sorted(rows, key=lambda row: (-row.held_device_s, row.name))


COLUMNS: Final = (
    Column("JOBS", lambda row: str(row.jobs), right=True),
    Column("ATTEMPTS", lambda row: str(row.attempts), rank=1, right=True),
    Column("DEVICE-H", lambda row: hours(row.held_device_s), right=True),
    Column("SHARED", lambda row: hours(row.shared_device_s), right=True),
    Column("LOST", lambda row: hours(row.lost_device_s), right=True),
    Column("WAITED", lambda row: duration(row.wait_s), right=True),
)
DECAYED: Final = Column("DECAYED", lambda row: hours(row.decayed_device_s or 0.0), right=True)
"""In device-hours, as DEVICE-H."""
