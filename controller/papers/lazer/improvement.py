"""Log noisy expected improvement: the acquisition function of Lazer section 5.1, in numpy.

Rule: the observed f are noisy (F is random), so the best one so far is not known. Fantasies are draws of the
noise-free values at the observed points; for each of them expected improvement has its closed form, and the
acquisition value is the logarithm of its mean over the fantasies (BoTorch's LogNoisyExpectedImprovement).

A fantasy is drawn pathwise: a draw from the prior, moved by what the data say about it. That needs no
factorisation beyond the two that predicting needs anyway.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from cotenant.controller.papers.lazer.surrogate import (
    FINER,
    Array,
    Context,
    Surrogate,
    inverse_of_lower,
    parabola_minimum,
    product,
    scaled_context,
)

FANTASIES: Final = 20
NOISELESS: Final = 1e-7
"""Noise of a fantasy model, in units of standardised f, as in BoTorch."""
VARIANCE_MIN: Final = 1e-12


class Chosen(NamedTuple):
    x_s: float
    gain_s: float
    """Its (noisy) expected improvement, in seconds of f."""


class Improvement:
    """The acquisition function over one surrogate."""

    def __init__(self, surrogate: Surrogate, seed: tuple[int, ...]) -> None:
        self.surrogate = surrogate
        self._seed = seed

    @cached_property
    def _root(self) -> tuple[Array, Array]:
        """Cholesky factor of the noiseless kernel, and its inverse."""
        kernel = self.surrogate.kernel
        root = np.asarray(np.linalg.cholesky(kernel + NOISELESS * np.eye(len(kernel))), np.float64)
        return root, inverse_of_lower(root)

    @cached_property
    def fantasies(self) -> Array:
        """Noise-free standardised values at the samples, shape (n, FANTASIES)."""
        model, (root, _) = self.surrogate, self._root
        n = len(model.y)
        draws = np.random.default_rng(self._seed).standard_normal((2 * n, FANTASIES))
        before = product(root, draws[:n])
        noise = math.sqrt(model.hyper.noise) * draws[n:]
        surprise = (model.y - model.hyper.constant)[:, None] - before - noise
        explained = product(model.inverse_factor.T, product(model.inverse_factor, surprise))
        return model.hyper.constant + before + product(model.kernel, explained)

    @cached_property
    def _fantasy_weights(self) -> Array:
        """(kernel + noiseless)^-1 (fantasy - constant), shape (n, FANTASIES)."""
        _, inverse = self._root
        return product(inverse.T, product(inverse, self.fantasies - self.surrogate.hyper.constant))

    def log_value(self, cross: Array) -> Array:
        """The logarithm of the improvement expected (standardised) at points whose covariances with the
        samples are `cross`, shape (m, n) -> (m,)."""
        _, inverse = self._root
        mean = self.surrogate.hyper.constant + product(cross, self._fantasy_weights)
        rooted = product(inverse, cross.T)
        variance = 1.0 - np.einsum("ij,ij->j", rooted, rooted)
        deviation = np.sqrt(np.maximum(variance, VARIANCE_MIN))[:, None]
        best = self.fantasies.min(axis=0)
        logs = log_h((best - mean) / deviation) + np.log(deviation)
        top = logs.max(axis=1, keepdims=True)
        value: Array = top[:, 0] + np.log(np.mean(np.exp(logs - top), axis=1))
        return value

    def choose(self, context: Context) -> Chosen:
        """The X with the greatest value in this context."""
        model = self.surrogate
        near = model.context_kernel(scaled_context(context))
        middle = int(np.argmax(self.log_value(self._coarse_kernel * near))) * FINER
        first = max(0, middle - FINER)
        around = model.fine_grid[first : middle + FINER + 1]
        values = self.log_value(model.x_kernel(around) * near)
        gain_s = model.hyper.deviation_s * math.exp(float(values.max()))
        return Chosen(parabola_minimum(model.fine_grid, -values, first) * model.x_max_s, gain_s)

    @cached_property
    def _coarse_kernel(self) -> Array:
        """The kernel of the coarse grid, not the surrogate's: that one comes from its fine grid, which is not
        worth it for one sample."""
        return self.surrogate.x_kernel(self.surrogate.fine_grid[::FINER])


# --- log h, h(u) = phi(u) + u Phi(u): expected improvement of a standard normal over -u ------------------

_LOW: Final = -37.0
_HIGH: Final = 9.0
_STEP: Final = 0.01
_HALF_LOG_2PI: Final = 0.5 * math.log(2.0 * math.pi)


def _tabulate() -> tuple[Array, Array]:
    """log h and its derivative Phi / h on a grid. `erfc` keeps its relative precision in the tail, and the
    cancellation in h costs a factor u^2 only."""
    values, slopes = [], []
    for i in range(round((_HIGH - _LOW) / _STEP) + 2):
        u = _LOW + i * _STEP
        below = 0.5 * math.erfc(-u / math.sqrt(2.0))
        h = math.exp(-0.5 * u * u - _HALF_LOG_2PI) + u * below
        values.append(math.log(h))
        slopes.append(below / h)
    return np.array(values), np.array(slopes)


_VALUES, _SLOPES = _tabulate()


def log_h(u: Array) -> Array:
    """log(phi(u) + u Phi(u)), to 1e-9 for any u: cubic interpolation, beyond its ends the asymptotes."""
    place = (np.clip(u, _LOW, _HIGH) - _LOW) / _STEP
    i = place.astype(np.int64)
    t = place - i
    a, b = _VALUES[i], _VALUES[i + 1]
    da, db = _STEP * _SLOPES[i], _STEP * _SLOPES[i + 1]
    inside: Array = a + t * (da + t * (3.0 * (b - a) - 2.0 * da - db + t * (2.0 * (a - b) + da + db)))
    outside = (u < _LOW) | (u > _HIGH)
    if outside.any():
        far = u[outside]
        square = far * far
        tail = -0.5 * square - _HALF_LOG_2PI - np.log(square) + np.log1p(-3.0 / square + 15.0 / square**2)
        inside[outside] = np.where(far > 0.0, np.log(np.abs(far)), tail)
    return inside
