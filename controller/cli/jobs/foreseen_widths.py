"""`submit --dry-run`: when the job would end, on how many devices, now and at the quietest hour."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.cli.frame.screen import Column, local_time
from cotenant.controller.cli.jobs.eta import early, late, likely
from cotenant.controller.client import Client, Refusal
from cotenant.controller.wire import ForeseenWidths, ForeseeWidths, Submit, wall_s

TIMEOUT_S: Final = 40.0
"""The controller takes at most half of it."""
SAY_AFTER_S: Final = 2.0

FORESEEN_COLUMNS: Final = (
    Column("GPUS", lambda r: str(r.gpus), right=True),
    Column("SUBMITTED", lambda r: local_time(wall_s(r.submit_at)) if r.is_later else "now"),
    Column("STARTS", lambda r: likely(r.start), rank=2),
    Column("ENDS EARLY", lambda r: early(r.finish), rank=1),
    Column("LIKELY", lambda r: likely(r.finish)),
    Column("LATE", lambda r: late(r.finish)),
    Column("BASIS", lambda r: r.basis),
)


def foresight(client: Client, request: Submit, policy: str) -> ForeseenWidths | None:
    """When a single job would end; None for an array.

    Raises:
        Refusal: it was asked for by name, and cannot be told.
        Problem: the policy's parameters make no sense.
    """
    if len(request.specs) != 1:
        return None
    name, _, rest = policy.partition(":")
    asked = ForeseeWidths(submission=request, policy=name, parameters=parameters(rest))
    try:
        with _telling():
            return client.ask(asked, timeout_s=TIMEOUT_S)
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


def in_json(foreseen: ForeseenWidths) -> dict[str, Any]:
    """The answer without the fields that only repeat the question."""
    return {
        "rows": foreseen.rows,
        "policy": foreseen.policy,
        "quietest_at": foreseen.quietest_at,
    }


def in_short(foreseen: ForeseenWidths) -> str:
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
