"""`cotenant policy`: show, set, and how the policies that there are look in a list. A change is journalled
and takes effect at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import click
import msgspec

from cotenant.controller.cli.frame import output
from cotenant.controller.cli.frame.asking import asking, complete_policy
from cotenant.controller.cli.frame.command import argument, group, option
from cotenant.controller.cli.frame.output import (
    EndpointFlag,
    Format,
    JsonFlag,
    Listing,
    OutputFlag,
    chosen,
    show_listing,
    show_one,
    write_json,
)
from cotenant.controller.cli.frame.screen import paint, say, tell, wrapped
from cotenant.controller.client import Client, Refusal
from cotenant.controller.domain import ClassReport, PoolReport
from cotenant.controller.domain import texts as domain_texts
from cotenant.controller.present.fan_chart import fan_chart
from cotenant.controller.present.problem import Problem, suggestion
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import duration, plural, value_text
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


def show_policies(known: wire.Policies, form: Format) -> None:
    if form == "table":
        say(catalogue(domain_texts.for_people(known)))
        return
    listing = Listing(
        noun="policy",
        plural="policies",
        rows=known.offers,
        identity=lambda r: r.policy,
        columns=COLUMNS,
    )
    show_listing(listing, form)


COLUMNS: Final = (
    Column("", lambda r: "*" if r.current else " "),
    Column("POLICY", lambda r: r.policy),
    Column("DEFAULTS", lambda r: _settings(r.defaults)),
    Column("ABOUT", lambda r: r.about),
    Column("WHEN TO CHOOSE IT", lambda r: r.choose),
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
            lines.append(f"{mark} {each.policy:<{width}}{wrapped(each.about, width + 2)}")
            if each.choose and each.available:
                choose = wrapped(f"when: {each.choose}", width + 2)
                lines.append(f"{'':<{width + 2}}{paint(choose, 'dim')}")
    return "\n".join(lines).removeprefix("\n")


@policy.part("show")
def show_policy(output: OutputFlag = None, as_json: JsonFlag = False, endpoint: EndpointFlag = None) -> None:
    """The policy in force and its parameters."""
    form = chosen(output, as_json)
    with asking(endpoint) as client:
        reply = client.ask(wire.GetPolicy())
    show_one(form, reply.current, reply.current.policy, reply, page)


def page(reply: wire.Policies) -> str:
    current = reply.current
    lines = [f"{current.policy}: {current.about}".rstrip(": ")]
    width = max(map(len, current.parameters), default=0)
    for key, value in sorted(current.parameters.items()):
        own = "" if key not in reply.given else "  (set)"
        lines.append(f"  {key:<{width}}  {value_text(value)}{own}")
    if current.policy_state:
        lines += ["", *(f"{name}: {text}" for name, text in current.policy_state.items())]
    if current.classes is not None:
        lines += classes_lines(current.classes)
    if current.organisations:
        lines += ["", *map(in_words, current.organisations)]
    return "\n".join(lines)


def in_words(organisation: wire.OrganisationView) -> str:
    quota = organisation.quota_devices
    of_quota = f" of {quota} that they may hold" if quota is not None else ""
    return (
        f"organisation {organisation.name}: class {organisation.job_class} by default; "
        f"its spot jobs have {plural(organisation.spot_devices, 'device')}{of_quota}"
    )


def classes_lines(classes: ClassReport) -> list[str]:
    """The quota of spot jobs, and what it rests on."""
    kept = (
        f"a spot job's run is guaranteed {classes.guaranteed_h:g} h, with a probability of {classes.level:g}"
    )
    ended = classes.evicted + classes.finished
    gave_way = (
        f"  {classes.evicted} of {plural(ended, 'run')} gave way to hp jobs; of the jobs listed now "
        f"{plural(classes.broken_promises, 'promise')} broken"
    )
    lines = ["", kept, gave_way]
    for pool in classes.pools:
        eta = "" if classes.eta is None else f", eta {classes.eta:.2f}"
        lines.append(
            f"  {pool.device_type}: {pool.capacity} devices, {pool.free} free; hp has {pool.hp_placed} and "
            f"waits for {pool.hp_waiting}; spot may take {pool.spot_may_take} more and waits for "
            f"{pool.spot_waiting}, {pool.kept_back} are kept back{eta}"
        )
        if pool.forecast_upper:
            hours = ", ".join(
                f"{median:.0f} to {upper:.0f}"
                for median, upper in zip(pool.forecast_median, pool.forecast_upper, strict=True)
            )
            lines.append(f"    hp demand of this hour and the next, median to {classes.level:g}: {hours}")
        lines.append(f"    forecast: {forecast_in_words(pool)}")
    return lines


def forecast_in_words(pool: PoolReport) -> str:
    """Which model forecasts, since when, and what to know of it."""
    model = pool.forecast_model
    if model and pool.forecast_age_s is not None:
        model += f", since {duration(pool.forecast_age_s)} ago"
    return "; ".join(filter(None, (model, pool.forecast_note))) or "by a trained model"


@policy.part("forecast")
def show_forecast(
    output: Annotated[
        Literal["table", "json", "svg"],
        option("--output", "-o", metavar="table|json|svg", help="svg: a fan chart, on standard output."),
    ] = "table",
    endpoint: EndpointFlag = None,
) -> None:
    """What the policy expects jobs of class hp to ask for, and what it therefore keeps back from spot jobs.

    \b
    For example:
      cotenant policy forecast
      cotenant policy forecast -o svg > demand.svg
    """
    with asking(endpoint) as client:
        current = client.ask(wire.GetPolicy()).current
    classes = current.classes
    if classes is None:
        raise Problem(
            "failed", f"policy {current.policy} forecasts nothing", "cotenant policy set gfs-rise does"
        )
    if output == "json":
        write_json({"schema": "policy-forecast/1", "policy": current.policy, **msgspec.to_builtins(classes)})
    elif output == "svg":
        say(fan_chart(classes))
    else:
        say("\n".join(classes_lines(domain_texts.for_people(classes)))[1:])


@policy.part("set")
def set_policy(
    name: Annotated[
        str,
        argument(metavar="NAME", help="One of `cotenant policy list`.", complete=complete_policy),
    ],
    parameters: Annotated[list[str] | None, argument(metavar="KEY=VALUE", help="Its parameters.")] = None,
    preview: Annotated[
        bool, option("--preview", help="Change nothing: say what it would do at once.")
    ] = False,
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> None:
    """Change the policy, or its parameters; what runs is not touched by the change itself.

    \b
    For example:
      cotenant policy set srtf
      cotenant policy set castor ageing_s=3600
      cotenant policy set srtf --preview
    """
    with asking(endpoint) as client:
        known = client.ask(wire.GetPolicy())
        offer = next((each for each in known.offers if each.policy == name), None)
        if offer is None:
            names = [each.policy for each in known.offers if each.available]
            near = suggestion(name, names) or f"there are {', '.join(names)}"
            raise Problem("usage", f"there is no policy {name!r}", near)
        if not offer.available:
            lacks = offer.about.removeprefix(wire.NOT_AVAILABLE)
            raise Problem("usage", f"policy {name} is not available", lacks)
        given = parameters_of(parameters or (), offer.defaults)
        if preview:
            told = client.ask(wire.PreviewPolicy(name=name, parameters=given)).preview
            show_one("json" if as_json else "table", told, name, told, previewed)
            return
        reply = client.ask(wire.SetPolicy(name=name, parameters=given))
        after = client.ask(wire.GetPolicy())
    if as_json:
        before = {"policy": known.current.policy, "parameters": known.current.parameters}
        output.write_json({**msgspec.to_builtins(after.current), "before": before})
        return
    for line in reply.lines or (page(domain_texts.for_people(after)),):
        say(line)


def previewed(told: wire.PolicyPreview) -> str:
    lines = [
        f"  {each.what}: job {each.job_id} ({each.name})\n    {wrapped(each.reason, 4)}"
        for each in told.actions
    ]
    more = [f"  and {plural(told.more, 'action')} more: --json"] if told.more else []
    head = (
        f"policy {told.policy} would at once:" if lines else f"policy {told.policy} would do nothing at once"
    )
    tail = f"nothing has been changed; {plural(told.queued, 'job')} wait now"
    return "\n".join([head, *lines, *more, tail])


def parameters_of(texts: Sequence[str], known: wire.Parameters) -> wire.Parameters:
    """Raises Problem."""
    given: wire.Parameters = {}
    for text in texts:
        key, value = _parameter(text, known)
        if key in given:
            raise Problem("usage", f"{key} is given twice", "leave one out")
        given[key] = value
    return given


def _parameter(text: str, known: wire.Parameters) -> tuple[str, str | int | float | bool]:
    """A parameter in the type of its default."""
    key, equals, value = text.partition("=")
    if not equals:
        raise Problem("usage", f"{text!r} is not KEY=VALUE")
    if key not in known:
        near = suggestion(key, known) or (f"it has {', '.join(sorted(known))}" if known else "it has none")
        raise Problem("usage", f"the policy has no parameter {key!r}", near)
    kind = type(known[key])
    try:
        if kind is bool:
            return key, {"true": True, "false": False}[value.lower()]
        number = kind(value)
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError
        return key, number
    except (ValueError, KeyError):
        words = {bool: "true or false", int: "a whole number", float: "a number"}
        raise Problem("usage", f"{key} must be {words.get(kind, 'text')}, got {value!r}") from None


def _settings(parameters: wire.Parameters) -> str:
    return " ".join(f"{key}={value_text(value)}" for key, value in sorted(parameters.items()))


def chosen_shadow(client: Client, name: str, texts: list[str]) -> wire.SetShadow:
    """Raises Problem: no such policy or parameter."""
    offers = client.ask(wire.GetPolicy()).offers
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
        tell(f"following what has happened ({view.behind_entries:,} behind), then simulating")
    until_s = time.monotonic() + SIMULATED_WITHIN_S
    while view.is_simulating and time.monotonic() < until_s:
        time.sleep(look_s)
        view = client.ask(wire.GetShadow()).shadow
    return view
