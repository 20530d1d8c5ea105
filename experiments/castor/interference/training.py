"""Trains the interference model: measured pairs in, an `InterferenceModel` out.

Rule: whatever is chosen or claimed is judged on PAIRS of models that were left out, all their rows together;
rows of one pair resemble each other, and a split by row would look far better than the truth. Same pairs and
seed, same model, to the byte.

Source: Castor section 6, as settled. One regressor answers "xi of `self` beside `other`" and sees every pair
both ways round, so that the order of two jobs cannot matter; with Castor's two outputs it would. It is
strongly regularised: there are a thousand rows and more, but only some tens of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.models.interference.bands import Novelty, scale_of
from cotenant.controller.models.interference.features import OCCUPANCY, Matrix, columns_of, pair_features
from cotenant.controller.performance import CrossValidation, InterferenceModel, Training, TrainingFile, Trial
from cotenant.controller.training import boosting
from experiments.castor.interference.errors import Both, rmse
from experiments.castor.interference.margins import bands, known_jobs
from experiments.castor.interference.pair_rows import PairRows, part, select_columns, together

FOLDS: Final = 5
MODEL_FOLDS_MAX: Final = 12
COVERAGE: Final = 0.9
ROWS_MIN: Final = 20
GROUPS_MIN: Final = 3

SHARED: Final[dict[str, float]] = {
    "trees": 200.0,
    "eta": 0.05,
    "subsample": 0.7,
    "colsample_bytree": 0.5,
    "lambda": 10.0,
}
GRID: Final[tuple[dict[str, float], ...]] = (
    {**SHARED, "max_depth": 3.0, "max_leaves": 8.0, "min_child_weight": 20.0, "huber_slope": 0.0},
    {**SHARED, "max_depth": 6.0, "max_leaves": 8.0, "min_child_weight": 10.0, "huber_slope": 0.3},
    {**SHARED, "max_depth": 8.0, "max_leaves": 16.0, "min_child_weight": 8.0, "huber_slope": 0.2},
    {
        **SHARED,
        "max_depth": 3.0,
        "max_leaves": 8.0,
        "min_child_weight": 2.0,
        "huber_slope": 0.2,
        "lambda": 3.0,
    },
)
"""The first is the start that was settled on; the second and third bend more and forgive outliers, of which
public tables have some (solo baselines that are evidently too low); the last is for a few dozen rows."""

HOLES: Final = 0.3
HOLES_WEIGHT: Final = 0.1
"""Every row is seen a second time with so many of its values gone and so little weight: so the trees learn
where to send a missing value. Without, a file or a job that lacks a column gets an arbitrary answer."""

Folds = NDArray[np.intp]
Mask = NDArray[np.bool_]
OnProgress = Callable[[str], None]


class TooFewPairs(ValueError):
    """Too little to learn from, or to judge what was learned."""


def train(
    files: Sequence[PairRows],
    seed: int,
    tell: OnProgress = lambda _: None,
    candidates: Sequence[dict[str, float]] = GRID,
) -> InterferenceModel:
    """A model of all the files' pairs, its settings chosen from the candidates by cross-validation.

    Raises:
        TooFewPairs: the text says of what.
        boosting.NoXGBoost: it is not installed.
    """
    library = boosting.xgboost()
    pairs = together(files)
    table = PairColumns(pairs)
    folds = pair_folds(pairs.groups, seed)
    trials, answers = try_candidates(table, folds, candidates, seed, tell)
    number = min(range(len(trials)), key=lambda each: trials[each].rmse)
    best, predicted = trials[number], answers[number]
    tell("leaving out one model after the other")
    unseen, off_unseen, strange = unseen_model_predictions(table, best.settings, seed)
    off = np.concatenate((predicted - pairs.xi, off_unseen)) / scale_of(np.concatenate((predicted, unseen)))
    far = np.concatenate((nearness(table, folds), strange))
    measured = ~np.isnan(off)
    fitted = table.fit(np.ones(len(pairs), bool), best.settings, seed)
    return InterferenceModel(
        features=table.columns,
        importances=fitted.importances(),
        trees=fitted.trees(),
        coverage=COVERAGE,
        bands=bands(off[measured], np.stack((far, far), axis=1)[measured], COVERAGE),
        known=known_jobs(table.names, np.concatenate((table.first, table.second))),
        mean_xi=mean_xi(pairs),
        settings=best.settings,
        cross_validation=CrossValidation(
            folds=int(folds.max()) + 1,
            rmse=rounded_numbers(rmse(predicted, pairs.xi)),
            mean_prediction_rmse=rounded_numbers(rmse(out_of_fold_mean(pairs, folds), pairs.xi)),
            unseen_model_rmse=_digits(overall(off_unseen)) if len(unseen) else None,
            tried=trials,
        ),
        training=Training(
            files=tuple(_file(each) for each in files),
            pairs=tuple(sorted({*pairs.groups})),
            gpu_types=pairs.gpu_types,
            seed=seed,
            made_by=f"cotenant {version('cotenant')}, xgboost {library.__version__}",
        ),
    )


class PairColumns:
    """All pairs both ways round, in the columns that vary."""

    def __init__(self, pairs: PairRows) -> None:
        """Prepares the columns to train on from the rows of `pairs`.

        Raises:
            TooFewPairs: too few rows or pairs of models, or nothing measured of the jobs.
        """
        count, groups = int((~np.isnan(pairs.xi)).sum()), {*pairs.groups}
        if "" in groups:
            raise TooFewPairs(f"{pairs.name}: rows without model1 and model2: pairs cannot be told apart")
        if len(pairs) < ROWS_MIN or len(groups) < GROUPS_MIN:
            raise TooFewPairs(
                f"{pairs.name}: {len(pairs)} rows of {len(groups)} pairs of models; training needs at least "
                f"{ROWS_MIN} rows of {GROUPS_MIN} pairs"
            )
        self.pairs, self.count = pairs, count
        self.names = tuple(name for place, name in enumerate(pairs.names) if _varies(pairs, place))
        if not self.names:
            raise TooFewPairs(
                f"{pairs.name}: nothing was measured of the jobs alone, or all of them are alike"
            )
        self.columns = columns_of(self.names)
        self.rising = tuple(column.partition(".")[2] in OCCUPANCY for column in self.columns)
        self.first = select_columns(pairs.first, pairs.names, self.names)
        self.second = select_columns(pairs.second, pairs.names, self.names)
        self.ways = (
            pair_features(self.names, self.first, self.second, self.columns),
            pair_features(self.names, self.second, self.first, self.columns),
        )
        self._jobs = np.concatenate((self.first, self.second))
        self._others = np.concatenate((self.second, self.first))
        self._xi = pairs.xi.T.ravel()
        # XGBoost draws rows by their place: in an order of their own, that of the file does not matter.
        self._order = np.lexsort((*self._others.T, *self._jobs.T, self._xi))
        self._order = self._order[~np.isnan(self._xi[self._order])]

    def fit(self, rows: Mask, settings: Mapping[str, float], seed: int) -> boosting.Fitted:
        """Trained on these pairs both ways round, where a ratio was measured; once whole, once with holes."""
        take = self._order[np.tile(rows, 2)[self._order]]
        jobs, others = self._jobs[take], self._others[take]
        chance = np.random.default_rng(seed)
        x = np.concatenate(
            (
                pair_features(self.names, jobs, others, self.columns),
                pair_features(
                    self.names, _punch_holes(jobs, chance), _punch_holes(others, chance), self.columns
                ),
            )
        )
        weights = np.repeat((1.0, HOLES_WEIGHT), len(take))
        y = np.tile(self._xi[take], 2)
        return boosting.fit(x, y, settings, seed, weights=weights, rising=self.rising)

    def ask(self, fitted: boosting.Fitted, rows: Mask) -> Both:
        return np.stack([fitted.predict(way[rows]) for way in self.ways], axis=1)


# --- Splitting and judging ---------------------------------------------------------------------------


def pair_folds(groups: Sequence[str], seed: int, count: int = FOLDS) -> Folds:
    """The fold of each row: pairs are drawn in random order, each into the fold with the fewest rows."""
    names = sorted({*groups})
    np.random.default_rng(seed).shuffle(names)
    sizes = np.zeros(min(count, len(names)), int)
    fold_of: dict[str, int] = {}
    rows = dict.fromkeys(names, 0)
    for group in groups:
        rows[group] += 1
    for name in names:
        fold_of[name] = int(sizes.argmin())
        sizes[fold_of[name]] += rows[name]
    return np.array([fold_of[group] for group in groups])


def try_candidates(
    table: PairColumns, folds: Folds, candidates: Sequence[dict[str, float]], seed: int, tell: OnProgress
) -> tuple[tuple[Trial, ...], list[Both]]:
    """Every candidate, judged on the same pairs left out; and its predictions of them."""
    trials, answers = [], []
    for number, settings in enumerate(candidates, start=1):
        tell(f"trying settings {number} of {len(candidates)}")
        answers.append(out_of_fold(table, folds, settings, seed))
        trials.append(Trial(settings=settings, rmse=_digits(overall(answers[-1] - table.pairs.xi))))
    return tuple(trials), answers


def out_of_fold(table: PairColumns, folds: Folds, settings: Mapping[str, float], seed: int) -> Both:
    """Every pair predicted by a model that has not seen it."""
    predicted = np.empty(table.pairs.xi.shape)
    for fold in range(int(folds.max()) + 1):
        held_out = folds == fold
        predicted[held_out] = table.ask(table.fit(~held_out, settings, seed), held_out)
    return predicted


def out_of_fold_mean(pairs: PairRows, folds: Folds) -> Both:
    predicted = np.empty(pairs.xi.shape)
    for fold in range(int(folds.max()) + 1):
        predicted[folds == fold] = mean_xi(part(pairs, folds != fold))
    return predicted


def unseen_model_predictions(
    table: PairColumns, settings: Mapping[str, float], seed: int
) -> tuple[Both, Both, NDArray[np.float64]]:
    """Pairs predicted by models that have seen one of the two jobs' models in no pair, as it is with a new
    kind of job: the answers, how far off they are, and how strange the stranger job of each pair is then.

    A pair is asked about once without the one model and once without the other. Nothing where too little
    would be left to train on.
    """
    models = sorted({name for both in table.pairs.models for name in both})
    np.random.default_rng(seed).shuffle(models)
    answers, off, far = [np.empty((0, 2))], [np.empty((0, 2))], [np.empty(0)]
    for number in range(min(MODEL_FOLDS_MAX, len(models))):
        absent = {*models[number::MODEL_FOLDS_MAX]}
        held_out = np.array([not absent.isdisjoint(both) for both in table.pairs.models])
        if (~held_out).sum() >= ROWS_MIN:
            answer = table.ask(table.fit(~held_out, settings, seed), held_out)
            answers.append(answer)
            off.append(answer - table.pairs.xi[held_out])
            far.append(distances(table, held_out))
    return np.concatenate(answers), np.concatenate(off), np.concatenate(far)


def nearness(table: PairColumns, folds: Folds) -> NDArray[np.float64]:
    """How strange each pair's stranger job is to the model that has not seen the pair."""
    far = np.empty(len(table.pairs))
    for fold in range(int(folds.max()) + 1):
        far[folds == fold] = distances(table, folds == fold)
    return far


