"""`python -m experiments.castor.predictor`: train a model of interference on measured pairs, and judge one.

Rule: what a script reads goes to standard output; what a person should know besides (pairs seen before,
columns that are missing, licences) goes to standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final

from cotenant.controller.cli.frame.command import argument, group, option
from cotenant.controller.cli.frame.output import FormFlag, json_text, show_one, write_json, write_lines
from cotenant.controller.cli.offline.files import contents, write_file
from cotenant.controller.cli.offline.predictor import (
    ModelArgument,
    is_better,
    model_document,
    model_of,
    number,
    page,
    verdict,
)
from cotenant.controller.models.interference import model_file
from cotenant.controller.models.interference.predictor import Predictor
from cotenant.controller.performance import InterferenceModel
from cotenant.controller.present import screen, units
from cotenant.controller.present.problem import Problem
from cotenant.controller.present.tables import Column
from cotenant.controller.training import NoXGBoost
from experiments.castor.interference import training
from experiments.castor.interference.errors import Evaluation
from experiments.castor.interference.errors import evaluate as judge
from experiments.castor.interference.pair_rows import PairRows, PairsProblem, read, together
from experiments.shared import program

PROGRAM: Final = "python -m experiments.castor.predictor"
TrainingPairsFlag = Annotated[
    list[str],
    option("--pairs", metavar="FILE", help="Measured pairs, .csv or .csv.gz; may be repeated."),
]
NAMES_SHOWN: Final = 4


@group()
def interference() -> None:
    """How much would two jobs slow each other down? A model of measured pairs that answers for others.

    \b
    For example:
      cotenant predictor export pairs.csv
      python -m experiments.castor.predictor train --pairs pairs.csv --seed 1 --out model.json
      python -m experiments.castor.predictor evaluate model.json --pairs others.csv
      cotenant controller --predictor model.json
    """


@interference.part("train")
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
    form: FormFlag = "table",
) -> None:
    """Train a model on measured pairs; its settings are chosen on pairs left out.

    A model is under the terms of the data it was trained on.

    \b
    For example:
      python -m experiments.castor.predictor train --pairs pairs.csv --seed 1 --out model.json
      python -m experiments.castor.predictor train --pairs ours.csv theirs.csv.gz --out model.json
    """
    files = [pairs_of(name, licence) for name in (*pairs, *(more or ()))]
    path = Path(out).expanduser()
    if not path.parent.is_dir():
        raise Problem("refused", f"{path.parent} is no folder", "make it, or choose another --out")
    for each in files:
        tell_of_rows(each)

    try:
        model = training.train(files, seed, screen.tell if screen.is_terminal() else lambda _: None)
    except NoXGBoost as error:
        raise Problem("refused", str(error)) from None
    except training.TooFewPairs as error:
        raise Problem(
            "refused", str(error), "`cotenant predictor export` writes this cluster's own"
        ) from None

    data = model_file.write(model)
    write_file(path, data)
    tell_of_licences(model)
    show_one(form, model_document(model), str(path), model, page)


@interference.part("evaluate")
def evaluate(
    model: ModelArgument,
    pairs: TrainingPairsFlag,
    form: FormFlag = "table",
) -> None:
    """Judge a model on measured pairs, beside the mean of its training. Both jobs of a pair are judged.

    Columns that the file lacks are missing values. To judge fairly, take pairs that were not trained on.

    \b
    For example:
      python -m experiments.castor.predictor evaluate model.json --pairs held-out.csv -o json
    """
    found = model_of(model)

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


def pairs_of(name: str, licence: str = "") -> PairRows:
    """Reads the pairs in a file. Raises Problem."""
    try:
        return read(contents(name), Path(name).name, licence)
    except PairsProblem as error:
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


if __name__ == "__main__":
    sys.exit(program.run(interference, PROGRAM))
