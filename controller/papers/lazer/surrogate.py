"""The Gaussian process over (X, c): BoTorch's SingleTaskGP posterior, in numpy from a cached factorisation;
and the products of small matrices that it takes.

Rule: nothing here fits. Hyperparameters come from outside (`deferral.py`, or the prior's modes before the
first fit); given them, mean and variance equal BoTorch's.

Rule: no product here is so large that the BLAS below numpy would share it among threads (OpenBLAS does above
2^18 multiplications). Sharing gains nothing at these sizes, and on a busy machine, as a controller's may well
be, we have seen the wait for the other threads take thirty times as long as the work.

Inputs, each in [0, 1] by a fixed map, so that adding a sample moves no other:
X / x_max; log(1 + t) / log(1 + T) with T = 1 h for the mean time between arrivals, 30 days for the newcomer's
remaining time, 1 h for load and pause. The logarithm is for their heavy tails.
The kernel is a product over dimensions, k = k_X(X, X') k_c(c, c'): over a grid of X its first factor is the
same for every context, is computed once per model, and a prediction is one small matrix product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MULTIPLICATIONS_MAX: Final = 1 << 17
"""Half of where OpenBLAS begins to share."""
SMALL: Final = 24
"""LAPACK inverts triangles of at most so many rows."""


def product(a: Array, b: Array) -> Array:
    """`a @ b`, some columns of `b` (or, where there are few, rows of `a`) at a time."""
    rows, inner = a.shape
    columns = b.shape[1]
    if rows * inner * columns <= MULTIPLICATIONS_MAX:
        return a @ b
    result: Array = np.empty((rows, columns))
    if rows >= columns:
        step = max(1, MULTIPLICATIONS_MAX // (inner * columns))
        for first in range(0, rows, step):
            result[first : first + step] = a[first : first + step] @ b
    else:
        step = max(1, MULTIPLICATIONS_MAX // (inner * rows))
        for first in range(0, columns, step):
            result[:, first : first + step] = a @ b[:, first : first + step]
    return result


def inverse_of_lower(lower: Array) -> Array:
    """The inverse of a lower triangular matrix, by halves:

    | A 0 |-1   |   A^-1           0   |
    | C B |   = | -B^-1 C A^-1    B^-1 |
    """
    n = len(lower)
    if n <= SMALL:
        return np.asarray(np.tril(np.linalg.inv(lower)), np.float64)
    half = n // 2
    first, last = inverse_of_lower(lower[:half, :half]), inverse_of_lower(lower[half:, half:])
    result: Array = np.zeros((n, n))
    result[:half, :half], result[half:, half:] = first, last
    result[half:, :half] = -product(last, product(lower[half:, :half], first))
    return result


DIMENSIONS: Final = 5
GRID: Final = 101
"""Points of the coarse grid over [0, x_max]."""
FINER: Final = 20
"""Fine steps to one coarse step: 0.05 s when x_max is 100 s."""
GAP_S: Final = 3600.0
REMAINING_S: Final = 30 * 86_400.0
OVERHEAD_S: Final = 3600.0
LOGS: Final = np.log1p(np.array([GAP_S, REMAINING_S, OVERHEAD_S, OVERHEAD_S]))


class Context(NamedTuple):
    """The context c of Eq. 5, in seconds."""

    gap_s: float
    """Mean time between arrivals over the past hour."""
    remaining_s: float
    """T' of the newcomer."""
    load_s: float
    """l of the newcomer."""
    pause_s: float
    """The greatest p of the victims."""


class SurrogateSample(NamedTuple):
    """An observation that the surrogate learns from."""

    x_s: float
    context: Context
    f_s: float
    """|X - F|."""


