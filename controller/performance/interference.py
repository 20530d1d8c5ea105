"""A trained interference model as a value: what a job's indicators say of how it fares beside another.

Rule: the model is configuration, not state. It reaches the engine as one value, is journalled with the rest
of the configuration, and a replay finds it there; no decision ever opens a file. It says nothing of names:
its features are what was measured of the two jobs. Evaluating it takes numpy:
`controller/models/interference/`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final, Literal

import msgspec

MODEL_SCHEMA: Final = "interference-model/1"
INTERFERENCE_MODELS: Final = "cotenant.interference_models"
"""The group of entry points by which other packages offer theirs."""
LEAF: Final = -1
"""In place of a child."""


class Trees(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Regression trees, every array over all nodes of all trees, tree after tree, the root first.

    The answer is `base` plus one leaf of each tree. A node goes left iff `value < threshold`, both as
    float32; a missing value goes left iff `missing_left`.
    """

    base: float
    sizes: tuple[int, ...]
    """Nodes of each tree."""
    left: tuple[int, ...]
    """Counted from the tree's root; LEAF for a leaf."""
    right: tuple[int, ...]
    feature: tuple[int, ...]
    """Which column the node looks at; 0 at a leaf."""
    threshold: tuple[float, ...]
    """At a leaf: its value."""
    missing_left: tuple[bool, ...]

    def __post_init__(self) -> None:
        count = sum(self.sizes)
        for name in ("left", "right", "feature", "threshold", "missing_left"):
            if len(getattr(self, name)) != count:
                raise ValueError(f"`{name}` has {len(getattr(self, name))} nodes, `sizes` says {count}")
        if not math.isfinite(self.base) or not all(map(math.isfinite, self.threshold)):
            raise ValueError("a threshold, a leaf or the base is not a finite number")
        if min(self.feature, default=0) < 0:
            raise ValueError("a node looks at a feature below 0")
        first = 0
        for tree, size in enumerate(self.sizes):
            self._check_tree(tree, first, size)
            first += size

    def _check_tree(self, tree: int, first: int, size: int) -> None:
        """Checks that each node but the root is the child of exactly one earlier node: so it is a tree and
        ends."""
        if size < 1:
            raise ValueError(f"tree {tree} has no nodes")
        reached: list[int] = []
        for node in range(size):
            children = self.left[first + node], self.right[first + node]
            if children == (LEAF, LEAF):
                continue
            if not all(node < child < size for child in children):
                raise ValueError(f"tree {tree}, node {node}: children {children} are not later nodes of it")
            reached += children
        if sorted(reached) != list(range(1, size)):
            raise ValueError(f"tree {tree}: its nodes do not form one tree")


class Band(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far off predictions were about jobs as strange as this."""

    novelty_max: float | None
    """Distance to the nearest job of the training, in standard deviations; None: any."""
    factor: float
    """Half the width of the interval, in units of `scale_of` the answer."""
    rows: int
    """Out-of-fold residuals behind it."""


class KnownJobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The jobs of the training, scaled, to tell how strange another is. No names."""

    features: tuple[str, ...]
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]
    """(value - centre) / scale, a missing one 0."""

    def __post_init__(self) -> None:
        width = len(self.features)
        if len(self.centre) != width or len(self.scale) != width or any(len(r) != width for r in self.rows):
            raise ValueError(f"known jobs must have {width} numbers each")
        if not all(each > 0 for each in self.scale) or not self.rows:
            raise ValueError("known jobs need a positive scale and at least one job")


class TrainingFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    sha256: str
    rows: int
    """Measured rows that were used."""
    licence: str
    """Its card; a model is under the terms of the data that it was trained on."""


class Training(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a model comes from, for those who must decide whether they may use it."""

    files: tuple[TrainingFile, ...]
    pairs: tuple[str, ...]
    """Unordered pairs of model names that it has seen, to say so when it is judged on them."""
    gpu_types: tuple[str, ...]
    """Empty where the data does not say."""
    seed: int
    made_by: str
    """Versions of cotenant and xgboost."""


class CrossValidation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What training itself found on pairs left out, with the chosen settings; optimistic by the choice."""

    folds: int
    rmse: tuple[float | None, float | None]
    """Of job 1 and job 2."""
    mean_prediction_rmse: tuple[float | None, float | None]
    unseen_model_rmse: float | None
    """With every pair of one model left out, over the models; None if there are too few."""
    tried: tuple[Trial, ...]


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    settings: dict[str, float]
    rmse: float
    """Over both jobs, pairs left out."""


class InterferenceModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Predicts xi of the job `self` beside the job `other`; for a pair it is asked twice."""

    schema: Literal["interference-model/1"] = MODEL_SCHEMA
    features: tuple[str, ...]
    """The columns, in order: `self.NAME`, `other.NAME` or `sum.NAME`."""
    importances: tuple[float, ...]
    """Of each column: its share of the training's gain; sums to 1, or all 0 for a constant model."""
    trees: Trees
    coverage: float
    """The share of out-of-fold truths that lie within the margins."""
    bands: tuple[Band, ...]
    """Nearest first; the last has no limit."""
    known: KnownJobs
    mean_xi: tuple[float, float]
    """Of job 1 and job 2 in the training: what a model must beat."""
    settings: dict[str, float]
    """XGBoost's parameters."""
    cross_validation: CrossValidation
    training: Training

    def __post_init__(self) -> None:
        if not self.features or len(set(self.features)) != len(self.features):
            raise ValueError("a model needs features, each once")
        if len(self.importances) != len(self.features):
            raise ValueError(f"{len(self.importances)} importances for {len(self.features)} features")
        if max(self.trees.feature, default=0) >= len(self.features):
            raise ValueError(f"a node looks at feature {max(self.trees.feature)} of {len(self.features)}")
        limits = [band.novelty_max for band in self.bands]
        if not limits or limits[-1] is not None or None in limits[:-1]:
            raise ValueError("the last band, and only that, must be open")
        if any(a is not None and b is not None and a >= b for a, b in pairwise(limits)):
            raise ValueError("bands must be in order of their limits")
        if not 0 < self.coverage < 1 or any(not 0 <= band.factor < math.inf for band in self.bands):
            raise ValueError("a coverage is between 0 and 1, a factor 0 or more")
