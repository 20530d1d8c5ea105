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
from typing import TYPE_CHECKING, Annotated, Any, Final, get_origin

from cotenant.controller import sim
from cotenant.controller.cli.frame.command import option
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


def complete_policies(incomplete: str) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in registry.available() if name.startswith(last)]


EstimatesFlag = Annotated[
    str,
    option(
        "--estimate-noise",
        metavar="exact|lognormal:S|limit",
        help="Lengths that policies get: lognormal:S as --noise S; limit: time limits as people write them.",
    ),
]
SeedFlag = Annotated[int, option("--seed", metavar="S", min=0, help="Of everything that is drawn.")]
SeedsFlag = Annotated[
    int, option("--seeds", metavar="K", min=1, max=1_000, help="K seeds from --seed on; intervals.")
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


def flagged_by_scenario(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Gives each parameter that has no flag the flag of the scenario's field of its name; `**fields` becomes
    all fields."""
    fields = inspect.signature(sim.Scenario, eval_str=True).parameters
    own = inspect.signature(verb, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for each in own.parameters.values():
        if each.kind is inspect.Parameter.VAR_KEYWORD:
            parameters += fields.values()
        elif each.name in fields and get_origin(each.annotation) is not Annotated:
            parameters.append(each.replace(annotation=fields[each.name].annotation))
        else:
            parameters.append(each)
    verb.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return verb


def taking(*made: str, make: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replaces parameters of a function by the flags of `make`, which makes their value; their values, where
    they are several."""

    def around(verb: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(verb, eval_str=True).parameters.values()
        takes = inspect.signature(make, eval_str=True).parameters.values()
        flags = [each for each in takes if get_origin(each.annotation) is Annotated]

        @functools.wraps(verb)
        def command(**given: Any) -> Any:
            found = make(**{each.name: given.pop(each.name) for each in flags})
            values = (found,) if len(made) == 1 else found
            return verb(**dict(zip(made, values, strict=True)), **given)

        first, *more = made
        parameters = [
            one for each in own if each.name not in more for one in (flags if each.name == first else (each,))
        ]
        keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        command.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        return command

    return around


def knowledge_of(
    known: Annotated[
        str,
        option("--known", metavar="exact|progress:S|none", help="Lengths told: all, by running jobs, none."),
    ] = "exact",
    tells: Annotated[
        float,
        option("--tells", metavar="F", help="F of the jobs, drawn, tell theirs under --known progress:S."),
    ] = 1.0,
    resumable: Annotated[
        float,
        option("--resumable", metavar="F", help="F of the jobs, drawn, resume, and say so when loaded."),
    ] = 1.0,
    budget: Annotated[
        str,
        option("--budget", metavar="TIME", help="Training that each job gets at most, counted as alone: 1h."),
    ] = "",
) -> sim.Knowledge:
    """Reads from the flags what the policies know of the jobs. Raises Problem."""
    with convert_errors():
        return sim.Knowledge.parse(known, tells, resumable, duration_of("--budget", budget))


takes_knowledge = taking("knowledge", make=knowledge_of)


@flagged_by_scenario
def estimates_of(noise: float = 0.0, estimate_noise: EstimatesFlag = "") -> tuple[float, bool]:
    """Sigma of the estimates' error, and whether they are limits.

    Raises:
        Problem: no such kind of estimates.
    """
    text = estimate_noise
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


@takes_knowledge
@taking("noise", "limits", make=estimates_of)
@flagged_by_scenario
def scenario_of(**fields: Any) -> sim.Scenario:
    """Builds the scenario that the flags describe. Raises Problem."""
    with convert_errors():
        return sim.Scenario(**fields)


takes_scenario = taking("scenario", make=scenario_of)


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
