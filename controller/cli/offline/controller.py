"""`cotenant controller`: the controller alone, as on a cluster; who leads; and where its journal is kept."""

from __future__ import annotations

import time
from typing import Annotated, Final

import click

from cotenant.controller.cli.frame.command import argument, group, option
from cotenant.controller.cli.frame.output import EndpointFlag, JsonFlag, OutputFlag, chosen_format, show_one
from cotenant.controller.cli.setup import up
from cotenant.controller.client.asking import asking, loaded_settings
from cotenant.controller.client.connection import Client
from cotenant.controller.present.controllers import page
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.screen import say, tell
from cotenant.controller.system import paths
from cotenant.controller.wire import clients as wire

HAND_OVER_S: Final = 30.0
LOOK_S: Final = 0.2
TELL_EVERY_S: Final = 2.0


@group(acts_alone=True)
def controller(
    context: click.Context,
    endpoint: Annotated[
        str | None, option("--endpoint", metavar="URL", help="ipc:///PATH or tcp://HOST:PORT.")
    ] = None,
    state_dir: up.StateDirFlag = None,
    keys_dir: up.KeysFlag = None,
    idle_exit: up.IdleExitFlag = None,
    predictor: up.PredictorFlag = None,
    standby: Annotated[
        bool, option("--standby", help="Follow the one that leads, and take over when it is gone.")
    ] = False,
) -> None:
    """The controller alone, in the foreground. One per cluster, its journal on a local disk; with a journal
    in PostgreSQL a second one may follow it.

    \b
    For example:
      cotenant controller --endpoint tcp://0.0.0.0:7070 --keys-dir /etc/cotenant/keys
      cotenant controller --standby     on each of two hosts; one leads, the other follows
      cotenant controller status
    """
    if context.invoked_subcommand is not None:
        return
    up.become(
        up.CONTROLLER,
        {
            "controller.endpoint": endpoint,
            "controller.state_dir": state_dir,
            "controller.keys_dir": keys_dir,
            "controller.idle_exit_s": up.idle_seconds(idle_exit),
            "controller.predictor": up.model_file(predictor),
        },
        *(["--standby"] if standby else []),
    )


@controller.part("status")
def status(output: OutputFlag = None, as_json: JsonFlag = False, endpoint: EndpointFlag = None) -> None:
    """Who leads, since when and why, and how far a standby is behind."""
    form = chosen_format(output, as_json)
    with asking(endpoint) as client:
        found = client.ask(wire.GetControllers())
    show_one(form, found, identity=found.leader or "", of=found, page=page)


@controller.part("hand-over")
def hand_over(endpoint: EndpointFlag = None) -> None:
    """Let a standby lead, before maintenance of the host that leads now. No request fails and no job notices;
    the one that led follows from then on, and can be stopped."""
    with asking(endpoint) as client:
        before = client.ask(wire.GetControllers())
        for line in client.ask(wire.HandOver()).lines:
            say(line)
        after = leader_after(client, before)
    say(f"{after.leader} leads")


def leader_after(client: Client, before: wire.ControllersView) -> wire.ControllersView:
    """Waits until another controller leads. Raises Problem: none has within half a minute."""
    deadline_s = time.monotonic() + HAND_OVER_S
    while time.monotonic() < deadline_s:
        found = client.ask(wire.GetControllers())
        if found.leader and found.term > before.term:
            return found
        time.sleep(LOOK_S)
    raise Problem(
        "failed", f"nobody leads after {HAND_OVER_S:g} s", "look at `cotenant controller status` and the logs"
    )


@controller.part("migrate")
def migrate(
    journal: Annotated[
        str, argument(metavar="[JOURNAL]", help="postgresql://... (default: controller.journal).")
    ] = "",
) -> None:
    """Make the tables of a journal in PostgreSQL, or take them along to this version. Running it again
    changes nothing.

    \b
    For example:
      cotenant controller migrate postgresql://cotenant@db/cotenant
    """
    from cotenant.controller.store import JournalError, PostgresDatabase
    from cotenant.controller.whatif.problems import journal_problem

    place = journal or loaded_settings().settings.controller.journal
    if not place:
        raise Problem(
            "usage",
            "a journal in a file needs no migration",
            "name postgresql://...",
        )
    try:
        say(f"{place}: {PostgresDatabase(place).migrate()}")
    except JournalError as error:
        raise journal_problem(error, named=False) from None


@controller.part("copy")
def copy(
    source: Annotated[str, argument(metavar="FROM", help="A state folder, or postgresql://...")],
    target: Annotated[str, argument(metavar="TO", help="The same, and empty.")],
) -> None:
    """Copy a journal to another place, while no controller runs on either. Every checksum is checked; what is
    cut off goes on where it was when you run it again.

    \b
    For example:
      cotenant controller copy /var/lib/cotenant/controller postgresql://cotenant@db/cotenant
    """
    from cotenant.controller.store import JournalError, copy_journal, open_database, place_of
    from cotenant.controller.whatif.problems import journal_problem

    told_s = time.monotonic()

    def progress(table: str, done: int, total: int) -> None:
        nonlocal told_s
        if time.monotonic() - told_s >= TELL_EVERY_S:
            told_s = time.monotonic()
            tell(f"{table}: {done:,} of {total:,} rows")

    try:
        count = copy_journal(open_database(place_of(source)), open_database(place_of(target)), progress)
    except JournalError as error:
        raise journal_problem(error, named=False) from None
    say(f"{target} holds all of {source}: {count:,} entries, every checksum right")


@controller.part("archive")
def archive() -> None:
    """Move entries of the journal that are older than `controller.keep_days` into compressed files in the
    state folder, one for 30 days, and free their space. Controllers may run meanwhile. `sim replay`, `whatif`
    and a start find the entries there; keep the files with your backups.

    \b
    For example:
      cotenant controller archive                                        once a month, from cron
      COTENANT_CONTROLLER__KEEP_DAYS=100 cotenant controller archive    more of them
    """
    from cotenant.controller.store import JournalError, archive_journal, open_database
    from cotenant.controller.whatif.problems import journal_problem

    settings = loaded_settings().settings
    folder, days = paths.controller_state_dir(settings), settings.controller.keep_days
    try:
        place = open_database(paths.controller_journal(settings))
        done = archive_journal(place, folder, time.time() - days * 86_400.0)
    except JournalError as error:
        raise journal_problem(error, named=False) from None
    for file in done.files:
        size_mb = file.path.stat().st_size / 1e6
        say(f"{file.path}: entries {file.first_seq:,} to {file.last_seq:,}, {size_mb:.1f} MB")
    if not done.files:
        say(f"no entry that could leave the journal is older than {days:g} days")
    if not done.is_freed:
        tell("a controller runs: the space is used for new entries, and the file stays as large as it is")
