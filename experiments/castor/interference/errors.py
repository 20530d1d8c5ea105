"""How good an interference model is: its errors on pairs that were measured.

Rule: both jobs of a pair are judged, each with the raw answer of the model: clipping at 1 is right for a
policy but would distort its errors both ways. The mean prediction is that of the training, as stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from cotenant.controller.models.interference.bands import scale_of
from cotenant.controller.models.interference.predictor import Predictor
from experiments.castor.interference.pair_rows import PairRows, select_columns

Both = npt.NDArray[np.float64]
"""[n, 2]: job 1 and job 2."""
ErrorPair = tuple[float | None, float | None]
"""Of job 1 and job 2; None where nothing was measured."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    pairs: int
    rmse: ErrorPair
    mae: ErrorPair
    mean_prediction_rmse: ErrorPair
    features: tuple[str, ...]
    """Columns of the model."""
    missing: tuple[str, ...]
    """Words that the model uses and the file lacks."""
    coverage: float
    """The share of truths within the margins."""
    seen_before: tuple[str, ...]
    """Pairs that the model was trained on."""


def evaluate(predictor: Predictor, pairs: PairRows) -> Evaluation:
    predicted, margins = predictions(predictor, pairs)
    model = predictor.model
    mean = np.broadcast_to(np.array(model.mean_xi), predicted.shape)
    inside = np.abs(predicted - pairs.xi)[(measured := ~np.isnan(pairs.xi))] <= margins[measured]
    return Evaluation(
        pairs=len(pairs),
        rmse=rmse(predicted, pairs.xi),
        mae=mae(predicted, pairs.xi),
        mean_prediction_rmse=rmse(mean, pairs.xi),
        features=model.features,
        missing=tuple(name for name in predictor.names if name not in pairs.names),
        coverage=float(inside.mean()),
        seen_before=tuple(sorted({*pairs.groups} & {*model.training.pairs})),
    )


def predictions(predictor: Predictor, pairs: PairRows) -> tuple[Both, Both]:
    """Raw xi of both jobs of every pair, and the margins."""
    first = select_columns(pairs.first, pairs.names, predictor.names)
    second = select_columns(pairs.second, pairs.names, predictor.names)
    ratios = np.stack((predictor.ratios(first, second), predictor.ratios(second, first)), axis=1)
    return ratios, scale_of(ratios) * predictor.factors(first, second)[:, None]


def rmse(predicted: Both, truth: Both) -> ErrorPair:
    return _each(predicted, truth, lambda off: math.sqrt(float((off**2).mean())))


def mae(predicted: Both, truth: Both) -> ErrorPair:
    return _each(predicted, truth, lambda off: float(np.abs(off).mean()))


def _each(predicted: Both, truth: Both, number: Callable[[npt.NDArray[np.float64]], float]) -> ErrorPair:
    """The number that `number` gives for the errors of each job, where it was measured."""
    first, second = (off[~np.isnan(off)] for off in (predicted - truth).T)
    return number(first) if len(first) else None, number(second) if len(second) else None
