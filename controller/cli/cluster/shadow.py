"""The shadow, asked of a controller: which one is meant, and its report with a simulation as of now."""

from __future__ import annotations

import time
from typing import Final

from cotenant.controller.cli.cluster.policy import parameters_of
from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.problem import Problem, suggestion
from cotenant.controller.client import Client, Refusal
from cotenant.controller.wire import GetPolicy
from cotenant.controller.wire import clients as wire

REPORT, OFF = "report", "off"
SIMULATED_WITHIN_S: Final = 600.0
LOOK_S: Final = 0.5


def chosen_shadow(client: Client, name: str, texts: list[str]) -> wire.SetShadow:
    """Raises Problem: no such policy or parameter."""
    offers = client.ask(GetPolicy()).offers
    offer = next((each for each in offers if each.policy == name and each.available), None)
    if offer is None:
        names = [each.policy for each in offers if each.available]
        near = suggestion(name, [*names, REPORT, OFF]) or f"there are {', '.join(names)}"
        raise Problem("usage", f"there is no policy {name!r} here", near)
    return wire.SetShadow(name=name, parameters=parameters_of(texts, offer.defaults))


def reported(client: Client, look_s: float = LOOK_S) -> wire.ShadowView:
    """With a simulation as of now, for those who may have one made."""
    try:
        view = client.ask(wire.GetShadow(simulate=True)).shadow
    except Refusal as refusal:
        if refusal.failure.code != "not-allowed":
            raise
        return client.ask(wire.GetShadow()).shadow
    if view.is_simulating:
        screen.tell(f"following what has happened ({view.behind_entries:,} behind), then simulating")
    until_s = time.monotonic() + SIMULATED_WITHIN_S
    while view.is_simulating and time.monotonic() < until_s:
        time.sleep(look_s)
        view = client.ask(wire.GetShadow()).shadow
    return view
