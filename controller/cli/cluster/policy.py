"""`cotenant policy`: show, set, and how the policies that there are look in a list. A change is journalled
and takes effect at once.
"""

from __future__ import annotations

import time
from typing import Annotated, Final, Literal

import click
import msgspec

from cotenant.controller.cli.frame import output
from cotenant.controller.cli.frame.command import argument, group, option
from cotenant.controller.cli.frame.completing import complete_policy
from cotenant.controller.client.asking import asking
from cotenant.controller.client.connection import Client, Refusal
from cotenant.controller.domain import texts as domain_texts
from cotenant.controller.present.fan_chart import fan_chart
from cotenant.controller.present.policies import page, state_lines
from cotenant.controller.present.problem import Problem, suggestion
from cotenant.controller.present.screen import paint, say, tell, wrap_text
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import value_text
from cotenant.controller.submission.parameters import parameters_of
from cotenant.controller.wire import clients as wire

REPORT, OFF = "report", "off"
SIMULATED_WITHIN_S: Final = 600.0
LOOK_S: Final = 0.5


@group(acts_alone=True)
def policy(context: click.Context) -> None:
    """List, show or set the policy that decides which job runs where. Alone: show it.

    \b
    For example:
      cotenant policy
      cotenant policy set castor
    """
    if context.invoked_subcommand is None:
        show_policy()


def show_policies(known: wire.Policies, form: output.Format) -> None:
    if form == "table":
        say(catalogue(domain_texts.escape_texts(known)))
        return
    output.show_listing(POLICIES.fill(known.offers), form)


POLICIES: Final = output.Listing(
    noun="policy",
    plural="policies",
    identity=lambda r: r.policy,
    columns=(
        Column("", lambda r: "*" if r.current else " "),
        Column("POLICY", lambda r: r.policy),
        Column("DEFAULTS", lambda r: _settings(r.defaults)),
        Column("ABOUT", lambda r: r.about),
        Column("WHEN TO CHOOSE IT", lambda r: r.choose),
    ),
)
OTHERS: Final = "Of other packages"


def catalogue(policies: wire.Policies) -> str:
    """A heading per group; for each policy, what it is and when to choose it."""
    width = 2 + max(len(each.policy) for each in policies.offers)
    lines = []
    for heading in (*policies.groups, ""):
        offers = [each for each in policies.offers if each.group == heading]
        lines += ["", paint(heading or OTHERS, "bold")] if offers and policies.groups else []
        for each in offers:
            mark = "*" if each.current else " "
            lines.append(f"{mark} {each.policy:<{width}}{wrap_text(each.about, width + 2)}")
            if each.choose and each.available:
                choose = wrap_text(f"when: {each.choose}", width + 2)
                lines.append(f"{'':<{width + 2}}{paint(choose, 'dim')}")
    return "\n".join(lines).removeprefix("\n")


@policy.part("show")
def show_policy(form: output.FormFlag = "table", endpoint: output.EndpointFlag = None) -> None:
    """The policy in force and its parameters."""
    with asking(endpoint) as client:
        reply = client.ask(wire.GetPolicy())
    output.show_one(form, reply.current, reply.current.policy, reply, page)


@policy.part("state")
def show_state(
    name: Annotated[
        str,
        argument(metavar="NAME", help="The policy, which has to be in force.", complete=complete_policy),
    ] = "",
    form: Annotated[
        Literal["table", "json", "svg"],
        option("--output", "-o", metavar="table|json|svg", help="svg: a fan chart of what is forecast."),
    ] = "table",
    endpoint: output.EndpointFlag = None,
) -> None:
    """What the policy in force remembers: what it has learned, or where it stands.

    Of gfs, gfs-rise and their like it is what they expect jobs of class hp to ask for, and what they
    therefore keep back from spot jobs.

    \b
    For example:
      cotenant policy state
      cotenant policy state gfs-rise -o svg > demand.svg
    """
    with asking(endpoint) as client:
        current = client.ask(wire.GetPolicy()).current
    classes, learned = current.classes, current.policy_state
    if name not in ("", current.policy):
        raise Problem(
            "failed", f"policy {name} is not in force, {current.policy} is", f"cotenant policy set {name}"
        )
    if classes is None and form == "svg":
        raise Problem(
            "failed", f"policy {current.policy} forecasts nothing", "cotenant policy set gfs-rise does"
        )
    if classes is None and not learned:
        raise Problem("failed", f"policy {current.policy} remembers nothing that it tells")
    if form == "svg" and classes is not None:
        say(fan_chart(classes))
    elif form == "json" and classes is not None:
        output.write_json(
            {"schema": "policy-forecast/1", "policy": current.policy, **msgspec.to_builtins(classes)}
        )
    elif form == "json":
        output.write_json({"schema": "policy-state/1", "policy": current.policy, "state": learned})
    else:
        say("\n".join(state_lines(domain_texts.escape_texts(current))))


def _settings(parameters: wire.Parameters) -> str:
    return " ".join(f"{key}={value_text(value)}" for key, value in sorted(parameters.items()))


def chosen_shadow(client: Client, name: str, texts: list[str]) -> wire.SetShadow:
    """Checks a choice of a shadow policy and makes the request for it. Raises Problem: no such policy or
    parameter."""
    offers = client.ask(wire.GetPolicy()).offers
    offer = next((each for each in offers if each.policy == name and each.available), None)
    if offer is None:
        names = [each.policy for each in offers if each.available]
        near = suggestion(name, [*names, REPORT, OFF]) or f"there are {', '.join(names)}"
        raise Problem("usage", f"there is no policy {name!r} here", near)
    return wire.SetShadow(name=name, parameters=parameters_of(texts, offer.defaults))


def ask_shadow(client: Client, look_s: float = LOOK_S) -> wire.ShadowView:
    """Asks for the shadow's report, with a simulation as of now, for those who may have one made."""
    try:
        view = client.ask(wire.GetShadow(simulate=True)).shadow
    except Refusal as refusal:
        if refusal.failure.code != "not-allowed":
            raise
        return client.ask(wire.GetShadow()).shadow
    if view.is_simulating:
        tell(f"following what has happened ({view.behind_entries:,} behind), then simulating")
    until_s = time.monotonic() + SIMULATED_WITHIN_S
    while view.is_simulating and time.monotonic() < until_s:
        time.sleep(look_s)
        view = client.ask(wire.GetShadow()).shadow
    return view
