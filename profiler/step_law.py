"""The law of a step's time (Castor section 3.1), fitted to measured steps.

Rule: the fit is a bounded least squares over many measured steps at once, on arrays only. Errors are relative
(the logarithm of predicted / measured), and the few numbers that points often leave open are held by a prior
that weighs as much as the points are noisy: exact points overrule it, noisy ones cannot run away with it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cotenant.controller.performance import OVERLAP, Coefficients, Gang, MeasuredStep

Array = NDArray[np.float64]

OVERLAP_BOUNDS: Final = (1.0, 10.0)
OVERLAP_SD: Final = 0.3
"""Prior of log(overlap / 2.5)."""
GROWTH_SD: Final = 0.3
"""Prior of a growth term, in parts of the sync between hosts. Six applications measured on up to 64 devices
(the data of Qiao et al., OSDI 2021) have 0.1 to 0.5 per doubling."""
GROWTH_LEVELS_MIN: Final = 3
"""A growth term needs so many different counts: through two any slope goes, and extrapolated it explodes."""
OUTLIER: Final = 0.05
"""Relative errors far above this count by their size instead of their square."""
NOISE_MIN: Final = 1e-6
_FIRST_NOISE: Final = 0.05
_ROUNDS: Final = 3
_FIXED, _PER_SAMPLE, _HOST, _HOSTS, _BY_DEVICES, _BY_HOSTS, _OVERLAP = range(7)


class SciPyMissing(ImportError):
    """The fit needs SciPy; the message says how to get it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTable:
    """Measured steps as columns of equal length (n)."""

    batch_size: Array
    accumulation_steps: Array
    devices: Array
    hosts: Array
    step_s: Array

    @staticmethod
    def make(steps: Sequence[MeasuredStep]) -> StepTable:
        rows = [
            (step.batch_size, step.accumulation_steps, step.gang.devices, step.gang.hosts, step.step_s)
            for step in steps
        ]
        columns = np.array(rows, np.float64).reshape(-1, 5).T
        return StepTable(
            batch_size=columns[0],
            accumulation_steps=columns[1],
            devices=columns[2],
            hosts=columns[3],
            step_s=columns[4],
        )

    def only(self, rows: NDArray[np.bool_]) -> StepTable:
        return StepTable(
            batch_size=self.batch_size[rows],
            accumulation_steps=self.accumulation_steps[rows],
            devices=self.devices[rows],
            hosts=self.hosts[rows],
            step_s=self.step_s[rows],
        )

    @property
    def sub_batch(self) -> Array:
        return self.batch_size / self.accumulation_steps

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Where a gang has several devices and one host."""
        return np.asarray((self.devices > 1) & (self.hosts == 1))

    @property
    def across(self) -> NDArray[np.bool_]:
        """Where a gang has several hosts."""
        return np.asarray(self.hosts > 1)


def sync_design(table: StepTable) -> Array:
    """What the sync of each row is made of: (n, 4), for the four coefficients of `Coefficients.sync_s`."""
    across = table.across.astype(np.float64)
    per_host = np.log2(table.devices / table.hosts)
    hosts = np.log2(np.maximum(table.hosts, 2) / 2)
    return np.stack([table.inside.astype(np.float64), across, across * per_host, across * hosts], axis=1)


def step_s(values: Array, table: StepTable, design: Array) -> Array:
    """The step time by eq. 3 for each row, as `Coefficients.step_s` has it for one. (7,), n rows, (n, 4) ->
    (n,)."""
    compute = values[_FIXED] + values[_PER_SAMPLE] * table.sub_batch
    sync = design @ values[_HOST:_OVERLAP]
    longer, shorter = np.maximum(compute, sync), np.minimum(compute, sync)
    ratio = np.maximum(shorter, 0.0) / np.maximum(longer, np.finfo(float).tiny)
    last = longer * (1.0 + ratio ** values[_OVERLAP]) ** (1.0 / values[_OVERLAP])
    return np.asarray((table.accumulation_steps - 1) * compute + last)


def free_coefficients(table: StepTable) -> list[int]:
    """Which of the seven the rows can say anything about; others stay at 0 (the overlap at its default)."""
    free = [_FIXED, _PER_SAMPLE]
    across = table.across
    free += [_HOST] if table.inside.any() else []
    free += [_HOSTS] if across.any() else []
    per_host = np.unique(table.devices[across] / table.hosts[across])
    free += [_BY_DEVICES] if len(per_host) >= GROWTH_LEVELS_MIN else []
    free += [_BY_HOSTS] if len(np.unique(table.hosts[across])) >= GROWTH_LEVELS_MIN else []
    return free + ([_OVERLAP] if (table.devices > 1).any() else [])


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """The seven numbers (7,), in the order and units of `Coefficients`."""

    values: Array
    noise: float
    """Typical relative error on the rows it was fitted to."""

    @property
    def coefficients(self) -> Coefficients:
        return Coefficients(**dict(zip(Coefficients.__struct_fields__, map(float, self.values), strict=True)))

    def predict(self, table: StepTable) -> Array:
        return step_s(self.values, table, sync_design(table))


def solve(table: StepTable) -> Solution:
    """Bounded least squares on relative errors: first with every row at its square, then outliers at less.

    Args:
        table: at least two rows. In units of its median step time and largest batch all numbers are near 1.

    Raises:
        SciPyMissing: no SciPy here.
    """
    least_squares = _optimize().least_squares
    unit_s, unit_batch = float(np.median(table.step_s)), float(np.max(table.sub_batch))
    design, free = sync_design(table), np.array(free_coefficients(table))
    scale = np.array([unit_s, unit_s / unit_batch, unit_s, unit_s, unit_s, unit_s, 1.0])
    start = _start(table, unit_s, unit_batch)
    lower = np.array([0.0] * 6 + [OVERLAP_BOUNDS[0]])
    upper = np.array([np.inf] * 6 + [OVERLAP_BOUNDS[1]])
    values, noise = np.where(np.isin(np.arange(7), [*free, _OVERLAP]), start, 0.0), _FIRST_NOISE

    def residuals(part: Array, noise: float, sync: float) -> Array:
        every = values.copy()
        every[free] = part
        errors = np.log(np.maximum(step_s(every * scale, table, design), 1e-300) / table.step_s)
        prior = np.array([every[_BY_DEVICES] / sync, every[_BY_HOSTS] / sync]) / GROWTH_SD
        overlap = np.log(every[_OVERLAP] / OVERLAP) / OVERLAP_SD
        return np.concatenate([errors, noise * prior, [noise * overlap]])

    for turn in range(_ROUNDS):
        inside = np.clip(values[free], lower[free] + 1e-9, upper[free] - 1e-9)
        found = least_squares(
            residuals,
            inside,
            args=(noise, max(float(values[_HOSTS]), 1e-3)),
            bounds=(lower[free], upper[free]),
            loss="linear" if turn == 0 else "soft_l1",
            f_scale=OUTLIER,
            xtol=1e-10,
            ftol=1e-10,
            max_nfev=100,
        )
        values[free] = found.x
        errors = np.abs(residuals(found.x, noise, 1.0)[: len(table.step_s)])
        # 1.4826: median absolute deviation to standard deviation of a normal distribution.
        noise = max(1.4826 * float(np.median(errors)), NOISE_MIN)
    return Solution(values=values * scale, noise=noise)


def _start(table: StepTable, unit_s: float, unit_batch: float) -> Array:
    """Compute from gangs of one device (all, if there is none), sync from what is then left of the others."""
    nnls = _optimize().nnls
    alone = table.devices == 1
    alone = alone if alone.sum() > 1 else np.ones_like(alone)
    s, y = table.accumulation_steps, table.step_s / unit_s
    line = np.stack([s, table.batch_size / unit_batch], axis=1)
    found = nnls(line[alone] / y[alone, None], np.ones(int(alone.sum())))[0]
    left = np.maximum(y - 0.7 * line @ found, 0.01)
    syncs = [float(np.median(left[rows])) if rows.any() else 0.1 for rows in (table.inside, table.across)]
    growth = 0.1 * syncs[1]
    return np.array([*np.maximum(found, 0.01), *syncs, growth, growth, OVERLAP])


def covariance(solution: Solution, table: StepTable, noise: float) -> Array:
    """How far rows with this relative error leave the seven open, (7, 7) in their units squared.

    The inverse of (points' curvature + prior's), Gauss-Newton. Growth terms count as open even where they
    were held at 0: that is what makes the range of an extrapolation wide.
    """
    steps = zip(table.batch_size, table.accumulation_steps, table.devices, table.hosts, strict=True)
    law = solution.coefficients
    predicted = solution.predict(table)
    slopes = np.array([law.slope(b, int(s), Gang(devices=int(n), hosts=int(h))) for b, s, n, h in steps])
    unit_s, sync_s = float(np.median(table.step_s)), max(law.hosts_sync_s, 1e-9)
    growth_s = GROWTH_SD * sync_s
    sd = np.array(
        [unit_s, unit_s / float(np.max(table.sub_batch)), unit_s, unit_s, growth_s, growth_s, OVERLAP_SD]
    )
    sd[_OVERLAP] *= law.overlap
    scaled = slopes / predicted[:, None] * sd
    inverse = np.linalg.inv(scaled.T @ scaled / noise**2 + np.eye(7))
    return np.asarray(inverse * np.outer(sd, sd))


def _optimize() -> ModuleType:
    try:
        return importlib.import_module("scipy.optimize")
    except ImportError as error:
        raise SciPyMissing(
            "a throughput model is fitted with SciPy: pip install '.[predict]' in the source folder"
        ) from error
