"""Looks at what runs while no page is open: the plots would lack what the controller does not keep.

Rule: one question every `EVERY_S`; a controller that is silent or refuses is asked again, and nothing else
depends on it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from cotenant.controller.client import Refusal, Unreachable
from cotenant.controller.domain import Phase
from cotenant.controller.web.connections import Connections
from cotenant.controller.web.page import Asking
from cotenant.controller.web.samples import JOBS_MAX
from cotenant.controller.wire import ListJobs, wall_s

EVERY_S: Final = 5.0


async def watch(connections: Connections) -> None:
    """Until it is cancelled."""
    while True:
        with suppress(Unreachable, Refusal):  # The next round asks again, and a page that is open says it.
            await connections.ask(note_all)
        await asyncio.sleep(EVERY_S)


def note_all(asks: Asking) -> None:
    found = asks.ask(ListJobs(states=(Phase.RUNNING,), limit=JOBS_MAX))
    for job in found.jobs:
        asks.samples.note(wall_s(found.now), job)
