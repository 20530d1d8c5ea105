"""A model of interference that nobody trained: two trees of three nodes, and a card."""

from __future__ import annotations

from typing import Any

import msgspec

from cotenant.controller.performance import (
    LEAF,
    Band,
    CrossValidation,
    InterferenceModel,
    KnownJobs,
    Training,
    TrainingFile,
    Trees,
)

FULL = Trees(
    base=1.2,
    sizes=(3, 3),
    left=(1, LEAF, LEAF) * 2,
    right=(2, LEAF, LEAF) * 2,
    feature=(2, 0, 0, 0, 0, 0),
    threshold=(100.0, -0.1, 0.5, 50.0, -0.2, 0.1),
    missing_left=(False,) * 6,
)
"""1.2, less .1 where the two together stay below 100 % and else more by .5, and a little by one's own."""


def a_model(**changes: Any) -> InterferenceModel:
    model = InterferenceModel(
        features=("self.gpu_util_pct", "other.gpu_util_pct", "sum.gpu_util_pct"),
        importances=(0.1, 0.0, 0.9),
        trees=FULL,
        coverage=0.9,
        bands=(
            Band(novelty_max=0.5, factor=0.1, rows=50),
            Band(novelty_max=None, factor=0.3, rows=50),
        ),
        known=KnownJobs(features=("gpu_util_pct",), centre=(50.0,), scale=(20.0,), rows=((0.0,), (2.0,))),
        mean_xi=(1.3, 1.2),
        settings={"trees": 2.0},
        cross_validation=CrossValidation(
            folds=5, rmse=(0.1, 0.1), mean_prediction_rmse=(0.2, 0.2), unseen_model_rmse=None, tried=()
        ),
        training=Training(
            files=(TrainingFile(name="t.csv", sha256="0" * 64, rows=9, licence="ours"),),
            pairs=("a+b",),
            gpu_types=(),
            seed=1,
            made_by="a test",
        ),
    )
    return msgspec.structs.replace(model, **changes)
