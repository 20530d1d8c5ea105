"""What-if: this cluster's last days under other policies, as the command `whatif` tells it.

Rule: how far the policy of the time, simulated, is from what happened stands above all else: it is the only
measure of trust in the rest. The journal is read where this server runs; nothing is changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from cotenant.controller.present import tables, units
from cotenant.controller.web import access, page, simulations
from cotenant.controller.wire import clients as wire

SINCE: Final = {"1d": "the last day", "7d": "the last 7 days", "30d": "the last 30 days", "": "all there is"}
POLICIES_MAX: Final = 8
GPUS_MAX: Final = 100_000


class LookedSimulations(NamedTuple):
    policies: wire.Policies
    journal: str
    newest: tuple[simulations.Simulated, ...]


def look(asks: page.Asking, params: page.Params) -> LookedSimulations:
    return LookedSimulations(asks.ask(wire.GetPolicy()), journal_of(asks), asks.simulations.newest())


def journal_of(asks: page.Asking) -> str:
    said = asks.ask(wire.GetStatus()).journal
    return said.rpartition(",")[0] or said


# --- What is shown ----------------------------------------------------------------------------------


class ShownSimulation(NamedTuple):
    """A simulation, as a template wants it."""

    simulated: simulations.Simulated
    began: str
    share_done: float | None
    columns: list[tables.Column]
    asked: str


def fill(looked: LookedSimulations, params: page.Params) -> Mapping[str, Any]:
    offers = [each for each in looked.policies.offers if each.available]
    newest = [one(each) for each in looked.newest]
    return {
        "newest": newest,
        "is_busy": any(not each.simulated.is_over for each in newest[:1]),
        "policies": [each.policy for each in offers],
        "in_force": looked.policies.current.policy,
        "since": SINCE,
        "journal": looked.journal,
        "is_here": os.access(looked.journal, os.R_OK),
        "refused": params.get("refused"),
    }


def one(simulated: simulations.Simulated) -> ShownSimulation:
    said = [
        simulated.asked.policies.replace(",", ", ") or "the policy of the time alone",
        SINCE.get(simulated.asked.since, simulated.asked.since),
    ]
    if simulated.asked.add_gpus:
        said.append(f"also with {simulated.asked.add_gpus} more GPUs")
    return ShownSimulation(
        simulated=simulated,
        began=units.local_time(simulated.began_wall_s),
        share_done=simulated.said.finished / simulated.said.total if simulated.said.total else None,
        columns=[column(number, title) for number, title in enumerate(simulated.said.titles)],
        asked="; ".join(said),
    )


def column(number: int, title: str) -> tables.Column:
    return tables.Column(title, lambda row: row[number], right=number > 0)


# --- Asking for one ---------------------------------------------------------------------------------


def asked_in(fields: Mapping[str, str], journal: str) -> simulations.WhatIf | None:
    """The simulation that a form's fields ask for; None: a field is not one of ours."""
    names = [name.removeprefix("policy-") for name in fields if name.startswith("policy-")]
    gpus, since = fields.get("add_gpus") or "0", fields.get("since", "")
    if not (gpus.isascii() and gpus.isdigit() and int(gpus) <= GPUS_MAX) or since not in SINCE:
        return None
    if len(names) > POLICIES_MAX or not all(name.replace("-", "").isalnum() for name in names):
        return None
    return simulations.WhatIf(journal=journal, policies=",".join(names), since=since, add_gpus=int(gpus))


async def act(request: Request, fields: Mapping[str, str]) -> Response:
    def start(asks: page.Asking) -> bool:
        asked = asked_in(fields, journal_of(asks))
        return asked is not None and asks.simulations.start(asked)

    started = await request.app.state.connections.ask(start)
    return RedirectResponse("/what-if" if started else "/what-if?refused=yes", 303)


PAGE: Final = page.Page(
    name="what_if",
    title="What-if",
    path="/what-if",
    look=look,
    fill=fill,
    parts=("results",),
    routes=(access.change("/what-if/start", act),),
)
