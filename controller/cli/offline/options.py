"""The flags that all simulations share, what they become, and how far the runs are (a bar on standard error,
for people, where they take a while). Errors of traces and tables leave as one line.

Rule: everything is checked before the first run begins.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cotenant.controller import sim
from cotenant.controller.cli.frame.command import argument, option
from cotenant.controller.policies import registry
from cotenant.controller.present.interruption import heard
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.screen import is_terminal
from cotenant.controller.submission.flags import duration_of
from cotenant.controller.training import compute
from cotenant.controller.whatif.choices import chosen_policies, convert_errors

if TYPE_CHECKING:
    from rich.progress import Progress

DEFAULT_POLICIES: Final = "fifo,sjf,srtf"


def complete_trace(incomplete: str) -> list[str]:
    from cotenant.controller.trace_names import NAMES

    return [name for name in NAMES if name.startswith(incomplete)]


def complete_policies(incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in registry.available() if name.startswith(last)]


TraceArgument = Annotated[
    str,
    argument(
        metavar="TRACE",
        help="A file, a bundled name (`cotenant sim trace list`) or synth:NAME[:JOBS].",
        complete=complete_trace,
    ),
]
FormatFlag = Annotated[str, option("--format", metavar="NAME", help="Of the file, if not recognised.")]
VcFlag = Annotated[str | None, option("--vc", metavar="ID", help="Only this virtual cluster.")]
JobsFlag = Annotated[int | None, option("--jobs", metavar="N", help="Only the first N jobs.")]
FromFlag = Annotated[
    float | None, option("--from-s", metavar="S", help="Only jobs submitted at or after S seconds.")
]
PairsFlag = Annotated[
    str,
    option(
        "--pairs",
        metavar="gavel-v100|gavel-p100|gavel-k80|FILE|none",
        help="How much jobs slow each other down; none: devices are not shared.",
    ),
]
XiFlag = Annotated[
    str,
    option(
        "--xi",
        metavar="learned|measured|NAME",
        help="What policies know of the pairs beforehand; NAME: an installed interference model.",
    ),
]
LoadScaleFlag = Annotated[
    float, option("--load-scale", metavar="F", help="F times as many arrivals per hour.")
]
NoiseFlag = Annotated[
    float,
    option(
        "--noise",
        metavar="SIGMA",
        help="Error of expected durations: lognormal, median 1, this sigma.",
    ),
]
EstimatesFlag = Annotated[
    str,
    option(
        "--estimate-noise",
        metavar="exact|lognormal:S|limit",
        help="Lengths that policies get: lognormal:S as --noise S; limit: time limits as people write them.",
    ),
]
KnownFlag = Annotated[
    str, option("--known", metavar="exact|progress:S|none", help="Lengths told: all, by running jobs, none.")
]
TellsFlag = Annotated[
    float, option("--tells", metavar="F", help="F of the jobs, drawn, tell theirs under --known progress:S.")
]
ResumableFlag = Annotated[
    float, option("--resumable", metavar="F", help="F of the jobs, drawn, resume, and say so when loaded.")
]
BudgetFlag = Annotated[
    str,
    option("--budget", metavar="TIME", help="Training that each job gets at most, counted as alone: 1h."),
]
EtaFlag = Annotated[
    bool, option("--eta", help="Tell when jobs end as they are submitted, and say how right that was.")
]
PromiseShareFlag = Annotated[
    float,
    option(
        "--promise-share",
        metavar="F",
        help="F of the jobs (0.1: a tenth), drawn, ask to be promised an end; counts kept and broken ones.",
    ),
]
LoadTimeFlag = Annotated[
    float,
    option("--load-time-scale", metavar="F", help="Load times times F."),
]
LaunchFlag = Annotated[
    Literal["warm", "cold"],
    option("--launch", metavar="warm|cold", help="Load times of warm starts, or of cold ones (default)."),
]
OnPreemptFlag = Annotated[
    Literal["save", "lose"],
    option(
        "--on-preempt",
        metavar="save|lose",
        help="What a preempted job does: save its state (default), or begin again.",
    ),
]
ShareMaxFlag = Annotated[
    float,
    option(
        "--share-max",
        metavar="X",
        help="Sharing may cost no job more than X times its step time alone: co-tenants wait (0: no bound).",
    ),
]
ShareHpFlag = Annotated[
    float,
    option(
        "--share-hp",
        metavar="X",
        help="Jobs of class hp share, at no more than X times their step time alone (0: no such bound).",
    ),
]
FailuresFlag = Annotated[
    float | None,
    option(
        "--failures",
        metavar="MTBF_H",
        help="Each host fails every MTBF_H hours on average.",
    ),
]
TrimFlag = Annotated[
    float,
    option(
        "--trim",
        metavar="F",
        help="The first and the last F of the jobs (0.1: a tenth) run and are not counted.",
    ),
]
WindowsFlag = Annotated[
    int | None,
    option(
        "--windows",
        metavar="N",
        min=1,
        max=10_000,
        help="On N warm windows of the trace; intervals over them.",
    ),
]
WindowJobsFlag = Annotated[
    int, option("--window-jobs", metavar="J", min=1, help="Jobs that count in each window.")
]
HostsFlag = Annotated[int, option("--hosts", metavar="H", min=1, max=100_000, help="Hosts.")]
GpusFlag = Annotated[int, option("--gpus-per-host", metavar="G", min=1, max=1_024, help="GPUs of each host.")]
SeedFlag = Annotated[int, option("--seed", metavar="S", min=0, help="Of everything that is drawn.")]
SeedsFlag = Annotated[
    int, option("--seeds", metavar="K", min=1, max=1_000, help="K seeds from --seed on; intervals.")
]
WorldFlag = Annotated[
    Literal["devices", "elastic"],
    option(
        "--world",
        metavar="devices|elastic",
        help="elastic: max-min, afs-l, themis and pcs:elastic=true resize jobs.",
    ),
]
PoliciesFlag = Annotated[
    str,
    option(
        "--policies",
        metavar="A,B,...",
        help="Policies, with options as in lazer:chain=last,dwq_offered=true; your own as MODULE:NAME.",
        complete=complete_policies,
    ),
]
OutFlag = Annotated[
    str | None, option("--out", metavar="DIR", help="Write JSON, plots and a CSV of the jobs there.")
]


def knowledge_of(
    known: KnownFlag = "exact",
    tells: TellsFlag = 1.0,
    resumable: ResumableFlag = 1.0,
    budget: BudgetFlag = "",
) -> sim.Knowledge:
    """Reads from the flags what the policies know of the jobs. Raises Problem."""
    with convert_errors():
        return sim.Knowledge.parse(known, tells, resumable, duration_of("--budget", budget))


def taking(what: str, make: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replaces the parameter `what` of a function by those of `make`, which makes it."""

    def around(verb: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(verb, eval_str=True).parameters.values()
        flags = inspect.signature(make, eval_str=True).parameters

        @functools.wraps(verb)
        def command(**given: Any) -> Any:
            return verb(**{what: make(**{name: given.pop(name) for name in flags})}, **given)

        parameters = [one for each in own for one in (flags.values() if each.name == what else (each,))]
        keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        command.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        return command

    return around


takes_knowledge = taking("knowledge", knowledge_of)


@takes_knowledge
def scenario_of(
    *,
    trace: TraceArgument,
    format: FormatFlag = "auto",
    vc: VcFlag = None,
    jobs: JobsFlag = None,
    from_s: FromFlag = None,
    hosts: HostsFlag = 8,
    gpus_per_host: GpusFlag = 8,
    load_scale: LoadScaleFlag = 1.0,
    noise: NoiseFlag = 0.0,
    estimate_noise: EstimatesFlag = "",
    knowledge: sim.Knowledge,
    load_time_scale: LoadTimeFlag = 1.0,
    launch: LaunchFlag = "cold",
    pairs: PairsFlag = "gavel-v100",
    xi: XiFlag = "learned",
    on_preempt: OnPreemptFlag = "save",
    share_max: ShareMaxFlag = 0.0,
    share_hp: ShareHpFlag = 0.0,
    failures: FailuresFlag = None,
    trim: TrimFlag = 0.0,
    eta: EtaFlag = False,
    promise_share: PromiseShareFlag = 0.0,
    world: WorldFlag = "devices",
) -> sim.Scenario:
    """Builds the scenario that the flags describe. Raises Problem."""
    sigma, limits = estimates_of(estimate_noise, noise)
    with convert_errors():
        return sim.Scenario(
            trace=trace,
            format=format,
            vc=vc,
            from_s=from_s,
            jobs=jobs,
            load_scale=load_scale,
            noise=sigma,
            limits=limits,
            knowledge=knowledge,
            load_time_scale=load_time_scale,
            launch=launch,
            pairs=pairs,
            xi=xi,
            on_preempt=on_preempt,
            share_max=share_max,
            share_hp=share_hp,
            failures_mtbf_h=failures,
            trim=trim,
            eta=eta,
            promise_share=promise_share,
            hosts=hosts,
            gpus_per_host=gpus_per_host,
            world=world,
        )


takes_scenario = taking("scenario", scenario_of)


def estimates_of(text: str, noise: float) -> tuple[float, bool]:
    """Sigma of the estimates' error, and whether they are limits.

    Raises:
        Problem: no such kind of estimates.
    """
    if not text:
        return noise, False
    if noise:
        raise Problem("usage", "--noise and --estimate-noise say the same", "leave one of them out")
    kind, _, number = text.partition(":")
    try:
        if kind == "lognormal":
            return float(number), False
        if text in ("exact", "limit"):
            return 0.0, text == "limit"
    except ValueError:
        pass
    raise Problem("usage", f"--estimate-noise {text!r} makes no sense", "write exact, lognormal:0.7 or limit")


def one_policy(text: str) -> sim.PolicyChoice:
    """Reads the one policy that `text` names. Raises Problem."""
    choices = chosen_policies(text)
    if len(choices) > 1:
        raise Problem("usage", f"--policy takes one policy, got {len(choices)}", "try cotenant sim compare")
    return choices[0]


def prepare_tasks(
    scenario: sim.Scenario, policies: Sequence[sim.PolicyChoice], seeds: Sequence[int]
) -> list[sim.Task]:
    """Prepares the tasks of a scenario, by policy and seed. Raises Problem."""
    with convert_errors():
        return sim.tasks(scenario, policies, seeds)


WORTH_A_BAR_S: Final = 2.0


def run_with_bar(tasks: Sequence[sim.Task], *, workers: int | None, keep: bool) -> list[sim.TaskRun]:
    """Runs all tasks and shows a progress bar. Raises Problem."""
    try:
        with bar(tasks) as report:
            runs = sim.run_all(tasks, workers=workers, keep=keep, report=report, asked=heard, compute=compute)
    except sim.WorkerLost as error:
        raise Problem("failed", str(error), "try --workers 1, or fewer jobs with --jobs") from None
    if not runs:
        raise KeyboardInterrupt  # before any run had a result
    return runs


@contextmanager
def bar(tasks: Sequence[sim.Task]) -> Iterator[sim.OnTaskProgress]:
    """A function to report the progress of runs to, which a bar shows."""
    finished, totals = [0] * len(tasks), [len(task.workload) for task in tasks]

    def running() -> str:
        """The runs under way, and how many are over."""
        each = list(zip(tasks, finished, totals, strict=True))
        under_way = [task.label for task, done, total in each if 0 < done < total]
        over = sum(done >= total for _, done, total in each)
        return f"{over}/{len(tasks)} runs  {', '.join(under_way[:3])[:40]}"

    def report(progress: sim.TaskProgress) -> None:
        finished[progress.task] = progress.finished
        show(sum(finished), running())

    with progress_bar(sum(totals), "jobs") as show:
        yield report


@contextmanager
def progress_bar(total: int, unit: str) -> Iterator[Callable[[int, str], None]]:
    """A function to call with how much is done, and with words to put before the bar. The bar appears on
    standard error after two seconds, and never where that is no terminal."""
    if not is_terminal(sys.stderr):
        yield lambda done, said: None
        return
    began_s, shown = time.monotonic(), None

    def show(done: int, said: str) -> None:
        nonlocal shown
        if shown is None:
            if time.monotonic() - began_s < WORTH_A_BAR_S:
                return
            shown = _started_bar(total, unit)
        shown.update(shown.task_ids[0], completed=done, description=said)

    try:
        yield show
    finally:
        if shown is not None:
            shown.stop()


def _started_bar(total: int, unit: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    shown.add_task("", total=total)
    shown.start()
    return shown
