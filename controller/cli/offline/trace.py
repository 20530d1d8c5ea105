"""`cotenant sim trace`: what a trace holds, a generated one, another format turned into ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

from cotenant.controller.cli.frame.command import argument, group, option
from cotenant.controller.cli.frame.output import FormFlag, show_one
from cotenant.controller.cli.offline.options import SeedFlag, flagged_by_scenario
from cotenant.controller.cli.offline.trace_list import sim_trace_list
from cotenant.controller.present import screen, units
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.tables import Column
from cotenant.controller.present.units import NONE, duration
from cotenant.controller.sim import Trace, column_map, open_trace
from cotenant.controller.trace_names import SYNTH
from cotenant.controller.whatif.choices import convert_errors

FileArgument = Annotated[str, argument(metavar="FILE", help="To write: .csv, or .csv.gz to have it packed.")]
MapFlag = Annotated[
    str, option("--map", metavar="FIELD=COLUMN,...", help="The columns of a table in no format of ours.")
]
ForceFlag = Annotated[bool, option("--force", help="Replace FILE if it is there.")]


@group()
def trace() -> None:
    """Traces: what was submitted to a cluster, when, and how long it ran.

    \b
    For example:
      cotenant sim trace list
      cotenant sim trace show philly/6214e9
      cotenant sim trace import cluster_job_log ours.csv.gz --format philly
      cotenant sim trace synth earth.csv.gz --like earth --jobs 50000 --seed 7
    """


trace.part("list")(sim_trace_list)


@trace.part("show")
@flagged_by_scenario
def show_trace(
    trace: str,
    format: str = "auto",
    vc: str | None = None,
    seed: SeedFlag = 0,
    form: FormFlag = "table",
) -> None:
    """How many jobs, how long, how wide, how often; what was left out, and where it comes from."""
    from cotenant.controller.sim import describe

    with convert_errors():
        found = open_trace(trace, format=format, seed=seed)
        if vc is not None:
            found = found.vc_trace(vc)
        value = {"schema": "trace/1", **describe(found)}
    show_one(form, value, found.name, value, lambda shown: page(found, shown))


def page(found: Trace, value: dict[str, Any]) -> str:
    lines = [f"{found.name}: {len(found):,} jobs"]
    if found.synthetic:
        lines[0] += "  " + screen.paint("SYNTHETIC", "yellow")
    known = [("source", found.source or NONE), ("licence", found.licence or "not known"), *facts(value)]
    lines += [f"  {key:<12}  {screen.wrap_text(text, 16)}" for key, text in known]
    if len(value["vcs"]) > 1:
        lines += ["", screen.table(VC_COLUMNS, value["vcs"], screen.terminal_width())]
    below = [f"  left out {count:,}: {reason}" for reason, count in sorted(found.excluded.items())]
    below += [f"  note: {note}" for note in found.notes]
    return "\n".join([*lines, *([""] if len(value["vcs"]) > 1 and below else []), *below])


VC_COLUMNS: Final = (
    Column("VC", lambda vc: vc["vc"]),
    Column("JOBS", lambda vc: f"{vc['jobs']:,}", right=True),
    Column("GPU-HOURS", lambda vc: _hours(vc["gpu_hours"]), right=True),
    Column("MEDIAN", lambda vc: duration(vc["duration_s"]["p50"]), right=True),
    Column("MEAN GPUS", lambda vc: f"{vc['gpus']['mean']:.2f}", rank=1, right=True),
    Column("BETWEEN ARRIVALS", lambda vc: duration(vc["interarrival_s"]["mean"]), rank=2, right=True),
)


def _hours(hours: float) -> str:
    """The text of `hours`; fewer than ten get two digits, because 0 would say that nothing ran."""
    return f"{hours:,.0f}" if hours >= 10.0 else f"{hours:.2g}"


def facts(value: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What there is to say of the jobs as a whole; what the trace does not have is left out."""
    if value["span_s"] is not None:
        yield "submissions", f"over {duration(value['span_s'])}"
    for title, key, text in (
        ("durations", "duration_s", duration),
        ("gpus", "gpus", lambda number: f"{number:.3g}"),
        ("arrivals", "interarrival_s", duration),
    ):
        if value[key]["mean"] is not None:
            yield title, ", ".join(f"{name} {text(number)}" for name, number in value[key].items())
    yield "one GPU", f"{100 * value['one_gpu_share']:.1f} % of the jobs"
    yield "work", f"{_hours(value['gpu_hours'])} GPU-hours"
    if value["users"]:
        yield "users", f"{value['users']:,}"
    if value["hp_jobs"]:
        yield "classes", f"{value['hp_jobs']:,} hp, {value['jobs'] - value['hp_jobs']:,} spot"
    if value["models"]:
        yield "models", ", ".join(value["models"])
    if value["states"]:
        yield "states", ", ".join(f"{name} {count:,}" for name, count in value["states"].items())


