"""Products and inverses of small matrices, on the calling thread alone.

Rule: no product here is so large that the BLAS below numpy would share it among threads (OpenBLAS does above
2^18 multiplications). Sharing gains nothing at these sizes, and on a busy machine, as a controller's may well
be, we have seen the wait for the other threads take thirty times as long as the work.
"""

from __future__ import annotations

from typing import Final

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
