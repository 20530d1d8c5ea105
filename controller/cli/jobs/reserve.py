"""`cotenant reserve`: devices that are there for one's jobs at a time."""

from __future__ import annotations

import os
import time
from math import inf
from typing import Annotated, Final

import click

from cotenant.controller.cli.frame import output
from cotenant.controller.cli.frame.command import argument, group, option
from cotenant.controller.client.asking import asking
from cotenant.controller.domain import HostId
from cotenant.controller.present import screen
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import duration
from cotenant.controller.submission.flags import value_of
from cotenant.controller.submission.moments import begin_moment, east_s
from cotenant.controller.submission.quantities import duration_s
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

GPUS_MAX: Final = 100_000
REPEAT_S: Final = {"day": 86_400, "week": 604_800}
REPEATS: Final[dict[str, wire.Repeat]] = {"": "", "day": "day", "week": "week"}


@group(acts_alone=True)
def reserve(
    context: click.Context,
    gpus: Annotated[str, option("-g", "--gpus", metavar="N", help="Devices.")] = "1",
    from_time: Annotated[
        str,
        option("--from", metavar="TIME", help="18:00, tomorrow 9:00, Fri 18:00, now+2h, ISO, or now."),
    ] = "",
    length: Annotated[
        str, option("--for", metavar="TIME", help="For so long: 90m, 12h, 1-12.", show_default=False)
    ] = "",
    every: Annotated[str, option("--every", metavar="day|week", help="Again and again.")] = "",
    user: Annotated[str, option("--user", metavar="NAME", help="For somebody else (admins).")] = "",
    gpu_type: Annotated[str, option("--gpu-type", metavar="TYPE", help="Of this type only.")] = "",
    host: Annotated[str, option("--host", metavar="HOST", help="On this host only.")] = "",
    as_json: output.JsonFlag = False,
    endpoint: output.EndpointFlag = None,
) -> None:
    """Reserve devices for your jobs, from a time on for so long. Alone: the list.

    Before it begins its devices are used by jobs that can be preempted, or end before by a time limit. While
    it is on, your jobs are placed there first and are not preempted. Devices that you do not use for 15
    minutes are lent to jobs that can be preempted, until you do. Times are those of your clock.

    For example:

      cotenant reserve -g 2 --from "Fri 18:00" --for 12h
      cotenant reserve --from "Mon 9:00" --for 3h --every week --user anna
      cotenant reserve list
      cotenant reserve cancel r3
    """
    if context.invoked_subcommand is not None:
        return
    if not from_time and not length:
        list_reservations("json" if as_json else "table", endpoint)
        return
    if every not in REPEATS:
        raise Problem("usage", f"--every must be day or week, got {every!r}")
    from_unix_s = value_of("--from", from_time, lambda text: begin_moment(text).timestamp())
    request = wire.ReserveDevices(
        gpus=output.whole_number("--gpus", gpus, GPUS_MAX),
        from_unix_s=from_unix_s,
        length_s=value_of("--for", length, duration_s),
        every=REPEATS[every],
        user=user,
        gpu_type=gpu_type,
        host_id=HostId(host),
        east_s=east_s(from_unix_s),
        idempotency_key=os.urandom(16).hex(),
    )
    with asking(endpoint) as client:
        made = client.ask(request).reservation
    if as_json:
        output.write_json(made)
        return
    screen.say(f"{made.reservation_id}: {_when(made)}, {', '.join(made.devices)}, for {made.user}")
    if note := _clock_change(made):
        screen.tell(note)


@reserve.part("list")
def list_reservations(form: output.FormFlag = "table", endpoint: output.EndpointFlag = None) -> None:
    """The reservations that are not over, the first to begin first.

    For example:

      cotenant reserve list
      cotenant reserve list -o json
    """
    with asking(endpoint) as client:
        reply = client.ask(wire.ListReservations())
    output.show_listing(RESERVATIONS.fill(reply.reservations, now=reply.now), form)


@reserve.part("cancel")
def cancel(
    reservations: Annotated[list[str], argument(metavar="ID...", help="As `reserve list` has them.")],
    as_json: output.JsonFlag = False,
    endpoint: output.EndpointFlag = None,
) -> None:
    """End reservations, those that come again for good. Jobs on their devices go on.

    For example:

      cotenant reserve cancel r3
    """
    with asking(endpoint) as client:
        reply = client.ask(wire.CancelReservations(reservation_ids=tuple(reservations)))
    told = {"reservations": reservations}
    output.show_change("reserve cancel", told, reply.lines, f"cancelled: {', '.join(reservations)}", as_json)


def _clock(at: str) -> str:
    return time.strftime("%a %Y-%m-%d %H:%M", time.localtime(wall_s(at)))


def _clock_change(each: wire.ReservationView) -> str:
    """What one that comes again after so many hours does when the clocks change within a year; or nothing."""
    begins_s, ends_s = int(wall_s(each.from_at)), wall_s(each.last_at) if each.last_at else inf
    later = (begins_s + number * REPEAT_S[each.every] for number in range(1, 367) if each.every)
    shifted = (at_s for at_s in later if at_s <= ends_s and east_s(at_s) != east_s(begins_s))
    if (at_s := next(shifted, None)) is None:
        return ""
    at = time.strftime("%H:%M from %a %Y-%m-%d on", time.localtime(at_s))
    return f"note: the clocks change, and it begins at {at}"


def _when(each: wire.ReservationView) -> str:
    again = f", every {each.every}" if each.every else ""
    last = f" until {_clock(each.last_at)}" if each.last_at else ""
    length = duration(wall_s(each.until_at) - wall_s(each.from_at))
    return f"{_clock(each.from_at)} for {length}{again}{last}"


def _state(each: wire.ReservationView) -> str:
    lacking = f", {each.gpus - len(each.devices)} missing" if len(each.devices) < each.gpus else ""
    if each.state == "planned":
        return f"planned{lacking}"
    parts = [f"{len(each.used)} used", *([f"{len(each.lent)} lent"] if each.lent else ())]
    return f"now, {', '.join(parts)}{lacking}"


RESERVATIONS: Final = output.Listing(
    noun="reservation",
    identity=lambda each: each.reservation_id,
    columns=(
        Column("ID", lambda each: each.reservation_id),
        Column("USER", lambda each: each.user),
        Column("FROM", lambda each: _clock(each.from_at)),
        Column("UNTIL", lambda each: _clock(each.until_at)),
        Column("EVERY", lambda each: each.every or "-"),
        Column("STATE", _state),
        Column("DEVICES", lambda each: ",".join(each.devices) or "-", wraps=True),
    ),
    nothing='nothing is reserved; cotenant reserve -g 1 --from "tomorrow 9:00" --for 3h',
)
