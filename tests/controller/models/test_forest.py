"""The forest in numpy: the answers of XGBoost itself, and a refusal for whatever is no forest."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.controller.models.interference.forest import LEAVES_MAX, Forest
from cotenant.controller.performance import LEAF, Trees
from cotenant.controller.training import boosting

STUMP = Trees(
    base=1.0,
    sizes=(3,),
    left=(1, LEAF, LEAF),
    right=(2, LEAF, LEAF),
    feature=(1, 0, 0),
    threshold=(0.5, 10.0, 20.0),
    missing_left=(True, False, False),
)


def ask(trees: Trees, *rows: tuple[float, ...], width: int = 2) -> list[float]:
    return [float(each) for each in Forest(trees, width).predict(np.array(rows, np.float32))]


def test_below_the_threshold_is_left_at_it_is_right() -> None:
    assert ask(STUMP, (9.0, 0.49), (9.0, 0.5), (9.0, 7.0)) == [11.0, 21.0, 21.0]


def test_what_is_missing_goes_where_the_training_sent_it() -> None:
    assert ask(STUMP, (9.0, math.nan)) == [11.0]
    right = msgspec.structs.replace(STUMP, missing_left=(False, False, False))
    assert ask(right, (9.0, math.nan)) == [21.0]


def test_a_forest_of_leaves_is_a_constant() -> None:
    leaf = Trees(
        base=1.0, sizes=(1, 1), left=(LEAF,) * 2, right=(LEAF,) * 2, feature=(0, 0), threshold=(0.25, 0.5),
        missing_left=(False,) * 2,
    )  # fmt: skip
    assert ask(leaf, (1.0, 2.0), (math.nan, math.nan)) == [1.75, 1.75]
    none = Trees(base=1.5, sizes=(), left=(), right=(), feature=(), threshold=(), missing_left=())
    assert ask(none, (1.0, 2.0)) == [1.5]


def chain(leaves: int) -> Trees:
    """x < 0 -> leaf 0, x < 1 -> leaf 1, ..."""
    inner = leaves - 1
    left, right, threshold = [], [], []
    for at in range(inner):
        left += [2 * at + 1, LEAF]
        right += [2 * at + 2, LEAF]
        threshold += [float(at), float(at)]
    return Trees(
        base=0.0,
        sizes=(2 * inner + 1,),
        left=(*left, LEAF),
        right=(*right, LEAF),
        feature=(0,) * (2 * inner + 1),
        threshold=(*threshold, float(inner)),
        missing_left=(False,) * (2 * inner + 1),
    )


@pytest.mark.parametrize("leaves", [2, 8, 9, 16, 17, 32, 33, 64])
def test_every_leaf_is_found_whatever_the_width_of_the_mask(leaves: int) -> None:
    forest = Forest(chain(leaves), 1)
    rows = np.arange(leaves, dtype=np.float32)[:, None] - 0.5
    assert forest.predict(rows).tolist() == list(range(leaves))


def test_a_larger_tree_is_refused() -> None:
    with pytest.raises(ValueError, match="65 leaves; 64 is the most"):
        Forest(chain(LEAVES_MAX + 1), 1)


def test_rows_of_another_width_and_infinite_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rows must have 2 features, got shape \(1, 3\)"):
        ask(STUMP, (1.0, 2.0, 3.0))
    with pytest.raises(ValueError, match="infinite"):
        ask(STUMP, (1.0, math.inf))
    with pytest.raises(ValueError, match="looks at feature 1, rows have 1"):
        Forest(STUMP, 1)


DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "an array that is too short": ({"left": (1, LEAF)}, "`left` has 2 nodes, `sizes` says 3"),
    "a child before its parent": ({"left": (0, LEAF, LEAF)}, r"children \(0, 2\) are not later nodes"),
    "a child beyond its tree": ({"right": (3, LEAF, LEAF)}, r"children \(1, 3\) are not later nodes"),
    "half a node": ({"right": (2, 2, LEAF)}, r"children \(-1, 2\) are not later nodes"),
    "a child of two": ({"right": (1, LEAF, LEAF)}, "do not form one tree"),
    "an empty tree": ({"sizes": (3, 0)}, "tree 1 has no nodes"),
    "no number": ({"threshold": (math.nan, 1.0, 2.0)}, "not a finite number"),
    "a feature below 0": ({"feature": (-1, 0, 0)}, "below 0"),
}


@pytest.mark.parametrize(("change", "message"), DAMAGED.values(), ids=DAMAGED.keys())
def test_what_is_no_tree_is_refused_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        msgspec.structs.replace(STUMP, **change)


def test_a_leaf_that_is_no_ratio_is_refused() -> None:
    with pytest.raises(ValueError, match="this is no ratio"):
        Forest(msgspec.structs.replace(STUMP, threshold=(0.5, 1e9, 0.0)), 2)


# --- Against XGBoost ---------------------------------------------------------------------------------


Matrix = np.ndarray[Any, Any]

SETTINGS = st.fixed_dictionaries(
    {
        "trees": st.integers(1, 12),
        "max_depth": st.integers(1, 6),
        "eta": st.sampled_from((0.05, 0.3, 1.0)),
        "lambda": st.sampled_from((0.0, 10.0)),
        "gamma": st.sampled_from((0.0, 2.0)),
        "min_child_weight": st.sampled_from((0.0, 5.0)),
        "subsample": st.sampled_from((0.6, 1.0)),
    }
)
NUMBERS = st.integers(0, 2**32 - 1)
HOLES = st.sampled_from((0.0, 0.2, 0.7))


def trained(number: int, holes: float, chosen: dict[str, float]) -> tuple[boosting.Fitted, Matrix]:
    """A model of noise, and the rows it was trained on: with holes, and many exactly on thresholds."""
    pytest.importorskip("xgboost")
    chance = np.random.default_rng(number)
    rows = np.round(chance.normal(size=(60, 1 + number % 5)), 1 + number % 3).astype(np.float32)
    rows[chance.random(rows.shape) < holes] = np.nan
    labels = 1.0 + np.nan_to_num(rows).sum(axis=1) + chance.normal(size=len(rows))
    return boosting.fit(rows, labels, chosen, seed=1), rows


@settings(max_examples=40)
@given(NUMBERS, HOLES, SETTINGS)
def test_the_answers_are_those_of_xgboost(number: int, holes: float, chosen: dict[str, float]) -> None:
    booster, rows = trained(number, holes, chosen)
    forest = Forest(booster.trees(), rows.shape[1])
    np.testing.assert_allclose(forest.predict(rows), booster.predict(rows), rtol=0.0, atol=1e-5)


@settings(max_examples=20)
@given(NUMBERS, HOLES, SETTINGS)
def test_an_answer_does_not_depend_on_what_else_is_asked(
    number: int, holes: float, chosen: dict[str, float]
) -> None:
    booster, rows = trained(number, holes, chosen)
    forest = Forest(booster.trees(), rows.shape[1])
    together = forest.predict(rows)
    order = np.random.default_rng(number).permutation(len(rows))
    assert forest.predict(rows[order]).tolist() == together[order].tolist()
    alone = [forest.predict(rows[at : at + 1])[0] for at in range(len(rows))]
    assert alone == together.tolist()
