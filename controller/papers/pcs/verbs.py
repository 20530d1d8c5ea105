"""`cotenant policy tune pcs`: which trade-offs there are on a workload between speed and kept predictions.

Rule: a search prints the front it has found and changes nothing; `cotenant policy set pcs config=FILE#NAME`
takes one of its points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Annotated, Any, Final, Literal

import numpy as np

from cotenant.controller.cli.frame.command import option
from cotenant.controller.cli.frame.output import JsonFlag, show_one
from cotenant.controller.cli.offline import options
from cotenant.controller.cli.offline.backends import AddressFlag, BackendFlag, WorkersFlag
from cotenant.controller.cli.offline.files import matplotlib_or_hint
from cotenant.controller.papers.pcs import preferences
from cotenant.controller.present import screen, units
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.tables import Column
from cotenant.controller.sim import Scenario, open_trace, workload_of
from cotenant.controller.training import NoBackend, evaluator
from cotenant.controller.whatif.choices import convert_errors

SCHEMA: Final = "pcs-front/1"

ObjectivesFlag = Annotated[
    str,
    option("--objectives", metavar="A,B", help="METRIC:MEASURE of jct, error, unfairness: mean or p99."),
]
EvaluationsFlag = Annotated[
    int, option("--evaluations", metavar="N", min=8, max=100_000, help="Configurations tried.")
]
TrainJobsFlag = Annotated[
    int, option("--train-jobs", metavar="N", min=10, help="Searched on the first N jobs ...")
]
TestJobsFlag = Annotated[
    int, option("--test-jobs", metavar="N", min=10, help="... and judged on the N after them.")
]
AskedFlag = Annotated[
    float, option("--asked", metavar="PART", help="Of the jobs that ask when they will have ended.")
]
FrontFlag = Annotated[
    Literal["table", "json", "svg"], option("-o", "--output", metavar="table|json|svg", help="Format.")
]


@options.flagged_by_scenario
def tune(
    *,
    trace: str,
    objectives: ObjectivesFlag = "jct:mean,error:mean",
    evaluations: EvaluationsFlag = 280,
    train_jobs: TrainJobsFlag = 300,
    test_jobs: TestJobsFlag = 300,
    asked: AskedFlag = 0.1,
    format: str = "auto",
    vc: str | None = None,
    from_s: float | None = None,
    hosts: int = 8,
    gpus_per_host: int = 8,
    load_scale: float = 1.0,
    backend: BackendFlag = "processes",
    address: AddressFlag = "",
    workers: WorkersFlag = None,
    seed: options.SeedFlag = 0,
    output: FrontFlag = "table",
    as_json: JsonFlag = False,
) -> None:
    """How much speed buys how reliable a prediction? Searches for what nothing else beats in all objectives.

    Simulated as `sim compare` does. The front is searched on some jobs and judged on the next ones; a point
    that is good on one window may not be on another, so look at both. Gangs are whole there: zeta_min and
    delta, which cap elastic jobs, are drawn and change nothing.

    \b
    For example:
      cotenant policy tune pcs philly/0e4a51 -o json > front.json
      cotenant policy set pcs config=front.json#p03
      cotenant policy tune pcs jobs.csv --objectives jct:mean,error:p99 --evaluations 1280 -o json
      cotenant policy tune pcs jobs.csv --backend dask --address tcp://head:8786 -o svg > front.svg
    """
    form = "json" if as_json else output
    drawing = matplotlib_or_hint() if form == "svg" else None
    if form == "svg" and drawing is None:
        raise Problem("failed", "a picture needs matplotlib")
    traded = read_objectives(objectives)
    with convert_errors():
        wanted = Scenario(
            trace=trace, format=format, vc=vc, from_s=from_s, jobs=train_jobs + test_jobs, hosts=hosts,
            gpus_per_host=gpus_per_host, load_scale=load_scale, pairs="none",
        )  # fmt: skip
        train, test = windows_of(wanted, train_jobs, asked, seed)
    where = {"backend": backend, "workers": workers, "address": address}
    found = search_front(train, test, traded, where, evaluations=evaluations, seed=seed)
    value = {
        "schema": SCHEMA, "trace": trace,
        "cluster": {"hosts": hosts, "gpus_per_host": gpus_per_host, "gpus": wanted.cluster.gpus},
        "train_jobs": len(train.workload), "test_jobs": len(test.workload), "asked_ratio": asked,
        "backend": backend, **found,
    }  # fmt: skip
    if drawing is not None:
        screen.say(drawing.svg_of(picture(drawing, value)))
    else:
        show_one("json" if form == "json" else "table", value, trace, value, page)


def read_objectives(text: str) -> tuple[preferences.Objective, ...]:
    """Raises Problem."""
    try:
        return preferences.parse_objectives(text)
    except ValueError as error:
        raise Problem("usage", f"--objectives: {error}", "for example jct:mean,error:p99") from None


def windows_of(
    wanted: Scenario, train_jobs: int, asked: float, seed: int
) -> tuple[preferences.JobWindow, preferences.JobWindow]:
    """The jobs to search on, and those to judge on.

    Raises:
        TraceProblem: the trace, or what was asked of it.
        Problem: the jobs are too few, or too few of them ask.
    """
    if not 0.0 < asked <= 1.0:
        raise Problem("usage", f"--asked must be above 0 and at most 1, got {asked:g}")
    workload = workload_of(wanted, open_trace(wanted.trace, format=wanted.format, seed=seed), None, seed)
    if wanted.jobs is not None and len(workload) < wanted.jobs:  # Both halves of what there is.
        train_jobs = len(workload) // 2
    if train_jobs < 1:
        raise Problem("refused", f"{wanted.trace} has too few jobs to search on some and judge on others")
    train, test = np.split(np.arange(len(workload)), [train_jobs])
    return (
        preferences.JobWindow(workload.take(train), wanted.cluster, asked),
        preferences.JobWindow(workload.take(test), wanted.cluster, asked),
    )


def search_front(
    train: preferences.JobWindow,
    test: preferences.JobWindow,
    traded: Sequence[preferences.Objective],
    where: dict[str, Any],
    *,
    evaluations: int,
    seed: int,
) -> dict[str, Any]:
    """Shows how far it is. `where`: as `evaluator` takes it. Raises Problem: what it needs is not there."""
    try:
        with evaluator(**where) as evaluate, options.progress_bar(evaluations, "configurations") as show:

            def tell(found: Sequence[preferences.Found]) -> None:
                show(len(found), units.plural(len(preferences.front_of(found)), "trade-off"))

            return preferences.find_front(
                train, test, traded, evaluate, evaluations=evaluations, seed=seed, tell=tell
            )
    except (NoBackend, preferences.NoPymoo) as error:
        raise Problem("failed", str(error), "`cotenant policy tune pcs --help` names the others") from None


def page(value: dict[str, Any]) -> str:
    """A row for each trade-off, and for the policies beside them."""
    columns = [Column("POINT", lambda row: row.get("name") or row["policy"])]
    for name in value["objectives"]:
        for side in ("train", "test"):
            columns.append(Column(f"{name} {side}".upper(), cell(side, name), right=True))
    configs = value["configs"]
    columns.append(
        Column("CLASSES", lambda row: str(configs[row["name"]]["num_classes"]) if "name" in row else "")
    )
    head = (
        f"{value['trace']}: {units.plural(len(value['front']), 'trade-off')} that nothing else beats, of "
        f"{value['evaluations']} tried on {value['train_jobs']:,} jobs; judged on the {value['test_jobs']:,} "
        "after them"
    )
    return "\n".join([head, screen.table(columns, value["front"] + value["beside"], screen.terminal_width())])


def unit_of(objective: str) -> tuple[float, str]:
    """Seconds as hours, parts as per cent: by what a value is multiplied, and its unit."""
    return (1 / 3600.0, "h") if objective.startswith("jct") else (100.0, "%")


def cell(side: str, objective: str) -> Callable[[dict[str, Any]], str]:
    factor, unit = unit_of(objective)
    return lambda row: f"{factor * row[side][objective]:,.2f} {unit}" if side in row else units.NONE


def picture(drawing: ModuleType, value: dict[str, Any]) -> Any:
    """The first two objectives of the trade-offs, and of the policies beside them."""
    axes = [(name, *unit_of(name)) for name in value["objectives"][:2]]

    def scaled(values: dict[str, float]) -> tuple[float, ...]:
        return tuple(factor * values[name] for name, factor, _ in axes)

    series = {
        "pcs (test jobs)": sorted(scaled(point["test"]) for point in value["front"]),
        "pcs (training jobs)": [scaled(point["train"]) for point in value["front"]],
        **{each["policy"]: [scaled(each["test"])] for each in value["beside"]},
    }
    titles = [f"{name} ({unit})" for name, _, unit in axes]
    return drawing.trade_off(series, f"Trade-offs, {value['trace']}", *titles, line="pcs (test jobs)")
