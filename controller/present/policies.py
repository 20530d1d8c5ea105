"""A policy as text: its parameters, its classes with their forecasts, and what it would do at once."""

from __future__ import annotations

from cotenant.controller.domain import ClassReport, PoolReport
from cotenant.controller.present.screen import wrap_text
from cotenant.controller.present.units import duration, plural, value_text
from cotenant.controller.wire import clients as wire


def page(reply: wire.Policies) -> str:
    current = reply.current
    lines = [f"{current.policy}: {current.about}".rstrip(": ")]
    width = max(map(len, current.parameters), default=0)
    for key, value in sorted(current.parameters.items()):
        own = "" if key not in reply.given else "  (set)"
        lines.append(f"  {key:<{width}}  {value_text(value)}{own}")
    if found := state_lines(current):
        lines += ["", *found]
    if current.organisations:
        lines += ["", *map(describe_organisation, current.organisations)]
    return "\n".join(lines)


def state_lines(current: wire.PolicyView) -> list[str]:
    """What the policy remembers; a paragraph of what it has learned, one of its classes."""
    learned = [f"{name}: {text}" for name, text in current.policy_state.items()]
    if current.classes is None:
        return learned
    return [*learned, *([""] if learned else []), *classes_lines(current.classes)]


def describe_organisation(organisation: wire.OrganisationView) -> str:
    quota = organisation.quota_devices
    of_quota = f" of {quota} that they may hold" if quota is not None else ""
    bound = f", max={organisation.share_max:g}" if organisation.share_max is not None else ""
    return (
        f"organisation {organisation.name}: class {organisation.job_class}{bound} by default; "
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
    lines = [kept, gave_way]
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


def preview_text(told: wire.PolicyPreview) -> str:
    lines = [
        f"  {each.what}: job {each.job_id} ({each.name})\n    {wrap_text(each.reason, 4)}"
        for each in told.actions
    ]
    more = [f"  and {plural(told.more, 'action')} more: --json"] if told.more else []
    head = (
        f"policy {told.policy} would at once:" if lines else f"policy {told.policy} would do nothing at once"
    )
    tail = f"nothing has been changed; {plural(told.queued, 'job')} wait now"
    return "\n".join([head, *lines, *more, tail])
