"""Policies compared seed by seed, or window by window: how much better or worse than the first, with
intervals.

Rule: every policy gets the same jobs under the same seed, so differences are taken within seeds and only then
averaged. What the jobs of a seed have in common drops out of them; two separate intervals that overlap say
nothing about a difference. Seeds are few, so a mean's interval is Student's, not the normal one.

Rule: a ratio's interval is a paired block bootstrap. What is drawn again is whole blocks, from the outside
in: groups (VCs), in each its cells (cluster sizes), in each its windows, with both policies' numbers of a
window kept together. Jobs of a window depend on each other, and so do windows of a VC: to draw them one by
one would make every interval too narrow. A cell's ratio is that of its sums, so a window in which nobody
waits says little and never divides by zero; over cells, and then over groups, it is the geometric mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

# fmt: off
_T_975: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on
"""The 97.5 % quantile of Student's t for 1, 2, ... 30 degrees of freedom."""
_NORMAL_975: Final = 1.96


class ConfidenceInterval(NamedTuple):
    """A mean, and half the width of its 95 % interval (None: from one value nothing can be said)."""

    mean: float
    half: float | None

    @property
    def low(self) -> float:
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.half or 0.0)


def interval(values: Sequence[float]) -> ConfidenceInterval:
    """95 %, two-sided, of the mean of independent values.

    Raises:
        ValueError: there are no values.
    """
    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one value")
    mean = math.fsum(values) / n
    if n == 1:
        return ConfidenceInterval(mean, None)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    quantile = _T_975[n - 2] if n - 2 < len(_T_975) else _NORMAL_975
    return ConfidenceInterval(mean, quantile * spread / math.sqrt(n))


DRAWS: Final = 2000
ValuePairs = Sequence[tuple[float, float]]
"""Of each window of a cell: the policy's number, and the other's that it is set against."""
Floats = NDArray[np.float64]


class Ratio(NamedTuple):
    """Below 1 the policy's number is the lower one. The 95 % interval is None where one window is all that
    has anything to say."""

    mean: float
    low: float | None
    high: float | None

    @property
    def differs(self) -> bool:
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high


def ratio(groups: Sequence[Sequence[ValuePairs]], *, seed: int = 0, draws: int = DRAWS) -> Ratio | None:
    """None where in every cell one of the two has nothing at all (no job waited)."""
    tables = [[np.asarray(cell, dtype=np.float64) for cell in group if len(cell)] for group in groups]
    tables = [[table for table in group if np.all(table.sum(axis=0) > 0.0)] for group in tables]
    tables = [group for group in tables if group]
    if not tables:
        return None
    middle = [np.mean([_log(table.sum(axis=0)) for table in group]) for group in tables]
    mean = float(np.exp(np.mean(middle)))
    if sum(np.count_nonzero(table.any(axis=1)) for group in tables for table in group) < 2:
        return Ratio(mean, None, None)
    generator = np.random.default_rng(seed)
    logs = np.zeros(draws)
    for _ in tables:  # One place of the sample after the other.
        which = generator.integers(len(tables), size=draws)
        for number, group in enumerate(tables):
            here = np.flatnonzero(which == number)
            logs[here] += _group_logs(group, len(here), generator)
    low, high = np.nanpercentile(np.exp(logs / len(tables)), (2.5, 97.5))
    return Ratio(mean, float(low), float(high))


def _group_logs(cells: Sequence[Floats], draws: int, generator: np.random.Generator) -> Floats:
    """Mean logarithms over cells, of so many samples of cells and windows."""
    logs = np.zeros(draws)
    for _ in cells:
        which = generator.integers(len(cells), size=draws)
        for number, table in enumerate(cells):
            here = np.flatnonzero(which == number)
            picked = generator.integers(len(table), size=(len(here), len(table)))
            logs[here] += _log(table[picked].sum(axis=1))
    mean: Floats = logs / len(cells)
    return mean


def _log(sums: Floats) -> Floats:
    """NaN where one of the two has nothing in a sample."""
    one, other = sums[..., 0], sums[..., 1]
    known = (one > 0.0) & (other > 0.0)
    found: Floats = np.log(np.where(known, one, np.nan) / np.where(known, other, np.nan))
    return found


MEASURES: Final = (("jct_s", "mean"), ("jct_s", "p50"), ("jct_s", "p95"), ("wait_s", "mean"))
RATIOS: Final = (("wait_ratio", "wait_s"), ("bsld_ratio", "bsld"), ("jct_ratio", "jct_s"))


def policy_differences(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compares each policy with the first one, for each measure: mean difference, and half of its 95 %
    interval (Student's, of the differences). Only whole runs and seeds that both have count; nothing below
    two seeds."""
    runs: dict[str, dict[int, Mapping[str, Any]]] = {}
    for summary in summaries:
        if not summary["interrupted"]:
            runs.setdefault(str(summary["label"]), {})[int(summary["seed"])] = summary
    labels = list(dict.fromkeys(str(summary["label"]) for summary in summaries))
    if not labels or labels[0] not in runs:
        return []
    first = runs[labels[0]]
    found = []
    for label in labels[1:]:
        both = sorted(first.keys() & runs.get(label, {}).keys())
        for name, part in MEASURES:
            here = [(runs[label][seed][name], first[seed][name]) for seed in both]
            differences = [one[part] - other[part] for one, other in here if one and other]
            if len(differences) >= 2:
                mean, half = interval(differences)
                found.append(
                    {
                        "policy": label,
                        "against": labels[0],
                        "measure": f"{name}.{part}",
                        "difference": mean,
                        "half": half,
                        "seeds": len(differences),
                    }
                )
    return found


def paired_windows(summaries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compares each policy with the first one: ratios of means over the counted jobs of all windows, with
    intervals over windows. Several seeds of a window are one block. Only whole runs that both have count."""
    whole = [summary for summary in summaries if not summary["interrupted"]]
    runs = {(str(s["label"]), int(s["window"]), int(s["seed"])): s for s in whole}
    labels = list(dict.fromkeys(str(summary["label"]) for summary in summaries))
    found = []
    for label in labels[1:]:
        both = sorted(key[1:] for key in runs if key[0] == label and (labels[0], *key[1:]) in runs)
        if not both:
            continue
        ratios: dict[str, dict[str, Any] | None] = {}
        for title, name in RATIOS:
            blocks: dict[int, tuple[float, float]] = {}
            for window, seed in both:
                here, there = (runs[one, window, seed][name] for one in (label, labels[0]))
                if here is not None and there is not None:
                    mine, other = blocks.get(window, (0.0, 0.0))
                    blocks[window] = (mine + here["mean"], other + there["mean"])
            ratios[title] = _as_document(ratio([[list(blocks.values())]]))
        windows = len({window for window, _ in both})
        found.append({"policy": label, "against": labels[0], "windows": windows, **ratios})
    return found


def _as_document(found: Ratio | None) -> dict[str, Any] | None:
    return None if found is None else found._asdict()
