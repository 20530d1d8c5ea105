"""A long queue in parts of a thousand jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import structs

from cotenant.controller.client.connection import Client
from cotenant.controller.wire import clients as wire

PAGE: Final = 1_000
"""Jobs in one answer: the first rows come at once, and neither side holds more."""


def pages(client: Client, request: wire.ListJobs) -> Iterator[wire.Jobs]:
    """The answer in parts: `limit` counts for all of them together, and `more` is what is beyond it."""
    reply = client.ask(structs.replace(request, page=PAGE))
    left = request.limit - len(reply.jobs)
    while reply.next or reply.next_before:
        yield structs.replace(reply, more=max(0, reply.more - left))
        place = {"after": reply.next, "before": reply.next_before}
        reply = client.ask(structs.replace(request, page=PAGE, limit=left, count=False, **place))
        left -= len(reply.jobs)
    yield reply
