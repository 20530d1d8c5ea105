"""What would happen to a job if it were submitted now: the controller answers by roll-outs. With `submit
--dry-run` also when it would end, on how many devices, now and at the quietest hour.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from cotenant.controller.cli.frame.output import Format, show_one
from cotenant.controller.client.asking import asking
from cotenant.controller.client.connection import Client, Refusal
from cotenant.controller.domain import JobId
from cotenant.controller.present import screen, units
from cotenant.controller.present.etas import describe_eta, time_columns
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import duration, local_time
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

TIMEOUT_S: Final = 600.0
NAMED_MAX: Final = 8
DELAYS_SHOWN: Final = 10

WIDTHS_TIMEOUT_S: Final = 40.0
"""The controller takes at most half of it."""
SAY_AFTER_S: Final = 2.0

FORESEEN_COLUMNS: Final = (
    Column("GPUS", lambda r: str(r.gpus), right=True),
    Column("SUBMITTED", lambda r: local_time(wall_s(r.submit_at)) if r.is_later else "now"),
    *time_columns(lambda r: (r.start, r.finish)),
    Column("BASIS", lambda r: r.basis),
)


def foresee(request: wire.Submit, form: Format, endpoint: str | None) -> None:
    """Asks and shows the answer; submits nothing."""
    if screen.is_terminal():
        screen.tell("rolling out futures with it and without it; nothing is submitted")
    with asking(endpoint) as client:
        reply = client.ask(wire.ForeseeArrival(submission=request), TIMEOUT_S)
    room = screen.terminal_width()
    show_one(form, reply.arrival, "arrival", reply.arrival, lambda shown: page(shown, room))


def page(arrival: wire.ArrivalView, room: int | None) -> str:
    lines = [f"under {arrival.policy}, in {units.plural(arrival.roll_outs, 'future')} of what is there now:"]
    lines += list(_fate(arrival))
    if not arrival.delays:
        return "\n".join([*lines, "nobody would end later because of it"])
    lines += ["", f"{units.plural(arrival.delayed, 'job')} would end later because of it"]
    lines += [screen.table(COLUMNS, arrival.delays[:DELAYS_SHOWN], room)]
    if len(arrival.delays) > DELAYS_SHOWN:
        lines.append(f"and {units.plural(len(arrival.delays) - DELAYS_SHOWN, 'job')} less: -o json")
    return "\n".join(lines)


def _fate(arrival: wire.ArrivalView) -> Iterator[str]:
    several = len(arrival.etas) > 1
    yield "  it would start at once" if arrival.at_once else "  it would wait"
    for eta in arrival.etas[:NAMED_MAX]:
        yield f"  {eta.job_id + ': ' if several else ''}{describe_eta(eta)}"
    for reason in arrival.reasons if not arrival.at_once else arrival.reasons[:1]:
        yield f"  {screen.wrap_text(reason, 2)}"
    if arrival.ahead:
        yield f"  ahead of it in the queue: {job_list_text(arrival.ahead)}"
    if arrival.waits_for:
        yield f"  whose devices it would take: {job_list_text(arrival.waits_for)}"


def job_list_text(job_ids: tuple[JobId, ...]) -> str:
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


def foresight(client: Client, request: wire.Submit, policy: str) -> wire.ForeseenWidths | None:
    """When a single job would end; None for an array.

    Raises:
        Refusal: it was asked for by name, and cannot be told.
        Problem: the policy's parameters make no sense.
    """
    if len(request.specs) != 1:
        return None
    name, _, rest = policy.partition(":")
    asked = wire.ForeseeWidths(submission=request, policy=name, parameters=parameters(rest))
    try:
        with _telling():
            return client.ask(asked, timeout_s=WIDTHS_TIMEOUT_S)
    except Refusal as error:
        if policy:
            raise
        screen.tell(f"note: {error.failure.message}")  # The check itself has been answered.
        return None


def parameters(text: str) -> dict[str, str | int | float | bool]:
    """`KEY=VALUE,KEY=VALUE`."""
    found: dict[str, str | int | float | bool] = {}
    for word in filter(None, text.split(",")):
        key, equals, value = word.partition("=")
        if not equals:
            raise Problem("usage", f"--what-if-policy: {word!r} is no parameter", "write NAME:KEY=VALUE")
        found[key] = value
    return found


def foreseen_json(foreseen: wire.ForeseenWidths) -> dict[str, Any]:
    """The answer without the fields that only repeat the question."""
    return {
        "rows": foreseen.rows,
        "policy": foreseen.policy,
        "quietest_at": foreseen.quietest_at,
    }


def foreseen_summary(foreseen: wire.ForeseenWidths) -> str:
    """Under which policy, and when the quietest hour is."""
    if foreseen.quietest_at is None:
        return f"under {foreseen.policy}; the quietest hour is unknown: less than a day is recorded"
    return f"under {foreseen.policy}; the quietest hour begins at {local_time(wall_s(foreseen.quietest_at))}"


@contextmanager
def _telling() -> Iterator[None]:
    """Says after two seconds what is being waited for."""
    timer = threading.Timer(
        SAY_AFTER_S, screen.tell, ("rolling out when it would end, on several numbers of devices ...",)
    )
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
