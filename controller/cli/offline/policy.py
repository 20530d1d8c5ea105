"""`cotenant policy list`: of the controller that answers, else of this installation; `policy set`;
`policy train NAME` and `policy tune NAME`: what a policy's entry has for that word (`PolicyEntry.tools`);
`policy shadow`: another policy decides beside the one in force, and what would have been.

The other parts of `policy` ask a controller and are in `cluster/policy.py`; these compute by themselves, or
show what was computed as `sim` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import click
import msgspec

from cotenant.controller.cli.cluster import policy as asked
from cotenant.controller.cli.cluster.policy import OFF, REPORT, ask_shadow, chosen_shadow
from cotenant.controller.cli.frame import output
from cotenant.controller.cli.frame.command import Group, VerbCommand, argument, command, group, option
from cotenant.controller.cli.frame.completing import complete_policy
from cotenant.controller.cli.offline.files import contents
from cotenant.controller.client.asking import asking
from cotenant.controller.domain import texts as domain_texts
from cotenant.controller.policies import registry
from cotenant.controller.policies.plugins import is_path, load_from
from cotenant.controller.present import screen, units
from cotenant.controller.present.policies import page, preview_text
from cotenant.controller.present.problem import Problem, suggestion
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import duration, local_time
from cotenant.controller.submission.parameters import parameters_of
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import wall_s

LAST_SHOWN: Final = 10
CONFIG: Final = "config="
KINDS: Final = {
    "starts": "it would have started a job that was kept waiting",
    "waits": "it would have kept waiting a job that was started",
    "elsewhere": "it would have put a job on other devices, or beside others",
    "preempts": "it would have preempted a job that went on",
    "keeps": "it would have let a job go on that was preempted",
}

policy = asked.policy


@policy.part("set")
def set_policy(
    name: Annotated[
        str,
        argument(metavar="NAME", help="One of `cotenant policy list`.", complete=complete_policy),
    ],
    parameters: Annotated[
        list[str] | None,
        argument(metavar="KEY=VALUE", help="Its parameters; config=FILE#NAME: those of a file of its form."),
    ] = None,
    preview: Annotated[
        bool, option("--preview", help="Change nothing: say what it would do at once.")
    ] = False,
    as_json: output.JsonFlag = False,
    endpoint: output.EndpointFlag = None,
) -> None:
    """Change the policy, or its parameters; what runs is not touched by the change itself.

    \b
    For example:
      cotenant policy set srtf
      cotenant policy set castor ageing_s=3600
      cotenant policy set srtf --preview
      cotenant policy set pcs config=front.json#p03
    """
    read, words = read_files(name, parameters or ())
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
        given = {**read, **parameters_of(words, offer.defaults)}
        if preview:
            told = client.ask(wire.PreviewPolicy(name=name, parameters=given)).preview
            output.show_one("json" if as_json else "table", told, name, told, preview_text)
            return
        reply = client.ask(wire.SetPolicy(name=name, parameters=given))
        after = client.ask(wire.GetPolicy())
    if as_json:
        before = {"policy": known.current.policy, "parameters": known.current.parameters}
        output.write_json({**msgspec.to_builtins(after.current), "before": before})
        return
    for line in reply.lines or (page(domain_texts.escape_texts(after)),):
        screen.say(line)


def read_files(policy: str, words: Sequence[str]) -> tuple[wire.Parameters, list[str]]:
    """The parameters in the files that are named (`config=FILE#NAME`), and the other words.

    Raises:
        Problem: there is no such file, or it has another form than the policy's own.
    """
    files = [word for word in words if word.startswith(CONFIG)]
    read = registry.find(policy).from_file if files and registry.is_ours(policy) else None
    if read is None:
        return {}, [*words]
    found: wire.Parameters = {}
    for word in files:
        path, _, name = word.removeprefix(CONFIG).partition("#")
        try:
            found |= read(json.loads(contents(path)), name)
        except (UnicodeDecodeError, RecursionError, ValueError) as error:
            raise Problem("usage", f"{path}: {error}") from None
    return found, [word for word in words if word not in files]


@policy.part("list")
def list_policies(form: output.FormFlag = "table", endpoint: output.EndpointFlag = None) -> None:
    """The policies there are, and when to choose which; the one in force is marked.

    Where no controller answers, those that are installed here are listed, and none is marked. -o wide is a
    table, with the parameters that each takes.

    \b
    For example:
      cotenant policy list
      cotenant policy list -o wide
    """
    try:
        with asking(endpoint) as client:
            known = client.ask(wire.GetPolicy())
    except Problem as problem:
        if problem.code != "unreachable" or endpoint:
            raise
        known = installed_policies()
        screen.tell("no controller answers: these policies are installed here, and none is in force")
    asked.show_policies(known, form)


def installed_policies() -> wire.Policies:
    """The policies as a controller of this installation would offer them; none is in force."""
    offers = wire.policy_offers(
        available=registry.available(),
        unavailable=registry.unavailable(),
        defaults=registry.defaults,
        heading=registry.heading,
    )
    nothing = wire.PolicyView(policy="", about="", parameters={})
    return wire.Policies(request_id=0, current=nothing, given={}, offers=offers, groups=registry.GROUPS)


@policy.part("shadow")
def shadow(
    words: Annotated[
        list[str] | None,
        argument(metavar="NAME [KEY=VALUE...]|report|off", help="See above.", complete=complete_policy),
    ] = None,
    form: output.FormFlag = "table",
    endpoint: output.EndpointFlag = None,
) -> None:
    """Let another policy decide beside the one in force, and say what would have been. Nothing is changed.

    NAME begins it: from then on it is asked about everything that happens, in a process of its own, with a
    tenth of a core at most; it outlives restarts. Alone: what is known by now. `report` has the time since
    its beginning simulated as well, under both policies. `off` ends it.

    The decisions are about the cluster as the policy in force has made it; had its own been followed, others
    would have come. That is what the simulation is for, and how far it can be trusted is said first: by how
    much it misses what happened under the policy in force.

    \b
    For example:
      cotenant policy shadow castor ageing_s=3600
      cotenant policy shadow report
      cotenant policy shadow off
    """
    first, *more = words or [""]
    if first in ("", REPORT):
        if more:
            raise Problem("usage", f"{more[0]!r} means nothing behind {first}")
        with asking(endpoint) as client:
            view = ask_shadow(client) if first else client.ask(wire.GetShadow()).shadow
        output.show_one(form, view, view.policy, view, lambda shown: shadow_page(shown, wide=form == "wide"))
        return
    with asking(endpoint) as client:
        request = wire.SetShadow() if first == OFF and not more else chosen_shadow(client, first, more)
        reply = client.ask(request)
    asked = {"policy": request.name, "parameters": request.parameters}
    output.show_change("shadow", asked, reply.lines, "asked for", form == "json")


def shadow_page(view: wire.ShadowView, *, wide: bool) -> str:
    return "\n".join([*_head(view), *_decisions(view), *_simulation_lines(view, wide=wide)])


def _head(view: wire.ShadowView) -> Iterator[str]:
    followed = "nothing yet" if view.followed_to is None else f"up to {local_time(wall_s(view.followed_to))}"
    yield (
        f"{label(view)} decides beside {view.in_force} since {local_time(wall_s(view.since))} (set by "
        f"{view.set_by}); followed {followed}"
    )
    if view.behind_entries:
        yield f"  {view.behind_entries:,} behind the end of the journal"
    if view.error:
        yield f"  the last attempt to follow failed: {screen.wrap_text(view.error, 2)}"
    if view.failed:
        yield f"  the policy failed and is no longer asked: {screen.wrap_text(view.failed, 2)}"
    if view.unfollowed:
        yield f"  {view.unfollowed} entries did not come out as recorded: do not rely on the rest"


def _decisions(view: wire.ShadowView) -> Iterator[str]:
    yield f"{units.plural(view.decisions, 'decision')}, {view.alike} alike"
    for kind, count in sorted(view.differing.items(), key=lambda each: (-each[1], each[0])):
        yield f"  {count:>5}  {KINDS.get(kind, kind)}"
    if view.sooner_mean_s is not None:
        jobs = units.plural(view.sooner_jobs, "job")
        yield f"  {jobs} would have started sooner, by {duration(view.sooner_mean_s)} on average"
    if view.last:
        yield "the last that differ"
        yield screen.table(COLUMNS, view.last[:LAST_SHOWN], screen.terminal_width())


def _simulation_lines(view: wire.ShadowView, *, wide: bool) -> Iterator[str]:
    found = view.simulated
    if view.is_simulating:
        yield "a simulation is being made; `cotenant policy shadow` shows it when it is there"
    elif view.why_not:
        yield f"not simulated: {screen.wrap_text(view.why_not, 2)}"
    elif found is None:
        yield "not simulated yet: `cotenant policy shadow report` (admins)"
    if found is None:
        return
    from cotenant.controller.whatif import table as sim_table
    from cotenant.controller.whatif.journal import trust

    yield f"simulated: {units.plural(found['jobs'], 'job')} that arrived since and have ended"
    yield f"  {screen.wrap_text(trust(found['calibration'], view.in_force), 2)}"
    width = None if wide else screen.terminal_width()
    yield sim_table.table([found["actual"], *found["runs"]], wide=wide, width=width)
    yield from (f"  {screen.wrap_text(f'note: {note}', 2)}" for note in found["notes"])


def label(view: wire.ShadowView) -> str:
    given = ",".join(f"{key}={units.value_text(value)}" for key, value in sorted(view.parameters.items()))
    return f"{view.policy}:{given}" if given else view.policy


def _what(text: str) -> str:
    return text or "nothing"


COLUMNS: Final[tuple[Column, ...]] = (
    Column("AT", lambda row: local_time(wall_s(row.decided_at))),
    Column("JOB", lambda row: row.job_id),
    Column("IN FORCE", lambda row: _what(row.done), limit=40),
    Column("SHADOW", lambda row: _what(row.instead), limit=40),
    Column("REASON", lambda row: row.reason),
)


# --- The tools of policies ----------------------------------------------------------------------------


class Tools(Group):
    """`policy WORD NAME`: a part for each policy whose entry has a tool of this word. Only the named policy,
    and its tool, are imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, entry in registry.ours().items() if self.name in entry.tools]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Raises Problem: there is no such policy, or it has no such tool."""
        tools = registry.find(cmd_name).tools if registry.is_ours(cmd_name) else {}
        place = tools.get(str(self.name))
        if place is not None:
            return command(load_from(place), cmd_name) if is_path(place) else elsewhere(cmd_name, place)
        if ctx.resilient_parsing or cmd_name.startswith("-"):
            return None
        names = self.list_commands(ctx)
        near = suggestion(cmd_name, names) or f"those that have one: {', '.join(names) or 'none'}"
        raise Problem("usage", f"there is no `policy {self.name}` for {cmd_name!r}", near)


def elsewhere(name: str, line: str) -> VerbCommand:
    """The part for a tool that is no part of what is installed: it says which command line does it."""

    def act() -> None:
        raise Problem("refused", f"this is done in cotenant's repository, not here ({name})", f"`{line}`")

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return VerbCommand(name, context_settings=anything, callback=act, help=f"In the repository: `{line}`.")


@group(Tools)
def train() -> None:
    """Train what a policy goes by: a model of its own, from your data. NAME is one of those below.

    \b
    For example:
      cotenant policy train rltune --help
    """


@group(Tools)
def tune() -> None:
    """Find good parameters for a policy on your workload. NAME is one of those below.

    \b
    For example:
      cotenant policy tune --help
    """


for tools in (train, tune):
    tools.subcommand_metavar = "NAME [OPTIONS]..."
    policy.add_command(tools)
