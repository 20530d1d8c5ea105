"""`cotenant predictor`: train the interference model, judge it, look into it, write down our own pairs.

Rule: what a script reads goes to standard output; what a person should know besides (pairs seen before,
columns that are missing, licences) goes to standard error.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.command import group
from cotenant.controller.cli.frame.output import (
    JsonFlag,
    OutputFlag,
    as_text,
    chosen,
    show_one,
    write_json,
    write_lines,
)
from cotenant.controller.cli.frame.parameters import argument, option
from cotenant.controller.cli.frame.problem import Problem
from cotenant.controller.cli.offline.files import contents, journal_problem, written
from cotenant.controller.cli.offline.predictor_page import (
    as_evaluation,
    described,
    evaluation_table,
    page,
    tell_of_judgement,
    tell_of_licences,
    tell_of_rows,
)

if TYPE_CHECKING:
    from cotenant.controller.domain import InterferenceModel
    from cotenant.controller.training import PairRows


PairsFlag = Annotated[
    list[str],
    option("--pairs", metavar="FILE", help="Measured pairs, .csv or .csv.gz; may be repeated."),
]
ModelArgument = Annotated[str, argument(metavar="MODEL", help="A file that `train` wrote.")]


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
    pairs: PairsFlag,
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
    form = chosen(output, as_json)
    files = [pairs_of(name, licence) for name in (*pairs, *(more or ()))]
    path = Path(out).expanduser()
    if not path.parent.is_dir():
        raise Problem("refused", f"{path.parent} is no folder", "make it, or choose another --out")
    for each in files:
        tell_of_rows(each)
    from cotenant.controller.models.interference import predictor
    from cotenant.controller.training import NoXGBoost, interference

    try:
        model = interference.train(files, seed, screen.tell if screen.is_terminal() else lambda _: None)
    except NoXGBoost as error:
        raise Problem("refused", str(error)) from None
    except interference.TooFewPairs as error:
        raise Problem(
            "refused", str(error), "`cotenant predictor export` writes this cluster's own"
        ) from None
    data = predictor.write(model)
    written(path, data)
    tell_of_licences(model)
    show_one(form, described(model), str(path), model, page)


@predictor.part("evaluate")
def evaluate(
    model: ModelArgument,
    pairs: PairsFlag,
    output: OutputFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Judge a model on measured pairs, beside the mean of its training. Both jobs of a pair are judged.

    Columns that the file lacks are missing values. To judge fairly, take pairs that were not trained on.

    \b
    For example:
      cotenant predictor evaluate model.json --pairs held-out.csv -o json
    """
    form = chosen(output, as_json)
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
        value = as_evaluation(result)
        write_json(value) if form == "json" else write_lines([as_text(value)])
    elif form == "id":
        write_lines([model])
    else:
        screen.say(evaluation_table(result))


@predictor.part("show")
def show(model: ModelArgument, output: OutputFlag = None, as_json: JsonFlag = False) -> None:
    """What a model was trained on, its licence, how good it was on pairs left out, what it leans on."""
    form = chosen(output, as_json)
    found = model_of(model)
    show_one(form, described(found), model, found, page)


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

    from cotenant.controller.cli.frame.asking import loaded_settings
    from cotenant.controller.sim.past.journal import NothingToReplay
    from cotenant.controller.store import JournalError
    from cotenant.controller.system import paths
    from cotenant.controller.training import measured_pairs

    path = Path(file).expanduser()
    where = Path(journal).expanduser() if journal else paths.controller_state_dir(loaded_settings().settings)
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
    written(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    without = (
        f"; {screen.plural(unprofiled, 'pair')} without a profile of both left out" if unprofiled else ""
    )
    screen.tell(f"{path}: {screen.plural(rows, 'pair')}{without}")


# --- Files -------------------------------------------------------------------------------------------


def pairs_of(name: str, licence: str = "") -> PairRows:
    """Raises Problem."""
    from cotenant.controller.training import PairsProblem, read

    try:
        return read(contents(name), Path(name).name, licence)
    except PairsProblem as error:
        raise Problem("usage", str(error)) from None


def model_of(name: str) -> InterferenceModel:
    """Raises Problem."""
    from cotenant.controller.models.interference.predictor import ModelProblem, read

    try:
        return read(contents(name), name)
    except ModelProblem as error:
        raise Problem("usage", str(error)) from None
