"""What `cotenant predictor` says: documents for scripts, tables and notes for people."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cotenant.controller.cli.frame import screen
from cotenant.controller.cli.frame.screen import Column

if TYPE_CHECKING:
    from cotenant.controller.domain import InterferenceModel
    from cotenant.controller.training import Evaluation, PairRows

NAMES_SHOWN: Final = 4
BETTER_BY: Final = 0.05
"""A model is called better if its RMSE is lower than the mean's by this share: less may be chance, and a
model is more work than a number."""

Errors = tuple[float | None, float | None]
"""An error for job 1 and one for job 2; None: there was none to judge."""


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
            f"note: {screen.plural(len(names), 'pair')} of models were in the training ({shown}); "
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
    """In words, with the numbers of both jobs together."""
    model, mean = together(rmse), together(mean_rmse)
    numbers = f"RMSE {model:.3f} against {mean:.3f}"
    if is_better(rmse, mean_rmse):
        return f"better than the mean: {numbers}"
    return f"no better than the mean ({numbers}): do not use it; without a model solo duty cycles count"


def as_evaluation(result: Evaluation) -> dict[str, Any]:
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
            screen.plural(result.pairs, "pair"),
            screen.table(columns, rows, screen.terminal_width()),
            f"{100 * result.coverage:.0f} % of the measured ratios lie within the model's margins",
            f"on these pairs {verdict(result.rmse, result.mean_prediction_rmse)}",
        )
    )


def described(model: InterferenceModel) -> dict[str, Any]:
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
    from cotenant.controller.models.interference.predictor import SCALE_MIN

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
    return screen.NONE if value is None else f"{value:.3f}"
