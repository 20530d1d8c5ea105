"""What would happen to a job if it were submitted now: the controller answers by roll-outs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.asking import asking
from cotenant.controller.cli.frame.output import Format, show_one
from cotenant.controller.cli.frame.screen import Column, duration
from cotenant.controller.cli.jobs.eta import in_words
from cotenant.controller.domain import JobId
from cotenant.controller.wire import Submit
from cotenant.controller.wire import clients as wire

TIMEOUT_S: Final = 600.0
NAMED_MAX: Final = 8
DELAYS_SHOWN: Final = 10


def foresee(request: Submit, form: Format, endpoint: str | None) -> None:
    """Asks and shows the answer; submits nothing."""
    if screen.is_terminal():
        screen.tell("rolling out futures with it and without it; nothing is submitted")
    with asking(endpoint) as client:
        reply = client.ask(wire.ForeseeArrival(submission=request), TIMEOUT_S)
    room = screen.terminal_width()
    show_one(form, reply.arrival, "arrival", reply.arrival, lambda shown: page(shown, room))


def page(arrival: wire.ArrivalView, room: int | None) -> str:
    lines = [f"under {arrival.policy}, in {screen.plural(arrival.roll_outs, 'future')} of what is there now:"]
    lines += list(_fate(arrival))
    if not arrival.delays:
        return "\n".join([*lines, "nobody would end later because of it"])
    lines += ["", f"{screen.plural(arrival.delayed, 'job')} would end later because of it"]
    lines += [screen.table(COLUMNS, arrival.delays[:DELAYS_SHOWN], room)]
    if len(arrival.delays) > DELAYS_SHOWN:
        lines.append(f"and {screen.plural(len(arrival.delays) - DELAYS_SHOWN, 'job')} less: -o json")
    return "\n".join(lines)


def _fate(arrival: wire.ArrivalView) -> Iterator[str]:
    several = len(arrival.etas) > 1
    yield "  it would start at once" if arrival.at_once else "  it would wait"
    for eta in arrival.etas[:NAMED_MAX]:
        yield f"  {eta.job_id + ': ' if several else ''}{in_words(eta)}"
    for reason in arrival.reasons if not arrival.at_once else arrival.reasons[:1]:
        yield f"  {screen.wrapped(reason, 2)}"
    if arrival.ahead:
        yield f"  ahead of it in the queue: {named(arrival.ahead)}"
    if arrival.waits_for:
        yield f"  whose devices it would take: {named(arrival.waits_for)}"


def named(job_ids: tuple[JobId, ...]) -> str:
    more = f" and {len(job_ids) - NAMED_MAX} more" if len(job_ids) > NAMED_MAX else ""
    return f"{'job' if len(job_ids) == 1 else 'jobs'} {', '.join(job_ids[:NAMED_MAX])}{more}"


def _later(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{duration(abs(seconds))}"


COLUMNS: Final = (
    Column("JOB", lambda d: d.job_id),
    Column("NAME", lambda d: d.name, limit=20),
    Column("USER", lambda d: d.user, limit=12),
    Column("LATER BY", lambda d: _later(d.p50_s), right=True),
    Column("AT LEAST", lambda d: _later(d.p10_s), right=True),
    Column("AT MOST", lambda d: _later(d.p90_s), right=True),
)
"""In nine tenths of the futures the delay is above AT LEAST, in nine tenths below AT MOST."""
