"""`cotenant report`: what sharing and preemption brought and cost on this cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.asking import asking
from cotenant.controller.cli.frame.output import (
    EndpointFlag,
    JsonFlag,
    OutputFlag,
    chosen,
    duration_of,
    show_one,
)
from cotenant.controller.cli.frame.parameters import option
from cotenant.controller.cli.frame.screen import Column, device_hours, local_time, paint
from cotenant.controller.wire import GetReport, InterruptionView, PairTotals, ReportView, wall_s

PAIRS_SHOWN: Final = 5
CAUSES: Final = {
    "preempted": "preempted for another job",
    "by-hand": "preempted by a person",
    "parted": "parted from a co-tenant",
    "crowded": "out of memory beside another",
    "faulted": "GPU fault beside another",
    "resized": "given another number of devices",
}


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
        reply = client.ask(GetReport(since_s=since_s))
    room = screen.terminal_width()
    show_one(form, reply.report, "report", reply.report, lambda shown: page(shown, room))


def page(report: ReportView, room: int | None) -> str:
    """`room`: columns to keep to."""
    lines = [*_head(report), "", *_sharing(report)]
    if report.interruptions:
        lines += ["", paint("Jobs that had to leave their devices, device-hours", "bold")]
        lines += [screen.table(INTERRUPTIONS, report.interruptions, room)]
    if report.pairs:
        lines += ["", paint("Kinds of jobs that shared, device-hours", "bold")]
        lines += [screen.table(PAIRS, _best_and_worst(report.pairs), room)]
        left_out = len(report.pairs) - 2 * PAIRS_SHOWN + report.more_pairs
        lines += [f"{screen.plural(left_out, 'pair')} between them: -o json"] if left_out > 0 else []
    lines += ["", paint("Formulas", "bold")]
    lines += [
        f"  {name.removesuffix('_device_s')} = {screen.wrapped(text, 4, room)}"
        for name, text in report.formulas.items()
    ]
    lines += ["", paint("Not known", "bold")]
    lines += [f"  {screen.wrapped(text, 4, room)}" for text in report.not_known]
    return "\n".join(lines)


def _head(report: ReportView) -> Iterator[str]:
    since = report.since if report.since is not None else report.remembered_since
    if since is None:
        yield "no jobs yet"
        return
    span = f"from {local_time(wall_s(since))} to {local_time(wall_s(report.now))}"
    yield f"{span}: devices were held for {_hours(report.held_device_s)} device-hours"
    if report.forgotten_jobs:
        yield (
            f"{screen.plural(report.forgotten_jobs, 'older job')} only the journal knows: counted in nothing "
            "here (controller.keep_ended)"
        )


def _sharing(report: ReportView) -> Iterator[str]:
    shared = report.sharing
    yield paint("Sharing", "bold") + f": {screen.plural(shared.jobs, 'job')} trained beside others"
    if not shared.jobs:
        return
    if shared.measured_device_s > 0.0:
        yield f"  alone this work takes  {_hours(shared.alone_device_s):>9} device-hours"
        yield f"  measured               {_hours(shared.measured_device_s):>9}"
        yield f"  won                    {device_hours(shared.won_device_s):>9}"
        yield f"  cost of undoing it     {_hours(shared.cost_device_s):>9}"
        yield f"  net                    {device_hours(shared.net_device_s):>9}"
    if shared.unknown_device_s > 0.0:
        yield (
            f"  not compared           {_hours(shared.unknown_device_s):>9}  (a pace alone is unknown: such "
            "time is in none of the others)"
        )


def _hours(device_s: float) -> str:
    return f"{device_s / 3600:.3g}"


def _best_and_worst(pairs: tuple[PairTotals, ...]) -> tuple[PairTotals, ...]:
    if len(pairs) <= 2 * PAIRS_SHOWN:
        return pairs
    return (*pairs[:PAIRS_SHOWN], *pairs[-PAIRS_SHOWN:])


def _cause(row: InterruptionView) -> str:
    return CAUSES.get(row.cause, row.cause)


INTERRUPTIONS: Final = (
    Column("WHY", _cause),
    Column("TIMES", lambda row: str(row.count), right=True),
    Column("SAVE", lambda row: _hours(row.save_device_s), right=True),
    Column("LOAD", lambda row: _hours(row.load_device_s), right=True),
    Column("REWORK", lambda row: _hours(row.rework_device_s), right=True),
    Column("FUTILE", lambda row: _hours(row.futile_device_s), right=True),
    Column("COST", lambda row: _hours(row.cost_device_s), right=True),
)
PAIRS: Final = (
    Column("FIRST", lambda pair: pair.first, limit=40),
    Column("SECOND", lambda pair: pair.second, limit=40),
    Column("MEASURED", lambda pair: _hours(pair.measured_device_s), right=True),
    Column("ALONE", lambda pair: _hours(pair.alone_device_s), right=True),
    Column("WON", lambda pair: device_hours(pair.won_device_s), right=True),
)
