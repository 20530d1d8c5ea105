"""`cotenant profile`: measure a command on 1, 2, 4, ... devices; what is known of kinds of jobs; forget it.

Rule: measuring is jobs like any other, queued and placed by the controller. The verb says their device time
before it queues them and after they have ended, and Ctrl-C ends those that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import click

from cotenant.controller.cli.frame import output
from cotenant.controller.cli.frame.command import Group, argument, group, option
from cotenant.controller.cli.jobs import profile_view
from cotenant.controller.cli.jobs.run import ensure_controller
from cotenant.controller.cli.jobs.submit import JobFlags, prepare_request
from cotenant.controller.client.asking import PATIENCE_S, asking
from cotenant.controller.client.profile_series import SeriesRun, plan_series
from cotenant.controller.domain import texts
from cotenant.controller.present import screen
from cotenant.controller.present.interruption import ended_by
from cotenant.controller.present.problem import FAILED, OK, Problem
from cotenant.controller.wire import clients as wire

MEASURE: Final = "measure"


class ProfileGroup(Group):
    """Whatever does not start with the name of a part is a command to measure."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [MEASURE, *args]
        return super().parse_args(ctx, args)


@group(ProfileGroup)
def profile() -> None:
    """Measure what a command needs, or see what is known of the ones that ran.

    \b
    For example:
      cotenant profile -- python train.py
      cotenant profile -g 4 -N 1 --batch-size 64 -- python train.py
      cotenant profile list
    """


@profile.part(MEASURE, passes_words=True)
def measure(
    command: Annotated[list[str] | None, argument(metavar="[--] CMD...", help="What to measure.")] = None,
    form: Annotated[str | None, option("-o", metavar="table|json", help="Format of the result.")] = None,
    as_json: output.JsonFlag = False,
    endpoint: output.EndpointFlag = None,
    *,
    flags: JobFlags,
) -> int:
    """Measure a command on 1, 2, 4, ... devices of a host, then over two hosts.

    Each is a job in the queue, with COTENANT_PROFILING=1 set, that shares with nobody, trains with its batch
    whole and in parts in turns, and ends when it has been measured; no device is emptied for it. -g and -N
    are upper limits here. Ctrl-C cancels what is left.
    """
    if form not in (None, "json", "table"):
        raise Problem("usage", f"profile has no format {form!r}", "formats are table and json")
    if {"array", "grid", "profile"} & flags.keys():
        raise Problem("usage", "--array, --grid and --profile make no sense here", "leave them out")
    limits = {key: flags.pop(key).value for key in ("gpus", "nodes") if key in flags}
    request = prepare_request(command or [], flags, endpoint, command_only=True)
    ensure_controller(endpoint)
    with asking(endpoint, patience_s=PATIENCE_S) as client:
        gpus = limits.get("gpus")
        plan = plan_series(
            client, request.specs[0], gpus_max=gpus and gpus.most, hosts_max=limits.get("nodes")
        )
        screen.tell(plan.announcement())
        run = SeriesRun(client, plan, request)
        completed = run.to_the_end()
        results = run.results()
    if as_json or form == "json":
        output.write_json(profile_view.series_json(plan, results))
    else:
        screen.say(profile_view.series_table(results))
        screen.tell(plan.account(results))
    if not completed:
        return ended_by()
    return OK if any(each.profile is not None and each.is_measured for each in results) else FAILED


@profile.part("list")
def list_profiles(form: output.FormFlag = "table", endpoint: output.EndpointFlag = None) -> None:
    """What is kept of jobs: a line for all that differ only in the numbers of their commands.

    -o wide has a line for each command, code, configuration and device type.
    """
    reply = _known_profiles(endpoint)
    _show_profiles(reply, reply.profiles, form)


def _show_profiles(reply: wire.KnownProfiles, rows: Sequence[wire.KnownProfile], form: output.Format) -> None:
    is_table = form == "table"
    listing = output.Listing(
        noun="known-profile",
        identity=lambda each: each.key,
        columns=profile_view.FAMILY_COLUMNS if is_table else profile_view.KNOWN_COLUMNS,
        nothing="no profiles are kept yet",
    )
    shown = profile_view.families_of(rows) if is_table else rows
    output.show_listing(listing.fill(shown, more=reply.more, profile_s=reply.profile_s), form)


@profile.part("show")
def show_profile(
    key: Annotated[str, argument(metavar="KEY", help="As `cotenant profile list` shows it.")],
    form: output.FormFlag = "table",
    endpoint: output.EndpointFlag = None,
) -> None:
    """Show a kept profile: its points, and every indicator with its source; of a family, each command."""
    reply = _known_profiles(endpoint)
    found = [each for each in reply.profiles if each.key.startswith(key)]
    family = [each for each in reply.profiles if each.family.startswith(key)]
    if not found and family:
        return _show_profiles(reply, family, "wide" if form == "table" else form)
    if len(found) != 1:
        raise Problem(
            "not-found" if not found else "usage",
            f"{'no' if not found else 'more than one'} profile starts with {key}",
            "`cotenant profile list` shows them",
        )
    one: wire.KnownProfile = found[0]
    output.show_one(form, one, one.key, one, profile_view.known_page)


@profile.part("forget")
def forget(
    keys: Annotated[
        list[str] | None,
        argument(metavar="KEY", help="As `cotenant profile list` shows them."),
    ] = None,
    everything: Annotated[bool, option("--all", help="All that are yours (an admin: all).")] = False,
    endpoint: output.EndpointFlag = None,
) -> None:
    """Forget profiles that are kept: the next job of the kind is measured anew."""
    if bool(keys) == everything:
        raise Problem("usage", "give keys, or --all", "`cotenant profile list` shows them")
    with asking(endpoint) as client:
        reply = client.ask(wire.ForgetProfiles(keys=tuple(keys or ())))
    for line in reply.lines or ("nothing was kept",):
        screen.say(texts.one_line(line))


def _known_profiles(endpoint: str | None) -> wire.KnownProfiles:
    with asking(endpoint) as client:
        return client.ask(wire.ListProfiles())
