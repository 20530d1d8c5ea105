"""`cotenant sim`: the policies of production over a trace, on a cluster that does not exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from cotenant.controller.cli.frame.command import argument, group, option
from cotenant.controller.cli.frame.output import Format, FormFlag
from cotenant.controller.cli.offline import options
from cotenant.controller.cli.offline.backends import WorkersFlag
from cotenant.controller.cli.offline.files import writable, write_results
from cotenant.controller.cli.offline.runs import show_runs
from cotenant.controller.cli.offline.trace import trace
from cotenant.controller.cli.offline.whatif import WhatifAskedFlag, WhatifSinceFlag, replay_journal
from cotenant.controller.present import screen, units
from cotenant.controller.present.interruption import ended_by
from cotenant.controller.present.problem import OK
from cotenant.controller.sim import Knowledge, Scenario, Task, TaskRun
from cotenant.controller.sim import windows as windowing
from cotenant.controller.sim.results.document import document
from cotenant.controller.store import place_of
from cotenant.controller.whatif import table as sim_table
from cotenant.controller.whatif.choices import chosen_policies, convert_errors

TAIL_JOBS: Final = 200
"""With fewer jobs, fewer than ten lie beyond the 95th percentile."""


@group()
def sim() -> None:
    """Try policies on a trace: the same engine and the same policies as in production, a virtual clock.

    \b
    For example:
      cotenant sim compare philly/0e4a51 --policies sjf,srtf,patient
      cotenant sim run jobs.csv --policy castor --hosts 4
      cotenant sim replay ~/.local/state/cotenant/controller
      cotenant sim trace list
    """


@sim.part("run")
@options.takes_scenario
def run_one(
    policy: Annotated[str, option("--policy", metavar="P", help="As in --policies of compare.")],
    scenario: Scenario,
    seed: options.SeedFlag = 0,
    out: options.OutFlag = None,
    form: FormFlag = "table",
) -> int:
    """One policy over a trace.

    \b
    For example:
      cotenant sim run philly/0e4a51 --policy srtf
      cotenant sim run synth:earth:5000 --policy castor --hosts 16 --xi measured
      cotenant sim run jobs.csv --policy tiresias:thresholds_gpu_s=7200 --failures 500
    """
    choice = options.one_policy(policy)
    return simulate_policies(scenario, [choice], [seed], workers=1, out=out, form=form)


@sim.part("compare")
@options.takes_scenario
def compare(
    *,
    policies: options.PoliciesFlag = options.DEFAULT_POLICIES,
    scenario: Scenario,
    windows: Annotated[
        int | None,
        option(
            "--windows",
            metavar="N",
            min=1,
            max=10_000,
            help="On N warm windows of the trace; intervals over them.",
        ),
    ] = None,
    window_jobs: Annotated[
        int, option("--window-jobs", metavar="J", min=1, help="Jobs that count in each window.")
    ] = 256,
    seed: options.SeedFlag = 0,
    seeds: options.SeedsFlag = 1,
    workers: WorkersFlag = None,
    out: options.OutFlag = None,
    form: FormFlag = "table",
) -> int:
    """Several policies over the same jobs, as a table.

    Each policy runs in a process of its own. Ctrl-C prints what there is so far. The same seed gives the
    same result, to the byte, the time it took aside.

    \b
    For example:
      cotenant sim compare philly/0e4a51
      cotenant sim compare philly/b436b2 --load-scale 2 --policies srtf,lazer,patient --seeds 5
      cotenant sim compare synth:saturn:20000 --hosts 64 --policies sjf,srtf --out results
      cotenant sim compare jobs.csv --vc research --noise 0.5 -o json
      cotenant sim compare jobs.csv --policies srtf,patient --known progress:60 --tells .8 --windows 20
    """
    choices = chosen_policies(policies)
    with convert_errors():
        scenario = replace(scenario, windows=windows or 0, window_jobs=window_jobs)
    numbers = range(seed, seed + seeds)
    return simulate_policies(scenario, choices, numbers, workers=workers, out=out, form=form)


def simulate_policies(
    scenario: Scenario,
    policies: Sequence[Any],
    seeds: Sequence[int],
    *,
    workers: int | None,
    out: str | None,
    form: Format,
) -> int:
    """Runs the policies over the scenario, prints and writes the results, and returns the exit code."""
    folder = writable(out)
    if scenario.windows:
        whole = options.prepare_tasks(scenario, [windowing.REFERENCE], seeds)
        tasks = windowed_tasks(scenario, policies, whole, workers)
    else:
        whole, tasks = [], options.prepare_tasks(scenario, policies, seeds)
        if folder is not None:
            tasks = [replace(task, drawn=task.seed == seeds[0]) for task in tasks]
    runs = options.run_with_bar(tasks, workers=workers, keep=folder is not None)
    done = {name_of(run.task) for run in runs}
    missing = [name_of(task) for task in tasks if name_of(task) not in done]
    value = document(
        scenario.trace,
        runs,
        options=scenario.options(),
        not_run=missing,
        whole=whole[0].workload if whole else None,
    )
    show_runs(form, value, [run.summary for run in runs], lambda wide: page(value, runs, wide=wide))
    if folder is not None:
        write(folder, value, runs)
    return ended_by() if value["interrupted"] else OK


def windowed_tasks(
    scenario: Scenario,
    policies: Sequence[Any],
    whole: Sequence[Task],
    workers: int | None,
    run: Callable[..., list[TaskRun]] = options.run_with_bar,
) -> list[Task]:
    """A run for each window and policy, after a first run has found what was there when each window begins.

    Raises:
        Problem: the jobs are too few.
        KeyboardInterrupt: stopped before anything was compared.
    """
    size = scenario.windows, scenario.window_jobs
    with convert_errors():
        for task in whole:
            windowing.windows_of(len(task.workload), *size)
    references = run([windowing.reference(task) for task in whole], workers=workers, keep=True)
    if len(references) < len(whole) or any(run.summary["interrupted"] for run in references):
        raise KeyboardInterrupt
    return windowing.tasks(whole, references, policies, size)


def name_of(task: Task) -> str:
    where = "" if task.window is None else f" window {task.window}"
    return f"{task.policy.label} seed {task.seed}{where}"


@sim.part("replay")
@options.takes_knowledge
@options.flagged_by_scenario
def replay(
    *,
    journal: Annotated[str, argument(metavar="JOURNAL", help="A state folder, or a journal file.")],
    policies: WhatifAskedFlag = "",
    since: WhatifSinceFlag = "",
    pairs: str = "gavel-v100",
    knowledge: Knowledge,
    seed: options.SeedFlag = 0,
    workers: WorkersFlag = None,
    out: options.OutFlag = None,
    form: FormFlag = "table",
) -> int:
    """A controller's own journal, simulated again: what happened beside what the simulator makes of it.

    \b
    For example:
      cotenant sim replay ~/.local/state/cotenant/controller
      cotenant sim replay journal.sqlite --policies srtf,castor --since 7d
    """
    choices = chosen_policies(policies) if policies else ()
    where = place_of(journal)
    return replay_journal(
        where,
        choices,
        named=True,
        since=since,
        pairs=pairs,
        knowledge=knowledge,
        seed=seed,
        workers=workers,
        out=out,
        form=form,
    )


# --- Showing -----------------------------------------------------------------------------------------


def page(value: dict[str, Any], runs: Sequence[TaskRun], *, wide: bool) -> str:
    """The table with what it is about above it, and what to know about it below."""
    summaries = [run.summary for run in runs]
    width = None if wide else screen.terminal_width()
    table = sim_table.table(summaries, wide=wide, width=width)
    about = [*headline(value, summaries), *sim_table.knowledge_line(runs)]
    return "\n".join([*about, table, *footnotes(value, sim_table.BEST in table)])


def headline(value: dict[str, Any], summaries: Sequence[dict[str, Any]]) -> list[str]:
    facts, cluster = value["workload"], value["cluster"]
    load = facts["offered_load"]
    said = "" if load is None else f", offered load {load:.2f}"
    where = f"{cluster['hosts']} x {cluster['gpus_per_host']} GPUs{said}"
    jobs = f"{facts['jobs']:,} jobs"
    lines = [f"{facts['name']}: {jobs} on {where}, {sim_table.seeds_line(summaries)}"]
    if facts["synthetic"]:
        lines.append(screen.paint("SYNTHETIC: these jobs were generated, nobody ever ran them", "yellow"))
    return lines


def footnotes(value: dict[str, Any], has_best: bool) -> list[str]:
    """The footnotes of the table of results. `has_best`: the table marks any; where all are alike it does
    not."""
    lines = [f"{sim_table.BEST} best of its column"] if has_best else []
    lines += sim_table.differences(value["paired"])
    fewest = min((run["counted_jobs"] for run in value["runs"]), default=0)
    if value["options"].get("windows"):
        lines.append(f"{fewest:,} jobs count in each window; those before them ran as well")
    if value["options"].get("trim"):
        lines.append(f"{fewest:,} jobs count; those before and after them ran as well")
    if fewest < TAIL_JOBS:
        lines.append(f"P95 rests on {units.plural(-(-fewest // 20), 'job')} of {fewest}: do not rank by it")
    if len(value["runs"]) > 1 and not any(run["wait_s"]["mean"] for run in value["runs"]):
        lines.append(
            "no job ever waited: the cluster is too large for these jobs to compare policies (--hosts)"
        )
    for reason, count in value["workload"]["excluded"].items():
        lines.append(f"left out: {units.plural(count, 'job')} ({reason})")
    if value["not_run"]:
        lines.append(f"interrupted before: {', '.join(value['not_run'])}")
    return lines


# --- Files -------------------------------------------------------------------------------------------


def write(folder: Path, value: dict[str, Any], runs: Sequence[TaskRun]) -> None:
    """The jobs of each run, and plots of the first of each policy."""
    kept = [(run, run.outcome) for run in runs if run.outcome is not None]
    jobs = {}
    for run, outcome in kept:
        window = "" if run.task.window is None else f"-{run.task.window}"
        jobs[f"{sim_table.file_name(run.label)}-{run.task.seed}{window}"] = outcome
    drawn = {run.label: outcome for run, outcome in reversed(kept)}
    write_results(folder, value, jobs, dict(reversed(drawn.items())), "run", runs)


sim.add_command(trace)