@trace.part("synth")
def synth(
    like: Annotated[str, option("--like", metavar="earth|saturn|uranus|philly", help="What to match.")],
    file: FileArgument = "",
    out: Annotated[str, option("--out", metavar="FILE", help="FILE, named by a flag.")] = "",
    jobs: Annotated[int, option("--jobs", metavar="N", min=1, max=10_000_000, help="Jobs.")] = 20_000,
    seed: SeedFlag = 0,
    force: ForceFlag = False,
) -> None:
    """Generate a trace: heavy-tailed durations, bursty arrivals, means as published. Labelled synthetic.

    \b
    For example:
      cotenant sim trace synth earth.csv.gz --like earth --jobs 50000 --seed 7
    """
    if bool(file) == bool(out):
        raise Problem("usage", "a trace is written to one file", "name it: cotenant sim trace synth FILE ...")
    with convert_errors():
        made = open_trace(f"{SYNTH}{like}:{jobs}", seed=seed)
    write(made, file or out, force)


@trace.part("import")
@flagged_by_scenario
def import_trace(
    source: Annotated[str, argument(metavar="SOURCE", help="A file of another system.")],
    file: FileArgument,
    format: str = "auto",
    columns: MapFlag = "",
    vc: str | None = None,
    force: ForceFlag = False,
) -> None:
    """Turn a trace of another system into our CSV: Philly, Helios, Alibaba PAI, SWF, Slurm's sacct.

    With --map any table with a header is read, its fields between commas, semicolons, tabs or bars. FIELD is
    submit, gpus, user, id, and duration or start and end. Times are dates or seconds since 1970.

    \b
    For example:
      cotenant sim trace import cluster_log.csv venus.csv.gz
      cotenant sim trace import sacct.txt ours.csv.gz --format sacct     (docs/traces.md: how to make it)
      cotenant sim trace import jobs.csv ours.csv --map submit=created,start=began,end=ended,gpus=nodes*4
    """
    if columns and format != "auto":
        raise Problem("usage", "--map and --format are two ways to read a file", "leave one out")
    with convert_errors():
        found = open_trace(source, format=format, columns=column_map(columns) if columns else None)
        if vc is not None:
            found = found.vc_trace(vc)
    write(found, file, force)


def write(made: Trace, file: str, force: bool) -> None:
    """Writes a trace to a new file, or over an old one with `force`. Raises Problem."""
    from cotenant.controller.sim import write_csv

    path = Path(file).expanduser()
    if path.exists() and not force:
        raise Problem("refused", f"{path} is already there", "replace it with --force")
    try:
        write_csv(made, path)
    except OSError as error:
        raise Problem(
            "refused", f"{path} cannot be written: {error.strerror}", "choose another FILE"
        ) from None
    screen.tell(f"{path}: {units.plural(len(made), 'job')}" + (", SYNTHETIC" if made.synthetic else ""))
    for reason, count in sorted(made.excluded.items()):
        screen.tell(f"left out: {units.plural(count, 'row')} ({reason})")
    for note in made.notes:
        screen.tell(f"note: {note}")
