"""`cotenant sim`: the policies of production over a trace, on a cluster that does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.command import group
from cotenant.controller.cli.frame.output import (
    Format,
    JsonFlag,
    OutputFlag,
    as_text,
    chosen,
    write_json,
    write_lines,
)
from cotenant.controller.cli.frame.parameters import argument, option
from cotenant.controller.cli.frame.problem import OK, Problem
from cotenant.controller.cli.frame.signals import ended_by
from cotenant.controller.cli.offline import table as sim_table
from cotenant.controller.cli.offline.files import matplotlib_or_hint, writable
from cotenant.controller.cli.offline.options import (
    DEFAULT_POLICIES,
    FailuresFlag,
    FormatFlag,
    FromFlag,
    GpusFlag,
    HostsFlag,
    JobsFlag,
    LaunchFlag,
    LoadScaleFlag,
    LoadTimeFlag,
    NoiseFlag,
    OutFlag,
    PairsFlag,
    PoliciesFlag,
    SeedFlag,
    SeedsFlag,
    TraceArgument,
    TrimFlag,
    VcFlag,
    WindowJobsFlag,
    WindowsFlag,
    WorkersFlag,
    XiFlag,
    as_problems,
    chosen_policies,
    one_policy,
    prepared,
)
from cotenant.controller.cli.offline.progress import run_with_bar
from cotenant.controller.cli.offline.trace import trace
from cotenant.controller.cli.offline.whatif import AskedFlag, SinceFlag, replayed
from cotenant.controller.sim import windows as windowing
from cotenant.controller.sim.compare import Task, TaskRun
from cotenant.controller.sim.results.document import document, write_document, write_jobs
from cotenant.controller.sim.scenario import Scenario

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
def run_one(
    trace: TraceArgument,
    policy: Annotated[str, option("--policy", metavar="P", help="As in --policies of compare.")],
    format: FormatFlag = "auto",
    vc: VcFlag = None,
    jobs: JobsFlag = None,
    from_s: FromFlag = None,
    hosts: HostsFlag = 8,
    gpus_per_host: GpusFlag = 8,
    load_scale: LoadScaleFlag = 1.0,
    noise: NoiseFlag = 0.0,
    load_time_scale: LoadTimeFlag = 1.0,
    launch: LaunchFlag = "cold",
    pairs: PairsFlag = "gavel-v100",
    xi: XiFlag = "learned",
    failures: FailuresFlag = None,
    trim: TrimFlag = 0.0,
    seed: SeedFlag = 0,
    out: OutFlag = None,
    output: OutputFlag = None,
    as_json: JsonFlag = False,
) -> int:
    """One policy over a trace.

    \b
    For example:
      cotenant sim run philly/0e4a51 --policy srtf
      cotenant sim run synth:earth:5000 --policy castor --hosts 16 --xi measured
      cotenant sim run jobs.csv --policy tiresias:thresholds_gpu_s=7200 --failures 500
    """
    form = chosen(output, as_json)
    with as_problems():
        scenario = Scenario(
            trace=trace,
            format=format,
            vc=vc,
            from_s=from_s,
            jobs=jobs,
            load_scale=load_scale,
            noise=noise,
            load_time_scale=load_time_scale,
            launch=launch,
            pairs=pairs,
            xi=xi,
            failures_mtbf_h=failures,
            trim=trim,
            hosts=hosts,
            gpus_per_host=gpus_per_host,
        )
    return simulated(scenario, [one_policy(policy)], [seed], workers=1, out=out, form=form)


@sim.part("compare")
def compare(
    trace: TraceArgument,
    policies: PoliciesFlag = DEFAULT_POLICIES,
    format: FormatFlag = "auto",
    vc: VcFlag = None,
    jobs: JobsFlag = None,
    from_s: FromFlag = None,
    hosts: HostsFlag = 8,
    gpus_per_host: GpusFlag = 8,
    load_scale: LoadScaleFlag = 1.0,
    noise: NoiseFlag = 0.0,
    load_time_scale: LoadTimeFlag = 1.0,
    launch: LaunchFlag = "cold",
    pairs: PairsFlag = "gavel-v100",
    xi: XiFlag = "learned",
    failures: FailuresFlag = None,
    trim: TrimFlag = 0.0,
    windows: WindowsFlag = None,
    window_jobs: WindowJobsFlag = 256,
    seed: SeedFlag = 0,
    seeds: SeedsFlag = 1,
    workers: WorkersFlag = None,
    out: OutFlag = None,
    output: OutputFlag = None,
    as_json: JsonFlag = False,
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
      cotenant sim compare jobs.csv --policies srtf,patient --windows 20
    """
    form = chosen(output, as_json)
    choices = chosen_policies(policies)
    with as_problems():
        scenario = Scenario(
            trace=trace,
            format=format,
            vc=vc,
            from_s=from_s,
            jobs=jobs,
            load_scale=load_scale,
            noise=noise,
            load_time_scale=load_time_scale,
            launch=launch,
            pairs=pairs,
            xi=xi,
            failures_mtbf_h=failures,
            trim=trim,
            windows=windows or 0,
            window_jobs=window_jobs,
            hosts=hosts,
            gpus_per_host=gpus_per_host,
        )
    numbers = range(seed, seed + seeds)
    return simulated(scenario, choices, numbers, workers=workers, out=out, form=form)


