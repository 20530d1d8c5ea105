"""Training the interference model: what it learns of a known law, how it is judged, and that it repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cotenant.controller.models.interference import model_file
from cotenant.controller.models.interference.bands import Novelty
from cotenant.controller.models.interference.predictor import Predictor
from cotenant.controller.performance import InterferenceModel
from experiments.castor.interference import training
from experiments.castor.interference.errors import evaluate, predictions
from experiments.castor.interference.margins import KNOWN_MAX, bands, conformal, known_jobs
from experiments.castor.interference.pair_rows import PairRows, part, read
from tests.controller.invented_pairs import MODELS, invented, law

pytest.importorskip("xgboost")
QUICK = ({**training.GRID[3], "trees": 25.0, "eta": 0.3},)


@pytest.fixture(scope="module")
def pairs() -> PairRows:
    return read(invented(1, models=7, batches=2).encode(), "invented.csv", "nobody's")


@pytest.fixture(scope="module")
def model(pairs: PairRows) -> InterferenceModel:
    """Of all pairs but those of elm."""
    keep = np.array(["elm" not in both for both in pairs.models])
    return training.train([part(pairs, keep)], 3, candidates=QUICK)


def test_it_learns_the_law_and_beats_the_mean_on_a_model_it_never_saw(
    pairs: PairRows, model: InterferenceModel
) -> None:
    new = part(pairs, np.array(["elm" in both for both in pairs.models]))
    result = evaluate(Predictor(model), new)
    assert result.seen_before == ()
    for own, mean in zip(result.rmse, result.mean_prediction_rmse, strict=True):
        assert own is not None and mean is not None
        assert own < 0.4 * mean
    assert result.coverage > 0.8


def test_it_leans_on_what_the_law_is_about(model: InterferenceModel) -> None:
    weight = dict(zip(model.features, model.importances, strict=True))
    assert max(weight, key=lambda name: weight[name]) == "sum.gpu_util_pct"
    assert sum(weight.values()) == pytest.approx(1.0, abs=1e-4)
    assert not any(name.endswith(tuple(MODELS)) or "pair" in name for name in weight)


def test_it_does_not_matter_in_which_order_a_pair_was_written_down(pairs: PairRows) -> None:
    turned = msgspec.structs.replace(
        pairs,
        first=pairs.second,
        second=pairs.first,
        xi=pairs.xi[:, ::-1],
        models=tuple((two, one) for one, two in pairs.models),
    )
    one = training.train([pairs], 1, candidates=QUICK)
    two = training.train([turned], 1, candidates=QUICK)
    there, _ = predictions(Predictor(one), pairs)
    back, _ = predictions(Predictor(two), turned)
    assert back[:, ::-1].tolist() == there.tolist()
    again, _ = predictions(Predictor(one), turned)
    assert again[:, ::-1].tolist() == there.tolist()
    shuffled = part(pairs, np.random.default_rng(1).permutation(len(pairs)))
    assert training.train([shuffled], 1, candidates=QUICK).trees == one.trees


def test_the_same_pairs_and_seed_give_the_same_bytes_and_another_seed_does_not(pairs: PairRows) -> None:
    made = [model_file.write(training.train([pairs], seed, candidates=QUICK)) for seed in (5, 5, 6)]
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_where_the_data_came_from_stays_with_the_model(model: InterferenceModel) -> None:
    (file,) = model.training.files
    assert (file.name, file.licence, model.training.seed) == ("invented.csv", "nobody's", 3)
    assert "elm+fir" not in model.training.pairs
    assert "ash+ash" in model.training.pairs
    assert [trial.settings for trial in model.cross_validation.tried] == [*QUICK]


def test_one_of_the_two_ratios_is_enough(pairs: PairRows) -> None:
    half = pairs.xi.copy()
    half[:, 1] = np.nan
    model = training.train([msgspec.structs.replace(pairs, xi=half)], 1, candidates=QUICK)
    assert model.mean_xi[0] == model.mean_xi[1]
    assert model.cross_validation.rmse[1] is None
    predicted, _ = predictions(Predictor(model), pairs)
    assert np.sqrt(((predicted - pairs.xi) ** 2).mean()) < 0.1


# --- Splitting ---------------------------------------------------------------------------------------


def test_a_pair_is_never_on_both_sides_of_a_split(pairs: PairRows, seed: int) -> None:
    folds = training.pair_folds(pairs.groups, seed)
    of_group: dict[str, set[int]] = {}
    for group, fold in zip(pairs.groups, folds.tolist(), strict=True):
        of_group.setdefault(group, set()).add(fold)
    assert all(len(where) == 1 for where in of_group.values())
    sizes = np.bincount(folds)
    assert len(sizes) == training.FOLDS
    assert sizes.max() - sizes.min() <= max(pairs.groups.count(group) for group in of_group)


def test_a_pair_left_out_is_predicted_by_a_model_that_has_not_seen_it(
    pairs: PairRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_on: list[np.ndarray[tuple[int], np.dtype[np.bool_]]] = []

    class Watched(training.PairColumns):
        def fit(self, rows: np.ndarray[tuple[int], np.dtype[np.bool_]], *rest: Any) -> Any:
            trained_on.append(rows)
            return super().fit(rows, *rest)

    table = Watched(pairs)
    folds = training.pair_folds(pairs.groups, 1)
    training.out_of_fold(table, folds, QUICK[0], 1)
    assert [rows.tolist() for rows in trained_on] == [(folds != fold).tolist() for fold in range(5)]
    trained_on.clear()
    training.unseen_model_predictions(table, QUICK[0], 1)
    assert len(trained_on) == 7
    for rows in trained_on:
        assert len({name for both in part(pairs, rows).models for name in both}) == 6


def test_too_little_is_refused() -> None:
    few = read("\n".join(invented(1, models=2).splitlines()[:19]).encode(), "few.csv")
    with pytest.raises(training.TooFewPairs, match="18 rows of 3 pairs of models; training needs"):
        training.train([few], 1)
    nameless = read(("xi1,xi2,batch1\n" + "1.5,1.2,8\n" * 30).encode(), "nameless.csv")
    with pytest.raises(training.TooFewPairs, match="without model1 and model2"):
        training.train([nameless], 1)
    rows = "".join(f"m{n % 7},m{n % 5},1.5,1.2,8\n" for n in range(30))
    alike = read(("model1,model2,xi1,xi2,batch1\n" + rows).encode(), "alike.csv")
    with pytest.raises(training.TooFewPairs, match="nothing was measured of the jobs alone"):
        training.train([alike], 1)


# --- Margins -----------------------------------------------------------------------------------------


def test_a_margin_is_the_conformal_quantile() -> None:
    off = np.arange(1.0, 100.0)
    assert conformal(off, 0.9) == 90.0
    assert conformal(off[:5], 0.9) == 5.0, "too few for the coverage: the largest there is"


def test_margins_cover_what_they_promise_on_fresh_draws(seed: int) -> None:
    chance = np.random.default_rng(seed)
    shares = []
    for _ in range(200):
        width = conformal(np.abs(chance.normal(size=60)), 0.9)
        shares.append((np.abs(chance.normal(size=200)) <= width).mean())
    assert 0.89 < np.mean(shares) < 0.93


def test_stranger_jobs_never_have_narrower_margins(seed: int) -> None:
    chance = np.random.default_rng(seed)
    novelty = np.concatenate((np.zeros(200), chance.random(300)))
    made = bands(chance.normal(size=500) * (1.0 + novelty), novelty, 0.9)
    assert made[0].novelty_max == KNOWN_MAX
    assert made[-1].novelty_max is None
    assert [band.factor for band in made] == sorted(band.factor for band in made)
    assert sum(band.rows for band in made) == 500


def test_a_known_job_is_not_strange_and_another_is() -> None:
    names = ("gpu_util_pct", "mem_mib")
    jobs = np.array([[20.0, 1000.0], [40.0, np.nan], [90.0, 16000.0]], np.float32)
    novelty = Novelty(known_jobs(names, jobs))
    assert (novelty.score(jobs) < KNOWN_MAX).all()
    near, far = novelty.score(np.array([[22.0, 1000.0], [99.0, 900000.0]], np.float32))
    assert KNOWN_MAX < near < far


# --- On measured pairs -------------------------------------------------------------------------------


def test_on_measured_pairs_left_out_it_is_far_below_the_mean(shared_data: Path) -> None:
    path = shared_data / "interference" / "lucid_pairs.csv.gz"
    table = training.PairColumns(read(path.read_bytes(), path.name))
    folds = training.pair_folds(table.pairs.groups, 0)
    predicted = training.out_of_fold(table, folds, training.GRID[2], 0)
    rmse = np.sqrt(((predicted - table.pairs.xi) ** 2).mean(axis=0))
    assert rmse[0] < 0.14
    assert rmse[1] < 0.095


def test_the_law_is_what_the_invented_pairs_follow() -> None:
    assert law(60.0, 90.0) == 1.5
    assert law(20.0, 30.0) == 1.0
