"""The interference model judged on pairs left out: everything results/castor-predictor.md counts from.

Rule: nested. For each seed the pairs of models are split into five folds; the whole of `predictor train`,
the choice of its settings included, sees four of them and is judged on the fifth. Nothing was tuned on a fold
that it is judged on here, except by the people who wrote the candidates, who saw this folder.

Answers are kept in experiments/.cache/predictor/, by what they depend on.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from cotenant.controller.models.interference import model_file, predictor
from cotenant.controller.models.interference.predictor import Predictor
from cotenant.controller.performance import DEFAULT_XI, InterferenceModel, pair_timing
from cotenant.controller.training import boosting
from experiments.castor.interference import training
from experiments.castor.interference.errors import Both, predictions
from experiments.castor.interference.pair_rows import PairRows, part, read, select_columns
from experiments.shared import paths

CACHE: Final = paths.CACHE / "predictor"
SEEDS: Final = (0, 1, 2, 3, 4)
DRAWS: Final = 20
NOISY: Final = "measured, off by 0.1"
MEDIAN_S, SPREAD = 3600.0, 1.5
"""Of the remaining times that decisions are made for: lognormal."""

Truths = npt.NDArray[np.float64]


class NoData(Exception):
    """The measured tables are not here; one line."""


def table(name: str) -> PairRows:
    folder = Path(os.environ.get("COTENANT_SHARED_DATA") or paths.ROOT.parent / "shared") / "interference"
    path = folder / f"{name}.csv.gz"
    try:
        return read(path.read_bytes(), path.name)
    except OSError as error:
        raise NoData(f"{path}: {error.strerror}; set COTENANT_SHARED_DATA to the folder above it") from None


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What was said of every pair by models that had not seen it."""

    predicted: Both
    margins: Both
    mean: Both
    """The training's mean xi of job 1 and job 2, for each row the one of its fold."""
    folds: npt.NDArray[np.intp]
    settings: tuple[Mapping[str, float], ...]
    """Chosen in each fold."""


def nested(pairs: PairRows, seed: int) -> Left:
    folds = training.pair_folds(pairs.groups, seed)
    predicted, margins, mean = (np.full(pairs.xi.shape, np.nan) for _ in range(3))
    chosen = []
    for fold in range(int(folds.max()) + 1):
        out = folds == fold
        model = trained(part(pairs, ~out), seed)
        predicted[out], margins[out] = predictions(Predictor(model), part(pairs, out))
        mean[out] = model.mean_xi
        chosen.append(model.settings)
    return Left(predicted=predicted, margins=margins, mean=mean, folds=folds, settings=tuple(chosen))


def trained(pairs: PairRows, seed: int) -> InterferenceModel:
    """By the product's own training; kept, because the page needs it again."""
    import inspect

    sources = "".join(inspect.getsource(module) for module in (training, boosting, predictor))
    content = b"".join(np.ascontiguousarray(each).tobytes() for each in (pairs.first, pairs.second, pairs.xi))
    key = hashlib.sha256(sources.encode() + content + str(seed).encode()).hexdigest()[:24]
    path = CACHE / f"{key}.json"
    if path.exists():
        return model_file.read(path.read_bytes(), path.name)
    model = training.train([pairs], seed)
    CACHE.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model_file.write(model))
    return model


def rmse(predicted: Both, truth: Both) -> npt.NDArray[np.float64]:
    """Of job 1 and job 2."""
    found: npt.NDArray[np.float64] = np.sqrt(np.nanmean((predicted - truth) ** 2, axis=0))
    return found


def duty_cycle(pairs: PairRows) -> Both:
    """What the rule says: max(1, uA + uB)."""
    at = pairs.names.index("gpu_util_pct")
    xi = np.maximum(1.0, (pairs.first[:, at] + pairs.second[:, at]) / 100.0)
    return np.stack((xi, xi), axis=1).astype(np.float64)


def one_candidate(pairs: PairRows, seed: int, number: int) -> Both:
    """Out of fold, with settings that were not chosen."""
    grid = training.GRID[number]
    return training.out_of_fold(
        training.PairColumns(pairs), training.pair_folds(pairs.groups, seed), grid, seed
    )


def without(pairs: PairRows, *names: str) -> PairRows:
    """The same pairs with some columns gone."""
    kept = tuple(name for name in pairs.names if name not in names)
    return msgspec.structs.replace(
        pairs,
        names=kept,
        first=select_columns(pairs.first, pairs.names, kept),
        second=select_columns(pairs.second, pairs.names, kept),
    )


def unseen(pairs: PairRows, seed: int, number: int) -> float:
    """RMSE over both jobs, every pair of one model left out after the other."""
    _, off, _ = training.unseen_model_predictions(training.PairColumns(pairs), training.GRID[number], seed)
    return training.overall(off)


def two_outputs(pairs: PairRows, seed: int, *, settings: Mapping[str, float]) -> Both:
    """As in Castor: one regressor for job 1 and one for job 2, each sees every pair in the table's order."""
    folds = training.pair_folds(pairs.groups, seed)
    predicted = np.empty(pairs.xi.shape)
    for job in (0, 1):
        half = pairs.xi.copy()
        half[:, 1 - job] = np.nan
        whole = training.PairColumns(msgspec.structs.replace(pairs, xi=half))
        predicted[:, job] = training.out_of_fold(whole, folds, settings, seed)[:, job]
    return predicted


