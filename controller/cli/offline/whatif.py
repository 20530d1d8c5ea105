"""`cotenant whatif`: this cluster's last days under another policy, from its own journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from cotenant.controller.cli.frame.command import argument, option
from cotenant.controller.cli.frame.output import EndpointFlag, Format, FormFlag, whole_number
from cotenant.controller.cli.jobs.arrival import foresee
from cotenant.controller.cli.jobs.submit import prepared_submission
from cotenant.controller.cli.offline import options
from cotenant.controller.cli.offline.backends import WorkersFlag
from cotenant.controller.cli.offline.files import writable, write_results
from cotenant.controller.cli.offline.runs import show_runs
from cotenant.controller.client.asking import asking, loaded_settings
from cotenant.controller.present import screen
from cotenant.controller.present.interruption import ended_by
from cotenant.controller.present.problem import OK, Problem
from cotenant.controller.sim import Knowledge, PolicyChoice, TaskRun
from cotenant.controller.sim.past import what_if
from cotenant.controller.sim.past.journal import find_journal
from cotenant.controller.sim.past.replay import JournalRecord
from cotenant.controller.store import JournalError, JournalMissing, place_of
from cotenant.controller.system import paths
from cotenant.controller.whatif import table as sim_table
from cotenant.controller.whatif.choices import chosen_policies, convert_errors
from cotenant.controller.whatif.journal import footnotes, headline, read
from cotenant.controller.whatif.problems import journal_problem
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import utc

ASK_WITHIN_S: Final = 3.0
GPUS_MAX: Final = 100_000

WhatifSinceFlag = Annotated[
    str, option("--since", metavar="TIME", help="Only jobs of so long before the journal's last entry.")
]
WhatifAskedFlag = Annotated[
    str,
    option("--policy", "--policies", metavar="A,B,...", help="Policies.", complete=options.complete_policies),
]
WhatifJobArgument = Annotated[
    list[str] | None,
    argument(metavar="[FILE.yaml|SCRIPT.sh|-- CMD...]", help="A job: what would happen to it now?"),
]
AddGpusFlag = Annotated[
    str, option("--add-gpus", metavar="N", help="Also with so many more GPUs, on hosts like those there.")
]
JournalFlag = Annotated[
    str, option("--journal", metavar="PATH", help="A state folder or journal file (default: yours).")
]


@options.takes_knowledge
@options.flagged_by_scenario
def whatif(
    *,
    words: WhatifJobArgument = None,
    policies: WhatifAskedFlag = "",
    since: WhatifSinceFlag = "",
    add_gpus: AddGpusFlag = "",
    journal: JournalFlag = "",
    pairs: str = "gavel-v100",
    knowledge: Knowledge,
    seed: options.SeedFlag = 0,
    workers: WorkersFlag = None,
    out: options.OutFlag = None,
    form: FormFlag = "table",
    endpoint: EndpointFlag = None,
) -> int:
    """What the last days would have been under another policy; or what would happen to a job now.

    The jobs that this cluster's controller has seen, with the lengths, loads and pauses that it measured,
    are simulated under the policy of the time (how well does that reproduce what happened?) and under those
    asked for, each also with more GPUs if you say how many. Nothing is changed: the journal is only read,
    also while the controller runs. Policies know the lengths that were expected then, or what --known says.

    With a job's file, a script or a command (`submit --what-if` takes a job's options as well) the controller
    rolls its state out with this job and without it, under the policy in force: when it would start and end,
    whom it would wait for, and whom it would delay by how much.

    For example:

      cotenant whatif --policy srtf --since 7d
      cotenant whatif --policies srtf,lazer,patient --known progress:60 --tells .8
      cotenant whatif --add-gpus 4 --since 30d --out what-if
      cotenant whatif --policy sjf --journal /var/lib/cotenant/controller -o json
      cotenant whatif train.yaml
    """
    if words:
        if policies or since or add_gpus or journal or out is not None or knowledge.options():
            raise Problem(
                "usage", "a job is tried on the cluster as it is now", "leave the other options out"
            )
        foresee(prepared_submission(words, {}, endpoint, command_only=False).request, form, endpoint)
        return OK
    choices = chosen_policies(policies) if policies else ()
    where = place_of(journal) if journal else own_journal(endpoint)
    return replay_journal(
        where,
        choices,
        named=bool(journal),
        since=since,
        add_gpus=whole_number("--add-gpus", add_gpus, GPUS_MAX) if add_gpus else 0,
        pairs=pairs,
        knowledge=knowledge,
        seed=seed,
        workers=workers,
        out=out,
        form=form,
    )


def own_journal(endpoint: str | None) -> Path | str:
    """The journal of the controller that answers; where none does, of the one that the settings describe.

    Raises:
        Problem: it runs on another machine.
    """
    try:
        with asking(endpoint, timeout_s=ASK_WITHIN_S) as client:
            said = client.ask(wire.GetStatus()).journal
    except Problem as problem:
        if problem.code != "unreachable" or endpoint:
            raise
        return paths.controller_state_dir(loaded_settings().settings)
    path = place_of(said.rpartition(",")[0] or said)
    try:
        find_journal(path)
    except JournalMissing:
        raise Problem(
            "not-found",
            f"the controller's journal {path} is not on this machine",
            "run this where the controller runs, or copy the file and name it with --journal",
        ) from None
    except JournalError as error:
        raise journal_problem(error, named=False) from None
    return path


def replay_journal(
    where: Path | str,
    choices: Sequence[PolicyChoice],
    *,
    named: bool,
    since: str,
    add_gpus: int = 0,
    pairs: str,
    knowledge: Knowledge,
    seed: int,
    workers: int | None,
    out: str | None,
    form: Format,
) -> int:
    """Reads, runs, prints, writes; the exit code. `named`: the journal, by the command line."""
    folder = writable(out)
    record = read(where, since, named=named)
    with convert_errors():
        tasks = what_if.replay_tasks(
            record, choices, pairs=pairs, seed=seed, add_gpus=add_gpus, knowledge=knowledge
        )
    if not tasks:
        raise Problem(
            "usage", f"{record.setting.policy} is not available here", "name others with --policies"
        )
    if folder is not None:
        tasks = [replace(task, drawn=True) for task in tasks]
    runs = options.run_with_bar(tasks, workers=workers, keep=True)
    times = [utc(wall_s) for wall_s in (record.begin_wall_s, record.end_wall_s)]
    value = what_if.document(record, runs, pairs=pairs, begin=times[0], end=times[1])
    rows = [value["actual"], *value["runs"]]
    show_runs(form, value, rows, lambda wide: page(value, record, runs, wide=wide))
    if folder is not None:
        write(folder, value, record, runs)
    return ended_by() if value["interrupted"] or len(runs) < len(tasks) else OK


# --- Showing -----------------------------------------------------------------------------------------


def page(value: dict[str, Any], record: JournalRecord, runs: Sequence[TaskRun], *, wide: bool) -> str:
    width = None if wide else screen.terminal_width()
    table = sim_table.table([value["actual"], *value["runs"]], wide=wide, width=width)
    about = [headline(record), *sim_table.knowledge_line(runs)]
    return "\n".join([*about, table, *footnotes(value, record, runs)])


def write(folder: Path, value: dict[str, Any], record: JournalRecord, runs: Sequence[TaskRun]) -> None:
    """The jobs as they were and as simulated."""
    outcomes = {what_if.HAPPENED: record.outcome()}
    outcomes.update({f"{run.label}, simulated": run.outcome for run in runs if run.outcome is not None})
    jobs = {sim_table.file_name(label): outcome for label, outcome in outcomes.items()}
    write_results(folder, value, jobs, outcomes, "row", runs)
