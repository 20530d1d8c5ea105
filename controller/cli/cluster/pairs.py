"""`cotenant pairs`: which kinds of jobs were seen to share well, and which are not put together again."""

from __future__ import annotations

from typing import Annotated, Final

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.asking import asking
from cotenant.controller.cli.frame.command import argument, option
from cotenant.controller.cli.frame.output import (
    EndpointFlag,
    JsonFlag,
    Listing,
    OutputFlag,
    chosen,
    show_listing,
    whole_number,
)
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import NONE, device_hours
from cotenant.controller.wire import clients as wire

LIMIT_MAX: Final = 10_000


def pairs(
    containing: Annotated[str, argument(metavar="[TEXT]", help="Only pairs with this in a command.")] = "",
    limit: Annotated[str, option("--limit", metavar="N", help="At most so many.")] = "1000",
    output: OutputFlag = None,
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> None:
    """What was measured of jobs that shared devices.

    Slowdowns are iteration time beside the other / alone, both ways. The benefit is what sharing yields
    beyond taking turns: 0.30 means 30 % more work done. Predicted is what was believed when the jobs were
    put together; won is what their steps beside each other would have taken alone, minus what they took (of
    jobs that the controller remembers). A pair that loses, or ran out of device memory, is
    not made again. A job that shared from its first step on, of a kind that nobody profiled, says "never
    alone": what it takes alone is not known, until it has gone on alone for a while.

    For example:

      cotenant pairs
      cotenant pairs resnet
      cotenant pairs -o json
    """
    form = chosen(output, as_json)
    with asking(endpoint) as client:
        reply = client.ask(measured_pairs(whole_number("--limit", limit, LIMIT_MAX), containing))
    about = {"now": reply.now, "observations": reply.observations, "more": reply.more}
    show_listing(
        Listing(
            noun="pair",
            rows=reply.pairs,
            identity=lambda pair: f"{pair.first}\t{pair.second}",
            columns=COLUMNS,
            extra=about,
            nothing="no two jobs have been measured together yet; a policy that shares: "
            "cotenant policy set castor",
        ),
        form,
    )
    if reply.more and form in ("table", "wide"):
        screen.tell(f"{reply.more} more; --limit shows them")


def measured_pairs(limit: int, containing: str = "") -> wire.ListPairs:
    """The request for measured pairs."""
    return wire.ListPairs(containing=containing, limit=limit)


def _ratio(value: float | None, count: int, never_alone: bool) -> str:
    if value is None:
        return "never alone" if never_alone else NONE
    return f"{value:.2f} ({count})"


def _predicted(pair: wire.PairView) -> str:
    both = (pair.first_predicted_xi, pair.second_predicted_xi)
    return ", ".join(NONE if each is None else f"{each:.2f}" for each in both) if any(both) else NONE


COLUMNS: Final = (
    Column("FIRST", lambda p: p.first, limit=40),
    Column("SECOND", lambda p: p.second, limit=40),
    Column("FIRST SLOWED", lambda p: _ratio(p.first_xi, p.first_count, p.first_never_alone), right=True),
    Column("SECOND SLOWED", lambda p: _ratio(p.second_xi, p.second_count, p.second_never_alone), right=True),
    Column("PREDICTED", _predicted, right=True, rank=3),
    Column("BENEFIT", lambda p: NONE if p.benefit is None else f"{p.benefit:+.2f}", right=True),
    Column("WON, DEVICE-H", lambda p: device_hours(p.won_device_s), right=True, rank=1),
    Column("VERDICT", lambda p: p.verdict),
    Column("WHY NOT AGAIN", lambda p: p.quarantine, rank=2),
)
