"""XGBoost, and the way from its models to our own `Trees`. Nothing else here imports it.

Rule: same rows, settings and seed, same trees: one thread, and the base score given, because XGBoost writes
its own with six digits only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cotenant.controller.performance import LEAF, Trees

FIXED: Final = {"tree_method": "hist", "grow_policy": "lossguide", "nthread": 1, "verbosity": 0}
Rows = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]

MISSING_HINT: Final = 'training a model needs XGBoost: pip install ".[predict]" in the source folder'


class NoXGBoost(RuntimeError):
    """XGBoost is not installed here; the text says how to get it."""


class Fitted:
    """A trained model with its errors."""

    def __init__(self, booster: Any, base: float, width: int) -> None:
        self._booster, self._base, self._width = booster, base, width

    def predict(self, rows: Rows) -> Values:
        predicted = self._booster.inplace_predict(rows, missing=np.nan)
        return np.asarray(predicted, np.float64)

    def trees(self) -> Trees:
        document = json.loads(bytes(self._booster.save_raw("json")))
        return convert_trees(document["learner"]["gradient_booster"]["model"]["trees"], self._base)

    def importances(self) -> tuple[float, ...]:
        """The share of each feature in all gain of all splits."""
        gain = self._booster.get_score(importance_type="total_gain")
        each = np.array([float(gain.get(f"f{at}", 0.0)) for at in range(self._width)])
        total = each.sum()
        return tuple(float(f"{share:.6g}") for share in (each / total if total > 0 else each))


def xgboost() -> ModuleType:
    """Imports and returns the module XGBoost. Raises NoXGBoost."""
    try:
        import xgboost as module
    except ImportError:
        raise NoXGBoost(MISSING_HINT) from None
    found: ModuleType = module
    return found


def fit(
    rows: Rows,
    labels: Values,
    settings: Mapping[str, float],
    seed: int,
    *,
    weights: Values | None = None,
    rising: Sequence[bool] = (),
    quantile: float | None = None,
) -> Fitted:
    """Train on rows with NaN where a value is missing.

    Args:
        settings: XGBoost's parameters; besides, `trees`: how many; `huber_slope`: errors beyond so much count
            linearly, 0 for squared error throughout.
        rising: the features in which the answer may only rise; empty for none.
        quantile: of the labels, in place of their mean.

    Raises:
        NoXGBoost: it is not installed.
    """
    library = xgboost()
    start = labels.mean() if quantile is None else np.quantile(labels, quantile)
    base = float(f"{start:.4g}")
    parameters: dict[str, object] = {**FIXED, **settings, "seed": seed, "base_score": base}
    for whole in ("max_depth", "max_leaves"):
        if whole in settings:
            parameters[whole] = int(settings[whole])
    del parameters["trees"]
    slope = settings.get("huber_slope", 0.0)
    parameters["objective"] = "reg:pseudohubererror" if slope else "reg:squarederror"
    if not slope:
        parameters.pop("huber_slope", None)
    if quantile is not None:
        parameters |= {"objective": "reg:quantileerror", "quantile_alpha": quantile}
    if any(rising):
        parameters["monotone_constraints"] = tuple(map(int, rising))
    data = library.DMatrix(rows, label=labels, weight=weights, missing=np.nan, nthread=1)
    return Fitted(library.train(parameters, data, int(settings["trees"])), base, rows.shape[1])


def convert_trees(trees: list[dict[str, Any]], base: float) -> Trees:
    """XGBoost's JSON as one value. Nodes get new numbers, from the left, without what pruning has removed."""
    sizes: list[int] = []
    left: list[int] = []
    right: list[int] = []
    feature: list[int] = []
    threshold: list[float] = []
    missing_left: list[bool] = []
    for tree in trees:
        if any(tree["split_type"]):
            raise ValueError("a categorical split: our features are numbers")
        first = len(left)

        def visit(node: int, tree: dict[str, Any] = tree, first: int = first) -> int:
            here = len(left) - first
            leaf = tree["left_children"][node] == LEAF
            left.append(LEAF)
            right.append(LEAF)
            feature.append(0 if leaf else int(tree["split_indices"][node]))
            threshold.append(float(tree["split_conditions"][node]))
            missing_left.append(not leaf and bool(tree["default_left"][node]))
            if not leaf:
                left[first + here] = visit(tree["left_children"][node])
                right[first + here] = visit(tree["right_children"][node])
            return here

        visit(0)
        sizes.append(len(left) - first)
    return Trees(
        base=base,
        sizes=tuple(sizes),
        left=tuple(left),
        right=tuple(right),
        feature=tuple(feature),
        threshold=tuple(threshold),
        missing_left=tuple(missing_left),
    )
