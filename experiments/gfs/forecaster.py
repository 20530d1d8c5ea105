"""`python -m experiments.gfs.forecaster`: how well could demand be foreseen? Forecasters judged on a file of
hourly demand, and one trained on it for `gfs:model=MODEL`.

Rule: what a script reads goes to standard output; what a person should know besides (columns that were not
used, missing hours, models that need a library) goes to standard error.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from cotenant.controller.cli.frame.command import argument, group, option
from cotenant.controller.cli.frame.output import FormFlag, show_one
from cotenant.controller.cli.offline.files import contents, write_file
from cotenant.controller.domain import texts
from cotenant.controller.papers.gfs.forecast import ForecastCard, ForecastModel, Scores, write
from cotenant.controller.papers.gfs.training.holidays import NoHolidays, days_of
from cotenant.controller.papers.gfs.training.train import train as fit
from cotenant.controller.present import screen, tables, units
from cotenant.controller.present.problem import Problem, nearest
from cotenant.controller.sim import TraceProblem
from experiments.gfs.training import MODELS, DemandFile, ForecastEvaluation, Judged, TooFewHours, read
from experiments.gfs.training import evaluate as judge
from experiments.shared import program

PROGRAM: Final = "python -m experiments.gfs.forecaster"
DemandArgument = Annotated[
    str, argument(metavar="FILE", help="Hourly demand, .csv or .csv.gz: `hour` or `time`, gpus_active_NAME.")
]
EXTRAS: Final = {"torch": "train", "xgboost": "gfs"}
LICENCE_MAX: Final = 200
ColumnsFlag = Annotated[
    str, option("--columns", metavar="A,B", help="Of the series, in GPUs.", show_default="gpus_active_*")
]
StartFlag = Annotated[
    str, option("--start", metavar="DATE", help="Of hour 0, as 2024-10-01, where FILE has no `time`.")
]
HolidaysFlag = Annotated[
    str, option("--holidays", metavar="COUNTRY", help="Its holidays are known: CN, DE, DE-BY.")
]
HorizonFlag = Annotated[int, option("--horizon-h", metavar="H", min=1, max=24, help="Hours ahead.")]
TestLastFlag = Annotated[
    int, option("--test-last-h", metavar="H", min=2, help="Kept out of training, and judged on.")
]
AggregationFlag = Annotated[
    Literal["series", "pool", "paper"],
    option(
        "--aggregation",
        metavar="series|pool|paper",
        help="Judge each series; their total; or the total as the sum of the series' quantiles (eq. 9).",
    ),
]
ModelsFlag = Annotated[
    str, option("--models", metavar="A,B", help="Only these.", show_default="all", complete=lambda t: [])
]
TrainingSeedFlag = Annotated[int, option("--seed", metavar="S", min=0, help="Of the trainings.")]

NAMES_SHOWN: Final = 6


@group()
def forecaster() -> None:
    """How many GPUs will be asked for in the next hours? Forecasters judged on your own demand.

    \b
    For example:
      python -m experiments.gfs.forecaster evaluate demand.csv
      python -m experiments.gfs.forecaster evaluate demand.csv.gz --horizon-h 4 --test-last-h 672 -o json
      python -m experiments.gfs.forecaster train demand.csv --out demand.json
    """


@forecaster.part("evaluate")
def evaluate(
    file: DemandArgument,
    horizon_h: HorizonFlag = 4,
    test_last_h: TestLastFlag = 672,
    aggregation: AggregationFlag = "series",
    models: ModelsFlag = "",
    columns: ColumnsFlag = "",
    start: StartFlag = "",
    holidays: HolidaysFlag = "",
    seed: TrainingSeedFlag = 0,
    form: FormFlag = "table",
) -> None:
    """Train forecasters on all but the last hours of a file, and judge them on these.

    Every row of FILE is an hour, every column gpus_active_NAME an organisation, or a pool of one GPU type.
    Hours may be missing. Errors are in GPUs; a pinball loss is what a quantile costs; coverage is the share
    of hours at or below it.

    \b
    For example:
      python -m experiments.gfs.forecaster evaluate demand.csv --horizon-h 4 --test-last-h 672 -o json
      python -m experiments.gfs.forecaster evaluate demand.csv --aggregation pool --models xgboost,dlinear
      python -m experiments.gfs.forecaster evaluate demand.csv --start 2024-10-01 --holidays CN
    """
    wanted = _models(models)
    found = _demand(file, columns, start)
    days = _holidays(holidays, found)
    try:
        with _bar(len(wanted)) as tell:
            result = judge(
                found.demand,
                horizon_h=horizon_h,
                test_last_h=test_last_h,
                seed=seed,
                models=wanted,
                holidays=days,
                tell=tell,
            )
    except TooFewHours as error:
        raise Problem("refused", f"{file}: {error}", "give more hours, or a smaller --test-last-h") from None
    for model, library in result.left_out.items():
        extra = EXTRAS[library]
        screen.tell(
            f'{model} is not judged: it needs {library}: pip install ".[{extra}]" in the source folder'
        )
    if not result.answers:
        raise Problem("refused", "no model is left to judge", "leave --models out")
    rows = result.judge(aggregation)
    value = {
        "schema": "forecast-evaluation/1", "horizon_h": horizon_h, "test_last_h": test_last_h,
        "aggregation": aggregation, "series": list(found.demand.names), "hours": found.demand.hours,
        "missing_hours": found.missing, "seed": seed, "models": [_json_row(row) for row in rows],
    }  # fmt: skip
    show_one(form, value, rows[0].model, rows, lambda it: evaluation_page(result, it, horizon_h, aggregation))


@forecaster.part("train")
def train(
    file: DemandArgument,
    out: Annotated[str, option("--out", metavar="MODEL", help="The file to write.")],
    model: Annotated[
        Literal["xgboost-cqr", "orglinear"],
        option("--model", metavar="xgboost-cqr|orglinear", help="What to train."),
    ] = "xgboost-cqr",
    horizon_h: Annotated[
        int,
        option("--horizon-h", metavar="H", min=1, max=24, help="Hours ahead; gfs asks for `hours` + 1."),
    ] = 4,
    test_last_h: Annotated[
        int, option("--test-last-h", metavar="H", min=2, help="Judged on, before all hours are trained on.")
    ] = 168,
    columns: ColumnsFlag = "",
    start: StartFlag = "",
    holidays: HolidaysFlag = "",
    licence: Annotated[
        str, option("--licence", metavar="TEXT", help="Of the demand; kept with the model.")
    ] = "",
    seed: Annotated[
        int, option("--seed", metavar="S", min=0, help="The same seed and file, the same model.")
    ] = 0,
    form: FormFlag = "table",
) -> None:
    """Train a forecaster on all hours of a file, for `gfs:model=MODEL`.

    The model says how good it is: another training, of all but the last hours, is judged on these. Series
    are named as the organisations whose demand they are. To use it takes neither torch nor XGBoost.

    \b
    For example:
      python -m experiments.gfs.forecaster train demand.csv --out demand.json
      python -m experiments.gfs.forecaster train demand.csv --model orglinear --holidays CN --out demand.json
      cotenant policy set gfs model=/etc/cotenant/demand.json
    """
    path = Path(out).expanduser()
    if not path.parent.is_dir():
        raise Problem("refused", f"{path.parent} is no folder", "make it, or choose another --out")
    found = _demand(file, columns, start)
    days = _holidays(holidays, found)
    with _bar(3) as tell:
        card = _card(file, found, model, horizon_h, test_last_h, seed, days, licence, tell)
        tell(2, model)
        trained = fit(found.demand, horizon_h, seed, kind=model, holidays=days, card=card)
    write_file(path, write(trained))
    show_one(form, _card_as_json(trained, path), str(path), trained, lambda it: model_page(it, path))


def _card(
    file: str,
    found: DemandFile,
    model: str,
    horizon_h: int,
    test_last_h: int,
    seed: int,
    days: frozenset[int],
    licence: str,
    tell: Callable[[int, str], None],
) -> ForecastCard:
    """Makes the card of a model from a test of its kind. Raises Problem: too few hours, or the library is
    missing."""
    try:
        result = judge(
            found.demand,
            horizon_h=horizon_h,
            test_last_h=test_last_h,
            seed=seed,
            models=("last-value", model),
            holidays=days,
            tell=tell,
        )
    except TooFewHours as error:
        raise Problem("refused", f"{file}: {error}", "give more hours, or a smaller --test-last-h") from None
    if result.left_out:
        library = result.left_out[model]
        raise Problem(
            "refused",
            f"{model} is trained with {library}, which is not installed",
            f'pip install ".[{EXTRAS[library]}]" in the source folder',
        )
    last, own = (
        Scores(**{name: getattr(row, name) for name in Scores.__struct_fields__}) for row in result.judge()
    )
    return ForecastCard(
        file=Path(file).name,
        sha256=hashlib.sha256(contents(file)).hexdigest(),
        licence=texts.one_line(licence)[:LICENCE_MAX],
        test_last_h=test_last_h,
        scores=own,
        last_value=last,
    )


def _card_as_json(model: ForecastModel, path: Path) -> dict[str, Any]:
    return {
        "schema": "forecast-training/1",
        "file": str(path),
        "model": model.kind,
        "horizon_h": model.horizon_h,
        "levels": model.levels,
        "series": model.series,
        "hours": model.hours,
        "seed": model.seed,
        "made_by": model.made_by,
        "card": msgspec.to_builtins(model.card),
    }


FIELDS: Final = (
    "model",
    "mae",
    "rmse",
    "mape",
    "pinball_90",
    "pinball_95",
    "coverage_90",
    "coverage_95",
    "train_cpu_s",
)


def _json_row(row: Judged) -> dict[str, Any]:
    return {name: getattr(row, name) for name in FIELDS}


def _models(text: str) -> tuple[str, ...]:
    """Reads the names of models in `text`. Raises Problem."""
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip())) or tuple(MODELS)
    for word in words:
        if word not in MODELS:
            near = nearest(word, MODELS, 0.6)
            hint = f"did you mean {near}?" if near else f"models are {', '.join(MODELS)}"
            raise Problem("usage", f"--models: there is no model {word!r}", hint)
    return tuple(sorted(words, key=list(MODELS).index))


def _demand(file: str, columns: str, start: str) -> DemandFile:
    """Reads the demand in a file. Raises Problem."""
    names = [name.strip() for name in columns.split(",") if name.strip()]
    try:
        begins = date.fromisoformat(start) if start else None
    except ValueError:
        raise Problem("usage", f"--start {start!r} is no date", "write it as 2024-10-01") from None
    try:
        found = read(contents(file), Path(file).name, columns=names, start=begins)
    except TraceProblem as error:
        raise Problem("usage", error.message, error.hint) from None
    if found.ignored:
        screen.tell(f"{Path(file).name}: columns without a meaning here: {joined_names(found.ignored)}")
    if found.missing:
        screen.tell(f"{Path(file).name}: {units.plural(found.missing, 'hour')} with something missing")
    return found


def _holidays(country: str, found: DemandFile) -> frozenset[int]:
    """Looks up the holidays of `country` for the demand. Raises Problem."""
    if not country:
        return frozenset()
    try:
        return days_of(country, found.demand)
    except NoHolidays as error:
        raise Problem("usage", f"--holidays {country}: {error}") from None


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int, str], None]]:
    """A function to tell progress to; on a terminal it moves a bar on standard error."""
    if not screen.is_terminal(sys.stderr):
        yield lambda _done, _model: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("models"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    line = bar.add_task("", total=total)
    with bar:
        yield lambda done, model: bar.update(line, completed=done, description=f"{model:<16}")


def evaluation_page(
    result: ForecastEvaluation, rows: tuple[Judged, ...], horizon_h: int, aggregation: str
) -> str:
    last = next((row.mae for row in rows if row.model == "last-value"), None)
    columns = (
        tables.Column("MODEL", lambda row: row.model),
        tables.Column("MAE, GPUS", lambda row: f"{row.mae:.1f}", right=True),
        tables.Column("MAE / LAST", lambda row: f"{row.mae / last:.2f}" if last else "", rank=1, right=True),
        tables.Column("RMSE, GPUS", lambda row: f"{row.rmse:.1f}", rank=4, right=True),
        tables.Column("MAPE", lambda row: _percent(row.mape), rank=5, right=True),
        tables.Column("LOSS .9, GPUS", lambda row: f"{row.pinball_90:.1f}", rank=2, right=True),
        tables.Column("LOSS .95, GPUS", lambda row: f"{row.pinball_95:.1f}", rank=7, right=True),
        tables.Column("WITHIN .9", lambda row: _percent(row.coverage_90), right=True),
        tables.Column("WITHIN .95", lambda row: _percent(row.coverage_95), rank=6, right=True),
        tables.Column("CPU, s", lambda row: f"{row.train_cpu_s:.1f}" if row.train_cpu_s else "", 8, True),
        tables.Column("WHAT", lambda row: MODELS[row.model], rank=9),
    )
    return "\n".join(
        (
            _what(result, horizon_h, aggregation),
            "",
            screen.table(columns, rows, screen.terminal_width()),
            "",
            _verdict(rows, last),
        )
    )


def _what(result: ForecastEvaluation, horizon_h: int, aggregation: str) -> str:
    names = result.names[:-1] if len(result.names) > 1 else result.names
    shown = joined_names(names)
    subject = {
        "series": f"{len(names)} series ({shown})" if len(names) > 1 else shown,
        "pool": f"the total of {len(names)} series",
        "paper": f"the total of {len(names)} series, quantiles summed over them",
    }[aggregation]
    hours = f"1 to {horizon_h} hours" if horizon_h > 1 else "1 hour"
    return f"{subject}; {hours} ahead from {len(result.origins)} origins; errors in GPUs"


def _verdict(rows: tuple[Judged, ...], last: float | None) -> str:
    first, best = rows[0], min(rows, key=lambda row: row.mae)
    text = f"{first.model} is off by {first.mae:.1f} GPUs on average"
    if last and first.model != "last-value":
        change = 100 * (first.mae / last - 1)
        text += f", {abs(change):.0f} % {'less' if change < 0 else 'more'} than the last value"
    text += f"; {_percent(first.coverage_90)} of the hours stay within its .9 quantile."
    if best.mae < first.mae:
        text += f" {best.model} is nearer: {best.mae:.1f}."
    return screen.wrap_text(text, 0)


def joined_names(names: tuple[str, ...]) -> str:
    return texts.one_line(", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else ""))


def _percent(share: float | None) -> str:
    return units.NONE if share is None else f"{100 * share:.1f} %"


def model_page(model: ForecastModel, path: Path) -> str:
    """The page that shows the card of a model."""
    card, found = model.card, "a year of holidays ahead, " if model.holidays else ""
    names = model.series[:-1] if len(model.series) > 1 else model.series
    lines = [f"{path}: {model.kind} for {joined_names(names)}, 1 to {model.horizon_h} hours ahead"]
    if card is not None:
        licence = f" ({card.licence})" if card.licence else ""
        lines.append(f"  trained on {model.hours} hours of {card.file}{licence}, {found}seed {model.seed}")
        own, last = card.scores, card.last_value
        lines.append(
            f"  on its last {card.test_last_h} hours, by a training without them: off by {own.mae:.1f} GPUs, "
            f"the last value by {last.mae:.1f}; {_percent(own.coverage_90)} within its .9 quantile"
        )
    lines.append(f"  use it: cotenant policy set gfs model={path}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(program.run(forecaster, PROGRAM))
