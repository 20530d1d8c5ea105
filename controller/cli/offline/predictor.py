"""`cotenant predictor`: train the interference model, judge it, look into it, write down our own pairs.

Rule: what a script reads goes to standard output; what a person should know besides (pairs seen before,
columns that are missing, licences) goes to standard error.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from cotenant.controller.cli.frame.command import argument, group, option
from cotenant.controller.cli.frame.output import (
    JsonFlag,
    OutputFlag,
    chosen_format,
    json_text,
    show_one,
    write_json,
    write_lines,
)
from cotenant.controller.cli.offline.files import contents, write_file
from cotenant.controller.present import screen, units
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.tables import Column
from cotenant.controller.whatif.problems import journal_problem

if TYPE_CHECKING:
    from cotenant.controller.performance import InterferenceModel
    from cotenant.controller.training import Evaluation, PairRows

TrainingPairsFlag = Annotated[
    list[str],
    option("--pairs", metavar="FILE", help="Measured pairs, .csv or .csv.gz; may be repeated."),
]
ModelArgument = Annotated[str, argument(metavar="MODEL", help="A file that `train` wrote.")]

NAMES_SHOWN: Final = 4
BETTER_BY: Final = 0.05
"""A model is called better if its RMSE is lower than the mean's by this share: less may be chance, and a
model is more work than a number."""

Errors = tuple[float | None, float | None]
"""An error for job 1 and one for job 2; None: there was none to judge."""


@group()
def predictor() -> None:
    """How much would two jobs slow each other down? A model of measured pairs that answers for others.

    \b
    For example:
      cotenant predictor export pairs.csv
      cotenant predictor train --pairs pairs.csv --seed 1 --out model.json
      cotenant predictor evaluate model.json --pairs others.csv
      cotenant controller --predictor model.json
    """


@predictor.part("train")
def train(
    pairs: TrainingPairsFlag,
    out: Annotated[str, option("--out", metavar="MODEL", help="The file to write.")],
    more: Annotated[list[str] | None, argument(metavar="FILE", help="More files of pairs.")] = None,
    seed: Annotated[
        int, option("--seed", metavar="S", min=0, help="The same seed and files, the same model.")
    ] = 0,
    licence: Annotated[
        str, option("--licence", metavar="TEXT", help="Of the files; kept with the model.")
    ] = "",
    output: OutputFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Train a model on measured pairs; its settings are chosen on pairs left out.

    A model is under the terms of the data it was trained on.

    \b
    For example:
      cotenant predictor train --pairs pairs.csv --seed 1 --out model.json
      cotenant predictor train --pairs ours.csv theirs.csv.gz --out model.json
    """
    form = chosen_format(output, as_json)
    files = [pairs_of(name, licence) for name in (*pairs, *(more or ()))]
    path = Path(out).expanduser()
    if not path.parent.is_dir():
        raise Problem("refused", f"{path.parent} is no folder", "make it, or choose another --out")
    for each in files:
        tell_of_rows(each)
    from cotenant.controller.training import NoXGBoost, interference

    try:
        model = interference.train(files, seed, screen.tell if screen.is_terminal() else lambda _: None)
    except NoXGBoost as error:
        raise Problem("refused", str(error)) from None
    except interference.TooFewPairs as error:
        raise Problem(
            "refused", str(error), "`cotenant predictor export` writes this cluster's own"
        ) from None
    from cotenant.controller.models.interference import model_file

    data = model_file.write(model)
    write_file(path, data)
    tell_of_licences(model)
    show_one(form, model_document(model), str(path), model, page)


