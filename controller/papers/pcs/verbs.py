"""`cotenant pcs`: PCS's preference interface. Which trade-offs there are on a workload, and taking one.

Rule: a search prints the front it has found and changes nothing; `pcs set` is the only part that asks the
controller for anything, and it asks for what `policy set` asks for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cotenant.controller.cli.frame.command import argument, group, option
from cotenant.controller.cli.frame.output import EndpointFlag, JsonFlag, show_one
from cotenant.controller.cli.offline.backends import AddressFlag, BackendFlag, WorkersFlag
from cotenant.controller.cli.offline.files import contents, matplotlib_or_hint
from cotenant.controller.cli.offline.options import (
    FormatFlag,
    FromFlag,
    GpusFlag,
    HostsFlag,
    LoadScaleFlag,
    SeedFlag,
    TraceArgument,
    VcFlag,
)
from cotenant.controller.client.asking import asking
from cotenant.controller.papers.pcs import published_named
from cotenant.controller.present import screen, units
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.tables import Column
from cotenant.controller.sim import Scenario, Workload, open_trace, scenario
from cotenant.controller.whatif.choices import convert_errors
from cotenant.controller.wire import clients as wire

if TYPE_CHECKING:
    from cotenant.controller.papers.pcs.preferences import Backend, ParetoFront, SearchProgress

SCHEMA: Final = "pcs-front/1"
SHOWN: Final = 6

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
PcsAskedFlag = Annotated[
    float, option("--asked", metavar="PART", help="Of the jobs that ask when they will have ended.")
]
FrontFlag = Annotated[
    Literal["table", "json", "svg"], option("-o", "--output", metavar="table|json|svg", help="Format.")
]


@group()
def pcs() -> None:
    """How much speed buys how reliable a prediction? PCS: search the trade-offs, choose one.

    \b
    For example:
      cotenant pcs front philly/0e4a51 -o json > front.json
      cotenant pcs set front.json#p03
    """


@pcs.part("front")
def front(
    *,
    trace: TraceArgument,
    objectives: ObjectivesFlag = "jct:mean,error:mean",
    evaluations: EvaluationsFlag = 280,
    train_jobs: TrainJobsFlag = 1000,
    test_jobs: TestJobsFlag = 1000,
    asked: PcsAskedFlag = 0.25,
    format: FormatFlag = "auto",
    vc: VcFlag = None,
    from_s: FromFlag = None,
    hosts: HostsFlag = 8,
    gpus_per_host: GpusFlag = 8,
    load_scale: LoadScaleFlag = 1.0,
    backend: BackendFlag = "processes",
    address: AddressFlag = "",
    workers: WorkersFlag = None,
    seed: SeedFlag = 0,
    output: FrontFlag = "table",
    as_json: JsonFlag = False,
) -> None:
    """Search for the configurations that nothing else beats in all objectives.

    Simulated in the fluid world. The front is searched on some jobs and judged on the next ones; a point that
    is good on one window may not be on another, so look at both.

    \b
    For example:
      cotenant pcs front philly/0e4a51
      cotenant pcs front jobs.csv --objectives jct:mean,error:p99 --evaluations 1280 -o json
      cotenant pcs front jobs.csv --backend dask --address tcp://head:8786 -o svg > front.svg
    """
    form = "json" if as_json else output
    drawing = _matplotlib() if form == "svg" else None
    if not 0.0 < asked <= 1.0:
        raise Problem("usage", f"--asked must be above 0 and at most 1, got {asked:g}")
    with convert_errors():
        wanted = Scenario(
            trace=trace, format=format, vc=vc, from_s=from_s, jobs=train_jobs + test_jobs, hosts=hosts,
            gpus_per_host=gpus_per_host, load_scale=load_scale, world="fluid",
        )  # fmt: skip
        workload = scenario.workload_of(wanted, open_trace(trace, format=format, seed=seed), None, seed)
    if len(workload) < train_jobs + test_jobs:  # Both halves of what there is.
        train_jobs = len(workload) // 2
    if train_jobs < 1:
        raise Problem("refused", f"{trace} has too few jobs to search on some and judge on others")
    found = _search_front(
        workload, wanted, train_jobs, asked, objectives, evaluations, backend, address, workers, seed
    )
    value = {
        "schema": SCHEMA, "trace": trace,
        "cluster": {"hosts": hosts, "gpus_per_host": gpus_per_host, "gpus": hosts * gpus_per_host},
        "train_jobs": train_jobs, "test_jobs": len(workload) - train_jobs, "asked_ratio": asked,
        "backend": backend, **found.document(),
    }  # fmt: skip
    if drawing is not None:
        screen.say(drawing.svg_of(_picture(drawing, found, trace)))
    else:
        show_one("json" if form == "json" else "table", value, trace, value, lambda it: _page(it, found))


def _search_front(
    workload: Workload,
    wanted: Scenario,
    train_jobs: int,
    asked: float,
    objectives: str,
    evaluations: int,
    backend: Backend,
    address: str,
    workers: int | None,
    seed: int,
) -> ParetoFront:
    """Searches the front that the options ask for. Raises Problem."""
    from cotenant.controller.papers.pcs.preferences import (
        JobWindow,
        NoBackend,
        NoPymoo,
        Objective,
        PreferenceSolver,
        evaluator,
    )

    windows = [
        JobWindow.part(workload, wanted.cluster, *rows, asked)
        for rows in ((0, train_jobs), (train_jobs, len(workload)))
    ]
    solver = PreferenceSolver(windows[0], windows[1])
    try:
        solver.set_preference(
            *(Objective.parse(word.strip()) for word in objectives.split(",") if word.strip())
        )
    except ValueError as error:
        raise Problem("usage", f"--objectives: {error}", "for example jct:mean,error:p99") from None
    try:
        with evaluator(backend, workers=workers, address=address) as evaluate, _bar(evaluations) as tell:
            return solver.pareto_front(evaluate, evaluations=evaluations, seed=seed, tell=tell)
    except (NoBackend, NoPymoo) as error:
        raise Problem("failed", str(error), "`cotenant pcs front --help` names the others") from None


@pcs.part("set")
def set_config(
    config: Annotated[
        str, argument(metavar="FILE[#NAME]", help="Of `pcs front -o json`, or PCS's own form.")
    ],
    as_json: JsonFlag = False,
    endpoint: EndpointFlag = None,
) -> None:
    """Make `pcs` the policy in force, with a configuration from a file.

    \b
    For example:
      cotenant pcs set front.json#p03
      cotenant pcs set PCS_config_0e4a51_bal.json
    """
    path, _, name = config.partition("#")
    data = contents(path)
    try:
        parameters = published_named(json.loads(data), name).as_parameters()
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise Problem("usage", f"{path}: {error}") from None
    with asking(endpoint) as client:
        reply = client.ask(wire.SetPolicy(name="pcs", parameters=parameters))
    value = {"schema": "pcs-set/1", "policy": "pcs", "parameters": parameters}
    show_one("json" if as_json else "table", value, "pcs", reply, lambda said: "\n".join(said.lines) or "set")


# --- Showing -----------------------------------------------------------------------------------------


def _page(value: dict[str, Any], found: ParetoFront) -> str:
    names = [str(objective) for objective in found.objectives]
    rows: list[tuple[str, tuple[float, ...] | None, tuple[float, ...], str]] = [
        (
            point.name,
            point.train,
            point.test,
            f"{len(point.config.weights)} classes, zeta {point.config.zeta_min:.2f}",
        )
        for point in found.points
    ]
    rows += [(policy, None, values, "") for policy, values in found.beside.items()]
    columns = [Column("POINT", lambda row: row[0])]
    for place, name in enumerate(names):
        for title, side in ((f"{name} TRAIN", 1), (f"{name} TEST", 2)):
            columns.append(Column(title.upper(), _cell(place, side, name), right=True))
    columns.append(Column("IS", lambda row: row[3]))
    head = (
        f"{value['trace']}: {units.plural(len(found.points), 'trade-off')} that nothing else beats, of "
        f"{found.evaluations} tried on {value['train_jobs']:,} jobs; judged on the {value['test_jobs']:,} "
        "after them"
    )
    return "\n".join([head, screen.table(columns, rows, screen.terminal_width())])


def _matplotlib() -> Any:
    """Loads matplotlib for a picture. Raises Problem: it is not installed."""
    if (drawing := matplotlib_or_hint()) is None:
        raise Problem("failed", "a picture needs matplotlib")
    return drawing


def _cell(place: int, side: int, name: str) -> Callable[[Any], str]:
    return lambda row: units.NONE if row[side] is None else number(row[side][place], name)


def number(value: float, objective: str) -> str:
    """Seconds as hours, parts as per cent."""
    if objective.startswith("jct"):
        return f"{value / 3600.0:,.2f} h"
    return f"{100.0 * value:,.2f} %"


def _picture(drawing: Any, found: ParetoFront, trace: str) -> Any:
    scales = [1 / 3600.0 if objective.metric == "jct" else 100.0 for objective in found.objectives[:2]]
    titles = [
        f"{objective} ({'h' if objective.metric == 'jct' else '%'})" for objective in found.objectives[:2]
    ]

    def scaled(values: tuple[float, ...]) -> tuple[float, float]:
        return values[0] * scales[0], values[1] * scales[1]

    series = {
        "pcs (test jobs)": sorted(scaled(point.test) for point in found.points),
        "pcs (training jobs)": [scaled(point.train) for point in found.points],
        **{policy: [scaled(values)] for policy, values in found.beside.items()},
    }
    return drawing.trade_off(series, f"Trade-offs, {trace}", titles[0], titles[1], line="pcs (test jobs)")


# --- Progress ----------------------------------------------------------------------------------------


@contextmanager
def _bar(total: int) -> Iterator[Callable[[SearchProgress], None]]:
    """A bar with the front as it grows; nothing where standard error is no terminal."""
    import sys

    from cotenant.controller.present.screen import is_terminal

    if not is_terminal(sys.stderr):
        yield lambda progress: None
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    line = RichProgress(
        TextColumn("configurations"), BarColumn(bar_width=30), MofNCompleteColumn(), TimeRemainingColumn()
    )
    task = line.add_task("", total=total)
    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:

        def tell(progress: SearchProgress) -> None:
            line.update(task, completed=progress.done)
            live.update(Group(line, Text(front_lines(progress))))

        yield tell


def front_lines(progress: SearchProgress) -> str:
    """Some points of the front so far, spread over it."""
    points = progress.front
    places = sorted({round(number * (len(points) - 1) / max(1, SHOWN - 1)) for number in range(SHOWN)})
    lines = [f"front so far: {units.plural(len(points), 'point')}"]
    lines += ["  " + "  ".join(f"{value:12.5g}" for value in points[place].values) for place in places]
    return "\n".join(lines)
