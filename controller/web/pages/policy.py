"""Policy: the one in force, what it has learned, and what another one would do at once, before it is set.

Rule: nothing is set but by the form that comes with the preview, so that nobody sets what they have not seen
the consequence of. Who may set one the controller decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from cotenant.controller.present.fan_chart import fan_chart
from cotenant.controller.present.pairs import COLUMNS as PAIR_COLUMNS
from cotenant.controller.present.pairs import measured_pairs
from cotenant.controller.present.policies import classes_lines, describe_organisation
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.units import value_text
from cotenant.controller.submission.parameters import parameters_of
from cotenant.controller.web import rendering
from cotenant.controller.web.access import change
from cotenant.controller.web.page import Asking, Page, Params, surroundings
from cotenant.controller.wire import clients as wire

PAIRS_MAX: Final = 100
GIVEN_MAX: Final = 4_096
"""Characters of parameters."""


class LookedPolicy(NamedTuple):
    policies: wire.Policies
    pairs: wire.Pairs


def look(asks: Asking, params: Params) -> LookedPolicy:
    return LookedPolicy(asks.ask(wire.GetPolicy()), asks.ask(measured_pairs(PAIRS_MAX)))


class PolicySetting(NamedTuple):
    name: str
    value: str
    is_set: bool


def fill(looked: LookedPolicy, params: Params) -> Mapping[str, Any]:
    policies, current = looked.policies, looked.policies.current
    classes = current.classes
    return {
        "current": current,
        "settings": [
            PolicySetting(name, value_text(value), name in policies.given)
            for name, value in sorted(current.parameters.items())
        ],
        "classes": classes_lines(classes) if classes is not None else [],
        "chart": fan_chart(classes) if classes is not None and classes.pools else "",
        "organisations": [describe_organisation(each) for each in current.organisations or ()],
        "pairs": looked.pairs,
        "pair_columns": PAIR_COLUMNS,
        "groups": group_offers(policies),
        "wanted": params.get("name") or current.policy,
        "given": params.get("given"),
        "changed": params.get("changed"),
    }


def group_offers(policies: wire.Policies) -> Sequence[tuple[str, Sequence[Any]]]:
    """Groups the policies on offer as `policy list` has them."""
    found = [
        (heading, [each for each in policies.offers if each.group == heading])
        for heading in (*policies.groups, "")
    ]
    return [(heading or "Of other packages", offers) for heading, offers in found if offers]


# --- Another one ------------------------------------------------------------------------------------


class NotAPolicy(Exception):
    """What is wrong with the name or the parameters, for people."""


def chosen_parameters(policies: wire.Policies, name: str, given: str) -> wire.Parameters:
    """The parameters, in their types. Raises NotAPolicy."""
    offer = next((each for each in policies.offers if each.policy == name), None)
    if offer is None or not offer.available:
        raise NotAPolicy(f"there is no policy {name!r} here")
    try:
        return parameters_of(given[:GIVEN_MAX].split(), offer.defaults)
    except Problem as problem:
        raise NotAPolicy(problem.sentence) from None


async def preview(request: Request) -> Response:
    """What it would do at once, and the question."""
    name, given = request.query_params.get("name", ""), request.query_params.get("given", "")
    try:
        told = await request.app.state.connections.ask(lambda asks: ask_preview(asks, name, given))
    except NotAPolicy as error:
        return _template_response(request, "policy_wrong", 400, name=name, given=given, wrong=str(error))
    return _template_response(request, "policy_preview", 200, told=told, name=name, given=given)


def ask_preview(asks: Asking, name: str, given: str) -> wire.PolicyPreview:
    parameters = chosen_parameters(asks.ask(wire.GetPolicy()), name, given)
    return asks.ask(wire.PreviewPolicy(name=name, parameters=parameters)).preview


async def act(request: Request, fields: Mapping[str, str]) -> Response:
    name, given = fields.get("name", ""), fields.get("given", "")

    def set_it(asks: Asking) -> None:
        asks.ask(
            wire.SetPolicy(name=name, parameters=chosen_parameters(asks.ask(wire.GetPolicy()), name, given))
        )

    try:
        await request.app.state.connections.ask(set_it)
    except NotAPolicy as error:
        return _template_response(request, "policy_wrong", 400, name=name, given=given, wrong=str(error))
    return RedirectResponse(f"/policy?{urlencode({'changed': name})}", 303)


def _template_response(request: Request, template: str, status: int, **told: Any) -> Response:
    return HTMLResponse(rendering.whole(template, {**surroundings(request, PAGE), **told}), status)


PAGE: Final = Page(
    name="policy",
    title="Policy",
    path="/policy",
    look=look,
    fill=fill,
    parts=("current", "state"),
    every_s=5.0,
    routes=(Route("/policy/preview", preview), change("/policy/set", act)),
)