@predictor.part("evaluate")
def evaluate(
    model: ModelArgument,
    pairs: TrainingPairsFlag,
    output: OutputFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Judge a model on measured pairs, beside the mean of its training. Both jobs of a pair are judged.

    Columns that the file lacks are missing values. To judge fairly, take pairs that were not trained on.

    \b
    For example:
      cotenant predictor evaluate model.json --pairs held-out.csv -o json
    """
    form = chosen_format(output, as_json)
    found = model_of(model)
    from cotenant.controller.models.interference.predictor import Predictor
    from cotenant.controller.training import evaluate as judge
    from cotenant.controller.training import together

    files = [pairs_of(name) for name in pairs]
    for each in files:
        tell_of_rows(each)
    result = judge(Predictor(found), together(files))
    tell_of_judgement(result)
    if form in ("json", "jsonl"):
        value = evaluation_document(result)
        write_json(value) if form == "json" else write_lines([json_text(value)])
    elif form == "id":
        write_lines([model])
    else:
        screen.say(evaluation_table(result))


@predictor.part("show")
def show(model: ModelArgument, output: OutputFlag = None, as_json: JsonFlag = False) -> None:
    """What a model was trained on, its licence, how good it was on pairs left out, what it leans on."""
    form = chosen_format(output, as_json)
    found = model_of(model)
    show_one(form, model_document(found), model, found, page)


@predictor.part("export")
def export(
    file: Annotated[str, argument(metavar="FILE", help="To write: .csv, or .csv.gz.")],
    journal: Annotated[
        str,
        option("--journal", metavar="DIR", help="Another controller's state folder, or a journal file."),
    ] = "",
) -> None:
    """Write down the pairs that this cluster has measured, with both jobs' profiles, to train on them.

    Read from the journal, on the controller's machine; the controller may be running.

    \b
    For example:
      cotenant predictor export pairs.csv
      cotenant predictor export pairs.csv.gz --journal /var/lib/cotenant/controller
    """
    import gzip

    from cotenant.controller.client.asking import loaded_settings
    from cotenant.controller.sim.past.journal import NothingToReplay
    from cotenant.controller.store import JournalError, place_of
    from cotenant.controller.system import paths
    from cotenant.controller.training import measured_pairs

    path = Path(file).expanduser()
    where = place_of(journal) if journal else paths.controller_state_dir(loaded_settings().settings)
    try:
        text, rows, unprofiled = measured_pairs(where)
    except JournalError as error:
        raise journal_problem(error, named=bool(journal)) from None
    except NothingToReplay as error:
        raise Problem("refused", str(error), "name its state folder with --journal") from None
    if not rows:
        raise Problem(
            "refused",
            "no pair has been measured yet"
            if not unprofiled
            else f"of {unprofiled} measured pairs none has a profile of both jobs",
            "jobs are profiled while they run alone",
        )
    data = text.encode()
    write_file(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    without = f"; {units.plural(unprofiled, 'pair')} without a profile of both left out" if unprofiled else ""
    screen.tell(f"{path}: {units.plural(rows, 'pair')}{without}")


# --- Files -------------------------------------------------------------------------------------------


def pairs_of(name: str, licence: str = "") -> PairRows:
    """Reads the pairs in a file. Raises Problem."""
    from cotenant.controller.training import PairsProblem, read

    try:
        return read(contents(name), Path(name).name, licence)
    except PairsProblem as error:
        raise Problem("usage", str(error)) from None


def model_of(name: str) -> InterferenceModel:
    """Reads the interference model in a file. Raises Problem."""
    from cotenant.controller.models.interference.model_file import ModelProblem, read

    try:
        return read(contents(name), name)
    except ModelProblem as error:
        raise Problem("usage", str(error)) from None


def tell_of_rows(pairs: PairRows) -> None:
    if pairs.infeasible or pairs.unlabelled:
        screen.tell(
            f"{pairs.name}: {len(pairs)} rows used; left out: {pairs.infeasible} that did not run, "
            f"{pairs.unlabelled} without a ratio"
        )
    if pairs.ignored:
        screen.tell(f"{pairs.name}: columns without a meaning here: {', '.join(pairs.ignored)}")


def tell_of_licences(model: InterferenceModel) -> None:
    for file in model.training.files:
        screen.tell(f"licence of {file.name}: {file.licence}; the model is under the same terms")


def tell_of_judgement(result: Evaluation) -> None:
    if result.seen_before:
        names = result.seen_before
        shown = ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")
        screen.tell(
            f"note: {units.plural(len(names), 'pair')} of models were in the training ({shown}); "
            "on these the model looks better than it is"
        )
    if result.missing:
        screen.tell(f"note: missing in the file, and taken as missing values: {', '.join(result.missing)}")


def is_better(rmse: Errors, mean_rmse: Errors) -> bool:
    """Whether the model is better than always answering with the mean."""
    return together(rmse) < (1.0 - BETTER_BY) * together(mean_rmse)


def together(rmse: Errors) -> float:
    """The RMSE over both jobs, or over the one that was judged."""
    known = [each for each in rmse if each is not None]
    return math.sqrt(sum(each**2 for each in known) / len(known)) if known else math.inf


def verdict(rmse: Errors, mean_rmse: Errors) -> str:
    """The verdict on a model in words, with the numbers of both jobs together."""
    model, mean = together(rmse), together(mean_rmse)
    numbers = f"RMSE {model:.3f} against {mean:.3f}"
    if is_better(rmse, mean_rmse):
        return f"better than the mean: {numbers}"
    return f"no better than the mean ({numbers}): do not use it; without a model solo duty cycles count"


def evaluation_document(result: Evaluation) -> dict[str, Any]:
    return {
        "schema": "predictor-eval/1",
        "better_than_mean": is_better(result.rmse, result.mean_prediction_rmse),
        "pairs": result.pairs,
        "rmse": list(result.rmse),
        "mae": list(result.mae),
        "mean_prediction_rmse": list(result.mean_prediction_rmse),
        "features": list(result.features),
    }


def evaluation_table(result: Evaluation) -> str:
    rows = [
        ("model, RMSE", result.rmse),
        ("model, MAE", result.mae),
        ("mean of the training, RMSE", result.mean_prediction_rmse),
    ]
    columns = (
        Column("XI", lambda row: row[0]),
        Column("JOB 1", lambda row: number(row[1][0]), right=True),
        Column("JOB 2", lambda row: number(row[1][1]), right=True),
    )
    return "\n".join(
        (
            units.plural(result.pairs, "pair"),
            screen.table(columns, rows, screen.terminal_width()),
            f"{100 * result.coverage:.0f} % of the measured ratios lie within the model's margins",
            f"on these pairs {verdict(result.rmse, result.mean_prediction_rmse)}",
        )
    )


def model_document(model: InterferenceModel) -> dict[str, Any]:
    training = model.training
    return {
        "schema": "predictor/1",
        "features": list(model.features),
        "importances": dict(zip(model.features, model.importances, strict=True)),
        "trees": len(model.trees.sizes),
        "settings": model.settings,
        "seed": training.seed,
        "made_by": training.made_by,
        "files": msgspec.to_builtins(training.files),
        "pairs": list(training.pairs),
        "gpu_types": list(training.gpu_types),
        "mean_xi": list(model.mean_xi),
        "cross_validated": msgspec.to_builtins(model.cross_validation),
        "better_than_mean": is_better(
            model.cross_validation.rmse, model.cross_validation.mean_prediction_rmse
        ),
        "coverage": model.coverage,
        "margins": msgspec.to_builtins(model.bands),
    }


def page(model: InterferenceModel) -> str:
    checked, training = model.cross_validation, model.training
    files = ", ".join(f"{file.name} ({file.rows:,} rows, licence: {file.licence})" for file in training.files)
    leans = sorted(zip(model.importances, model.features, strict=True), reverse=True)
    rmse, mean = both(checked.rmse), both(checked.mean_prediction_rmse)
    from cotenant.controller.models.interference.bands import SCALE_MIN

    at_one_and_a_half = SCALE_MIN + 0.5
    margins = ", ".join(
        f"±{band.factor * at_one_and_a_half:.2f}"
        + (f" up to {band.novelty_max:.2g}" if band.novelty_max is not None else " beyond")
        for band in model.bands
    )
    facts = (
        ("trained on", files),
        (
            "pairs",
            f"{len(training.pairs)} of models"
            + (f" on {', '.join(training.gpu_types)}" * bool(training.gpu_types)),
        ),
        ("on pairs left out", f"RMSE {rmse}; the mean alone {mean}"),
        ("on unseen models", f"RMSE {number(checked.unseen_model_rmse)}"),
        ("verdict", verdict(checked.rmse, checked.mean_prediction_rmse)),
        (f"{100 * model.coverage:.0f} % margins", f"at xi = 1.5, by how strange a job is: {margins}"),
        ("leans on", ", ".join(f"{name} {100 * share:.0f} %" for share, name in leans[:6] if share > 0)),
        ("made by", f"{training.made_by}, seed {training.seed}"),
    )
    return "\n".join(f"{title:<18}  {text}" for title, text in facts)


def both(numbers: Errors) -> str:
    return " and ".join(map(number, numbers))


def number(value: float | None) -> str:
    return units.NONE if value is None else f"{value:.3f}"
