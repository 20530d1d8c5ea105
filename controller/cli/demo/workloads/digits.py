"""Handwritten digits: the 1,797 images of 8 x 8 pixels that scikit-learn ships.

Rule: the file is read where scikit-learn installed it, without importing scikit-learn (which would add
a second to every worker's load time). Which samples are held out depends on nothing but their number.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

SIDE_PIXELS = 8
CLASS_COUNT = 10
_HOLD_OUT_EVERY = 6


def load_digits() -> tuple[Tensor, Tensor]:
    """All images as (count, 1, 8, 8) in 0..1, and their labels."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise SystemExit(
            "the digits come with scikit-learn, which is not installed here: pip install scikit-learn"
        )
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise SystemExit(f"{path}: the digits are missing from this scikit-learn: reinstall scikit-learn")
    with gzip.open(path, "rt", encoding="ascii") as lines:
        table = torch.from_numpy(numpy.loadtxt(lines, delimiter=",", dtype=numpy.float32))
    images = table[:, :-1].reshape(-1, 1, SIDE_PIXELS, SIDE_PIXELS) / 16.0
    return images, table[:, -1].long()


def split_held_out(images: Tensor, labels: Tensor) -> tuple[TensorDataset, TensorDataset]:
    """Every sixth sample is kept for measuring the loss; the rest trains."""
    held_out = torch.arange(len(labels)) % _HOLD_OUT_EVERY == 0
    return TensorDataset(images[~held_out], labels[~held_out]), TensorDataset(
        images[held_out], labels[held_out]
    )
