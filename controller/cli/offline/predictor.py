"""`cotenant predictor`: write down this cluster's own pairs, and look into a model of interference.

A model is trained and judged by `python -m experiments.castor.predictor`, in the source folder.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from cotenant.controller.cli.frame.command import argument, group, option
from cotenant.controller.cli.frame.output import JsonFlag, OutputFlag, chosen_format, show_one
from cotenant.controller.cli.offline.files import contents, write_file
from cotenant.controller.present import screen, units
from cotenant.controller.present.problem import Problem
from cotenant.controller.whatif.problems import journal_problem

if TYPE_CHECKING:
    from cotenant.controller.performance import InterferenceModel

ModelArgument = Annotated[str, argument(metavar="MODEL", help="A file that a training wrote.")]

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
      python -m experiments.castor.predictor train --pairs pairs.csv --out model.json
      cotenant predictor show model.json
      cotenant controller --predictor model.json
    """


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


def model_of(name: str) -> InterferenceModel:
    """Reads the interference model in a file. Raises Problem."""
    from cotenant.controller.models.interference.model_file import ModelProblem, read

    try:
        return read(contents(name), name)
    except ModelProblem as error:
        raise Problem("usage", str(error)) from None


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