def simulated(
    scenario: Scenario,
    policies: Sequence[Any],
    seeds: Sequence[int],
    *,
    workers: int | None,
    out: str | None,
    form: Format,
) -> int:
    """Runs, prints, writes; the exit code."""
    folder = writable(out)
    if scenario.windows:
        whole = prepared(scenario, [windowing.REFERENCE], seeds)
        tasks = windowed(scenario, policies, whole, workers)
    else:
        whole, tasks = [], prepared(scenario, policies, seeds)
    runs = run_with_bar(tasks, workers=workers, keep=folder is not None)
    done = {name_of(run.task) for run in runs}
    missing = [name_of(task) for task in tasks if name_of(task) not in done]
    value = document(
        scenario.trace,
        runs,
        options=scenario.options(),
        not_run=missing,
        whole=whole[0].workload if whole else None,
    )
    show(value, runs, form)
    if folder is not None:
        write_results(folder, value, runs)
    return ended_by() if value["interrupted"] else OK


def windowed(
    scenario: Scenario, policies: Sequence[Any], whole: Sequence[Task], workers: int | None
) -> list[Task]:
    """A run for each window and policy, once it is known what was there when a window begins.

    Raises:
        Problem: the jobs are too few.
        KeyboardInterrupt: stopped before anything was compared.
    """
    size = scenario.windows, scenario.window_jobs
    with as_problems():
        for task in whole:
            windowing.windows_of(len(task.workload), *size)
    references = run_with_bar([windowing.reference(task) for task in whole], workers=workers, keep=True)
    if len(references) < len(whole) or any(run.summary["interrupted"] for run in references):
        raise KeyboardInterrupt
    return windowing.tasks(whole, references, policies, size)


def name_of(task: Task) -> str:
    where = "" if task.window is None else f" window {task.window}"
    return f"{task.policy.label} seed {task.seed}{where}"


@sim.part("replay")
def replay(
    journal: Annotated[str, argument(metavar="JOURNAL", help="A state folder, or a journal file.")],
    policies: AskedFlag = "",
    since: SinceFlag = "",
    pairs: PairsFlag = "gavel-v100",
    seed: SeedFlag = 0,
    workers: WorkersFlag = None,
    out: OutFlag = None,
    output: OutputFlag = None,
    as_json: JsonFlag = False,
) -> int:
    """A controller's own journal, simulated again: what happened beside what the simulator makes of it.

    \b
    For example:
      cotenant sim replay ~/.local/state/cotenant/controller
      cotenant sim replay journal.sqlite --policies srtf,castor --since 7d
    """
    form = chosen(output, as_json)
    choices = chosen_policies(policies) if policies else ()
    where = Path(journal).expanduser()
    return replayed(
        where, choices, named=True, since=since, pairs=pairs, seed=seed, workers=workers, out=out, form=form
    )


# --- Showing -----------------------------------------------------------------------------------------


def show(value: dict[str, Any], runs: Sequence[TaskRun], form: Format) -> None:
    if form == "json":
        write_json(value)
    elif form == "jsonl":
        write_lines([as_text({"schema": "sim-run/1", **run.summary}) for run in runs])
    elif form == "id":
        write_lines(list(dict.fromkeys(run.label for run in runs)))
    else:
        screen.say(page(value, runs, wide=form == "wide"))


def page(value: dict[str, Any], runs: Sequence[TaskRun], *, wide: bool) -> str:
    """The table with what it is about above it, and what to know about it below."""
    summaries = [run.summary for run in runs]
    width = None if wide else screen.terminal_width()
    table = sim_table.table(summaries, wide=wide, width=width)
    return "\n".join([*headline(value, summaries), table, *footnotes(value, sim_table.BEST in table)])


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
    """`has_best`: the table marks any; where all are alike it does not."""
    lines = [f"{sim_table.BEST} best of its column"] if has_best else []
    lines += sim_table.differences(value["paired"])
    fewest = min((run["counted_jobs"] for run in value["runs"]), default=0)
    if value["options"].get("windows"):
        lines.append(f"{fewest:,} jobs count in each window; those before them ran as well")
    if value["options"].get("trim"):
        lines.append(f"{fewest:,} jobs count; those before and after them ran as well")
    if fewest < TAIL_JOBS:
        lines.append(f"P95 rests on {screen.plural(-(-fewest // 20), 'job')} of {fewest}: do not rank by it")
    for reason, count in value["workload"]["excluded"].items():
        lines.append(f"left out: {screen.plural(count, 'job')} ({reason})")
    if value["not_run"]:
        lines.append(f"interrupted before: {', '.join(value['not_run'])}")
    return lines


# --- Files -------------------------------------------------------------------------------------------


def write_results(folder: Path, value: dict[str, Any], runs: Sequence[TaskRun]) -> None:
    """`result.json`, `jobs-<policy>-<seed>.csv`, and plots where matplotlib is there.

    Raises:
        Problem: the disk is full, or so.
    """
    try:
        write_document(value, folder / "result.json")
        for run in runs:
            if run.outcome is not None:
                window = "" if run.task.window is None else f"-{run.task.window}"
                name = f"jobs-{sim_table.file_name(run.label)}-{run.task.seed}{window}.csv"
                write_jobs(run.outcome, folder / name)
        first = {run.label: run.outcome for run in reversed(runs) if run.outcome is not None}
        plots = matplotlib_or_hint()
        names = plots.write_all(dict(reversed(first.items())), folder) if plots is not None else []
    except OSError as error:
        raise Problem(
            "refused", f"{folder}: {error.strerror}", "make room, or choose another --out"
        ) from None
    screen.tell(f"written to {folder}: result.json, a CSV of each run" + "".join(f", {n}" for n in names))


sim.add_command(trace)
