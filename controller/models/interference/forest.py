"""Evaluates a boosted forest in numpy: all nodes of all trees at once, no walk from the root.

Rule: the answers are XGBoost's own to 1e-5, missing values included. So values and thresholds are compared
as float32, and a missing value goes where the training sent it. An answer does not depend on what else is
asked at the same time: leaves are whole multiples of 2^-40, whose sum is exact in any order, so that a
replay, which remembers other answers, still decides the same.

Source: QuickScorer (Lucchese et al., SIGIR '15). Leaves are numbered from the left, one bit each. A node
whose test fails rules out the leaves of its left subtree; the leftmost leaf that nobody ruled out is the one
that a walk would have found.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cotenant.controller.performance import LEAF, Trees

LEAVES_MAX: Final = 64
"""The most leaves of one tree: the bits of the widest mask."""
UNIT: Final = 2.0**40
LEAF_MAX: Final = 2.0**12
"""The largest magnitude of a leaf, so that a sum of thousands stays far from overflow."""
_MASKS: Final = (np.uint8, np.uint16, np.uint32, np.uint64)

Rows = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]


class Forest:
    """A forest ready to predict. An answer takes memory of rows x nodes."""

    def __init__(self, trees: Trees, width: int) -> None:
        """Plans every tree of the forest for predictions.

        Args:
            width: how many features a row has.

        Raises:
            ValueError: a tree with more than LEAVES_MAX leaves, a leaf beyond LEAF_MAX, or a feature
                beyond the width.
        """
        if max(trees.feature, default=0) >= width:
            raise ValueError(f"a node looks at feature {max(trees.feature)}, rows have {width}")
        # A tree of n nodes has (n + 1) / 2 leaves; looked at first, because planning recurses.
        leaves = max(((size + 1) // 2 for size in trees.sizes), default=1)
        if leaves > LEAVES_MAX:
            raise ValueError(f"a tree has {leaves} leaves; {LEAVES_MAX} is the most")
        plans = [_plan(trees, first, size) for first, size in _spans(trees)]
        if any(abs(value) > LEAF_MAX for _, values in plans for value in values):
            raise ValueError(f"a leaf is beyond +-{LEAF_MAX:g}: this is no ratio of iteration times")
        nodes = max((len(tests) for tests, _ in plans), default=0)
        self.width, self._base = width, trees.base
        self._mask: Any = next(mask for mask in _MASKS if leaves <= mask(0).itemsize * 8)
        shape = (nodes, len(plans))
        self._lane = np.zeros(shape, np.intp)
        self._threshold = np.full((*shape, 1), np.inf, np.float32)  # A test that never fails.
        self._keep = np.full((*shape, 1), self._all_leaves(), self._mask)
        self._leaf = np.zeros((len(plans), leaves), np.int64)
        for tree, (tests, values) in enumerate(plans):
            self._leaf[tree, : len(values)] = [round(value * UNIT) for value in values]
            for at, (node, ruled_out) in enumerate(tests):
                lane = trees.feature[node]
                self._lane[at, tree] = lane if trees.missing_left[node] else width + lane
                self._threshold[at, tree] = trees.threshold[node]
                self._keep[at, tree] = self._all_leaves() ^ self._mask(ruled_out)
        self._first_leaf = np.arange(len(plans))[:, None] * leaves

    def _all_leaves(self) -> Any:
        return np.iinfo(self._mask).max

    def predict(self, rows: Rows) -> Values:
        """Predicts one number per row. `rows`: [n, width], NaN where a value is missing.

        Raises:
            ValueError: rows of another width, or an infinite value.
        """
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise ValueError(f"rows must have {self.width} features, got shape {rows.shape}")
        values = np.ascontiguousarray(rows.T, np.float32)
        if np.isinf(values).any():
            raise ValueError("a feature is infinite")
        if not self._lane.size:
            return np.full(len(rows), self._base + float(self._leaf[:, 0].sum()) / UNIT)
        gone = np.isnan(values)
        # Twice: with what is missing below every threshold, and above every threshold.
        lanes = np.concatenate((np.where(gone, -np.inf, values), np.where(gone, np.inf, values)))
        left: Any = np.full((self._lane.shape[1], len(rows)), self._all_leaves(), self._mask)
        for lane, threshold, keep in zip(self._lane, self._threshold, self._keep, strict=True):
            passed = lanes[lane] < threshold
            left &= np.negative(passed.astype(self._mask)) | keep
        leaf = self._leaf.ravel()[self._first_leaf + _lowest_bit(left)]
        total: Values = leaf.sum(axis=0) / UNIT + self._base
        return total


def _spans(trees: Trees) -> list[tuple[int, int]]:
    spans, first = [], 0
    for size in trees.sizes:
        spans.append((first, size))
        first += size
    return spans


def _plan(trees: Trees, first: int, size: int) -> tuple[list[tuple[int, int]], list[float]]:
    """Returns one tree's tests as (node, bits of the leaves on the left), and the values of its leaves."""
    tests: list[tuple[int, int]] = []
    values: list[float] = []

    def visit(node: int) -> int:
        """The bits of the leaves below."""
        if trees.left[node] == LEAF:
            values.append(trees.threshold[node])
            return 1 << (len(values) - 1)
        on_the_left = visit(first + trees.left[node])
        tests.append((node, on_the_left))
        return on_the_left | visit(first + trees.right[node])

    visit(first)
    assert len(tests) + len(values) == size
    return tests, values


def _lowest_bit(bits: Any) -> npt.NDArray[np.intp]:
    """The position of the lowest 1 of each number; one is always set."""
    if bits.dtype == np.uint8:
        position: npt.NDArray[np.intp] = _LOWEST_OF_BYTE[bits]
        return position
    lowest = bits & (~bits + bits.dtype.type(1))
    position = (np.frexp(lowest.astype(np.float64))[1] - 1).astype(np.intp)
    return position


_LOWEST_OF_BYTE: Final = np.array([0, *((n & -n).bit_length() - 1 for n in range(1, 256))], np.intp)