class Hyperparameters(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Hyperparameters of the fitted model; `noise` and `constant` in units of standardised f."""

    lengthscales: tuple[float, ...]
    """X, then c, over inputs in [0, 1]."""
    noise: float
    constant: float
    mean_s: float
    """Standardisation: f = mean_s + deviation_s * y."""
    deviation_s: float


_PRIOR_LENGTHSCALE: Final = math.exp(math.sqrt(2.0) + 0.5 * math.log(DIMENSIONS) - 3.0)
_PRIOR_NOISE: Final = math.exp(-5.0)


def prior(f_s: Sequence[float]) -> Hyperparameters:
    """The hyperparameters before any fit: the modes of SingleTaskGP's priors, where its own fit begins
    too."""
    mean_s = math.fsum(f_s) / len(f_s)
    deviation_s = math.sqrt(math.fsum((f - mean_s) ** 2 for f in f_s) / max(1, len(f_s) - 1))
    return Hyperparameters(
        lengthscales=(_PRIOR_LENGTHSCALE,) * DIMENSIONS,
        noise=_PRIOR_NOISE,
        constant=0.0,
        mean_s=mean_s,
        deviation_s=deviation_s if deviation_s >= 1e-8 else 1.0,
    )


def scaled_context(context: Sequence[float]) -> Array:
    """Shape (4,), in [0, 1]."""
    inputs: Array = np.minimum(1.0, np.log1p(np.maximum(0.0, np.array(context))) / LOGS)
    return inputs


def scaled_inputs(samples: Sequence[SurrogateSample], x_max_s: float) -> Array:
    """The model's inputs, shape (n, 5)."""
    inputs = np.empty((len(samples), DIMENSIONS))
    inputs[:, 0] = np.clip(np.array([s.x_s for s in samples]) / x_max_s, 0.0, 1.0)
    contexts = np.array([s.context for s in samples]).reshape(-1, DIMENSIONS - 1)
    inputs[:, 1:] = np.minimum(1.0, np.log1p(np.maximum(0.0, contexts)) / LOGS)
    return inputs


class Surrogate:
    """A posterior that is fixed: new samples or hyperparameters make a new one. Nothing is computed before it
    is needed."""

    def __init__(self, samples: Sequence[SurrogateSample], hyper: Hyperparameters, x_max_s: float) -> None:
        self.hyper = hyper
        self.x_max_s = x_max_s
        self.inputs = scaled_inputs(samples, x_max_s)
        self.y = (np.array([s.f_s for s in samples]) - hyper.mean_s) / hyper.deviation_s
        self._scales = np.array(hyper.lengthscales)
        self._whitened = self.inputs / self._scales

    # --- The posterior -----------------------------------------------------------------------------

    @cached_property
    def kernel(self) -> Array:
        """Covariance of the noise-free values at the samples, shape (n, n)."""
        squares = np.sum(self._whitened**2, axis=1)
        distances = squares[:, None] + squares[None, :] - 2.0 * product(self._whitened, self._whitened.T)
        covariance: Array = np.exp(-0.5 * np.maximum(distances, 0.0))
        np.fill_diagonal(covariance, 1.0)
        return covariance

    @cached_property
    def inverse_factor(self) -> Array:
        """The inverse of the Cholesky factor of kernel + noise."""
        noisy = self.kernel + self.hyper.noise * np.eye(len(self.y))
        return inverse_of_lower(np.asarray(np.linalg.cholesky(noisy), np.float64))

    @cached_property
    def weights(self) -> Array:
        """(kernel + noise)^-1 (y - constant), shape (n,)."""
        root = self.inverse_factor
        weights: Array = root.T @ (root @ (self.y - self.hyper.constant))
        return weights

    def context_kernel(self, context: Array) -> Array:
        """k_c between a scaled context and each sample's, shape (n,)."""
        apart = context / self._scales[1:] - self._whitened[:, 1:]
        kernel: Array = np.exp(-0.5 * np.einsum("ij,ij->i", apart, apart))
        return kernel

    def x_kernel(self, x: Array) -> Array:
        """k_X between points of [0, 1] and each sample's X, shape (len(x), n)."""
        apart = x[:, None] / self._scales[0] - self._whitened[None, :, 0]
        kernel: Array = np.exp(-0.5 * apart * apart)
        return kernel

    def posterior(self, inputs: Array) -> tuple[Array, Array]:
        """Mean (s) and variance (s^2) of noise-free f at scaled inputs of shape (m, 5)."""
        apart = (inputs / self._scales)[:, None, :] - self._whitened[None, :, :]
        cross = np.exp(-0.5 * np.sum(apart * apart, axis=2))
        mean = self.hyper.constant + cross @ self.weights
        rooted = product(self.inverse_factor, cross.T)
        variance = np.maximum(1.0 - np.sum(rooted * rooted, axis=0), 0.0)
        return self.hyper.mean_s + self.hyper.deviation_s * mean, self.hyper.deviation_s**2 * variance

    # --- Its minimum over X ------------------------------------------------------------------------

    @cached_property
    def fine_grid(self) -> Array:
        return np.linspace(0.0, 1.0, (GRID - 1) * FINER + 1)

    @cached_property
    def fine_kernel(self) -> Array:
        """k_X over the fine grid, shape (2001, n)."""
        return self.x_kernel(self.fine_grid)

    @cached_property
    def coarse_kernel(self) -> Array:
        return np.ascontiguousarray(self.fine_kernel[::FINER])

    def best_x_s(self, context: Context) -> float:
        """The X that minimises the posterior mean in this context: coarse grid, fine grid around its best
        point, parabola through the best three. Lengthscales are at least 2.5 % of the range (a bound of
        SingleTaskGP's), so the coarse grid of 1 % steps misses no valley."""
        weights = self.weights * self.context_kernel(scaled_context(context))
        middle = int(np.argmin(self.coarse_kernel @ weights)) * FINER
        first = max(0, middle - FINER)
        heights = self.fine_kernel[first : middle + FINER + 1] @ weights
        return parabola_minimum(self.fine_grid, heights, first) * self.x_max_s


def parabola_minimum(grid: Array, heights: Array, first: int) -> float:
    """Where the parabola through the lowest of `heights` (at `grid[first:]`) and its neighbours is lowest."""
    i = int(np.argmin(heights))
    x = float(grid[first + i])
    if not 0 < i < len(heights) - 1:
        return x
    left, here, right = float(heights[i - 1]), float(heights[i]), float(heights[i + 1])
    bend = left - 2.0 * here + right
    step = float(grid[1] - grid[0])
    return x + 0.5 * step * (left - right) / bend if bend > 0.0 else x