def distances(table: PairColumns, held_out: Mask) -> NDArray[np.float64]:
    seen = np.concatenate((table.first[~held_out], table.second[~held_out]))
    novelty = Novelty(known_jobs(table.names, seen))
    far: NDArray[np.float64] = np.maximum(
        novelty.score(table.first[held_out]), novelty.score(table.second[held_out])
    )
    return far


def overall(off: Both) -> float:
    """RMSE over both jobs."""
    return math.sqrt(float(np.nanmean(off**2)))


def mean_xi(pairs: PairRows) -> tuple[float, float]:
    """The mean xi of job 1 and of job 2; of both together where one was never measured."""
    everything = float(np.nanmean(pairs.xi))
    first, second = (
        _digits(float(np.nanmean(column))) if not np.isnan(column).all() else _digits(everything)
        for column in pairs.xi.T
    )
    return first, second


# --- Small parts -------------------------------------------------------------------------------------


def _varies(pairs: PairRows, place: int) -> bool:
    values: Matrix = np.concatenate((pairs.first[:, place], pairs.second[:, place]))
    return len(np.unique(values[~np.isnan(values)])) > 1


def _punch_holes(jobs: Matrix, chance: np.random.Generator) -> Matrix:
    return np.where(chance.random(jobs.shape) < HOLES, np.float32(np.nan), jobs)


def _file(pairs: PairRows) -> TrainingFile:
    return TrainingFile(
        name=pairs.name, sha256=pairs.sha256, rows=len(pairs), licence=pairs.licence or "not stated"
    )


def rounded_numbers(numbers: tuple[float | None, float | None]) -> tuple[float | None, float | None]:
    first, second = (None if number is None else _digits(number) for number in numbers)
    return first, second


def _digits(value: float) -> float:
    return float(f"{value:.6g}")
