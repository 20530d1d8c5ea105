"""`cotenant pairs`: which kinds of jobs were seen to share well, and which are not put together again."""

from __future__ import annotations

from typing import Annotated, Final

from cotenant.controller.cli.frame.command import argument, option
from cotenant.controller.cli.frame.output import EndpointFlag, FormFlag, Listing, show_listing, whole_number
from cotenant.controller.client.asking import asking
from cotenant.controller.present import screen
from cotenant.controller.present.pairs import COLUMNS, measured_pairs

LIMIT_MAX: Final = 10_000
PAIRS: Final = Listing(
    noun="pair",
    identity=lambda pair: f"{pair.first}\t{pair.second}",
    columns=COLUMNS,
    nothing="no two jobs have been measured together yet",
)


def pairs(
    containing: Annotated[str, argument(metavar="[TEXT]", help="Only pairs with this in a command.")] = "",
    limit: Annotated[str, option("--limit", metavar="N", help="At most so many.")] = "1000",
    form: FormFlag = "table",
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
    with asking(endpoint, from_journal=True) as client:
        reply = client.ask(measured_pairs(whole_number("--limit", limit, LIMIT_MAX), containing))
    found = PAIRS.fill(reply.pairs, now=reply.now, observations=reply.observations, more=reply.more)
    show_listing(found, form)
    if reply.more and form in ("table", "wide"):
        screen.tell(f"{reply.more} more; --limit shows them")