def turned(pairs: PairRows, seed: int) -> PairRows:
    """The same table with a random half of its rows written the other way round."""
    flip = np.random.default_rng(seed).random(len(pairs)) < 0.5
    swap = flip[:, None]
    return msgspec.structs.replace(
        pairs,
        first=np.where(swap, pairs.second, pairs.first),
        second=np.where(swap, pairs.first, pairs.second),
        xi=np.where(swap, pairs.xi[:, ::-1], pairs.xi),
        models=tuple((b, a) if f else (a, b) for (a, b), f in zip(pairs.models, flip, strict=True)),
    )


def unseen_mean(pairs: PairRows) -> float:
    """RMSE of the mean over both jobs, with every pair of one model left out after the other."""
    off = []
    for model in sorted({name for both in pairs.models for name in both}):
        out = np.array([model in both for both in pairs.models])
        off.append(pairs.xi[out] - np.array(training.mean_xi(part(pairs, ~out))))
    return training.overall(np.concatenate(off))


# --- Decisions ---------------------------------------------------------------------------------------


class Regret(msgspec.Struct, frozen=True, kw_only=True):
    flipped: float
    """Share of the decisions that the measured ratios would have made the other way."""
    lost: float
    """Mean over all decisions: average completion time of the two, above that of the right decision."""


def regrets(truth: Both, answers: Mapping[str, Both], seed: int) -> dict[str, Regret]:
    """Castor's Theorem 1 for a newcomer (job 1) beside a partner (job 2), with remaining times drawn."""
    chance = np.random.default_rng(seed)
    rows = np.repeat(np.arange(len(truth)), DRAWS)
    lengths_s = MEDIAN_S * np.exp(chance.normal(0.0, SPREAD, (len(rows), 2)))
    noisy = truth + chance.normal(0.0, 0.1, truth.shape)
    asked = {**answers, NOISY: noisy}
    found = {}
    for name, answer in asked.items():
        flips, lost = 0, 0.0
        for row, (mine_s, theirs_s) in zip(rows.tolist(), lengths_s.tolist(), strict=True):
            real = pair_timing(mine_s, theirs_s, *np.maximum(truth[row], 1.0).tolist())
            said = pair_timing(mine_s, theirs_s, *np.maximum(answer[row], 1.0).tolist())
            if real.pays != said.pays:
                flips += 1
                best_s, got_s = sorted((real.shared_s, real.sequential_s))
                lost += got_s / best_s - 1.0
        found[name] = Regret(flipped=flips / len(rows), lost=lost / len(rows))
    return found


def constants(pairs: PairRows, left: Left) -> dict[str, Both]:
    """Answers that look at no pair."""
    return {
        "mean of the training": left.mean,
        f"default ({DEFAULT_XI:g})": np.full(pairs.xi.shape, DEFAULT_XI),
    }


# --- Transfer ----------------------------------------------------------------------------------------


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Trained on one type of GPU, judged on another."""

    source: str
    target: str
    rmse: float
    mean_rmse: float
    """Of the source's mean on the target."""
    correlation: float
    """Of answers and measurements."""
    lookup: float | None
    """The correlation of the same pair's ratio on the two types; None for one type."""


def of_type(everything: PairRows, gpu_type: str) -> PairRows:
    return part(everything, np.array([each == gpu_type for each in everything.types]))


def transfer(source: PairRows, target: PairRows, names: tuple[str, str], seed: int) -> Transfer:
    """Pairs of models are left out as well: no fold of the target is judged by a model that saw its pairs on
    the other type."""
    group_fold = dict(
        zip(
            (groups := sorted({*source.groups, *target.groups})),
            training.pair_folds(groups, seed).tolist(),
            strict=True,
        )
    )
    folds = [np.array([group_fold[group] for group in each.groups]) for each in (source, target)]
    predicted = np.empty(target.xi.shape)
    mean = np.empty(target.xi.shape)
    for fold in range(training.FOLDS):
        model = trained(part(source, folds[0] != fold), seed)
        out = folds[1] == fold
        predicted[out], _ = predictions(Predictor(model), part(target, out))
        mean[out] = np.mean(model.mean_xi)
    return Transfer(
        source=names[0],
        target=names[1],
        rmse=float(np.sqrt(((predicted - target.xi) ** 2).mean())),
        mean_rmse=float(np.sqrt(((mean - target.xi) ** 2).mean())),
        correlation=float(np.corrcoef(predicted.ravel(), target.xi.ravel())[0, 1]),
        lookup=None if names[0] == names[1] else looked_up(source, target),
    )


def looked_up(source: PairRows, target: PairRows) -> float:
    """Same two configurations on both types."""

    def ratios(pairs: PairRows) -> dict[tuple[object, ...], tuple[float, ...]]:
        at = pairs.names.index("batch")
        return {
            (*models, *np.nan_to_num(np.array((one[at], two[at]))).tolist()): tuple(xi)
            for models, one, two, xi in zip(
                pairs.models, pairs.first, pairs.second, pairs.xi.tolist(), strict=True
            )
        }

    here, there = ratios(source), ratios(target)
    both = [(a, b) for key in here.keys() & there.keys() for a, b in zip(here[key], there[key], strict=True)]
    return float(np.corrcoef(np.array(both).T)[0, 1])
