"""A slow disk: every sample is one small image, read through a link of limited speed.

The digits are written once per worker as PGM images, one after the other, into one temporary file. Reading
one decodes it and shifts it by up to a pixel; before, a batch *waits* as long as a slow network file system
would take for it: `LATENCY_S` per image plus its bytes at `LINK_KIB_PER_S`. The wait is a sleep, announced at
start-up; it burns no processor time, as a real wait for storage would not. The device idles meanwhile, which
is what a co-tenant can use.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from typing import IO

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

LATENCY_S = 0.0004
LINK_KIB_PER_S = float(os.environ.get("DEMO_LINK_KIB_PER_S", "256"))


class ImageFile(Dataset[tuple[Tensor, Tensor]]):
    """A data set with one PGM image per sample in `file`; how it is shifted depends on seed and sample
    alone."""

    def __init__(self, file: IO[bytes], images: TensorDataset, seed: int) -> None:
        self._file = file
        self._seed = seed
        self._labels = images.tensors[1]
        levels = (images.tensors[0] * 255).round().to(torch.uint8).numpy()
        header = f"P5 {levels.shape[-1]} {levels.shape[-2]} 255\n".encode("ascii")
        self._image_bytes = len(header) + levels[0].size
        file.write(b"".join(header + image.tobytes() for image in levels))
        file.flush()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """The samples of a batch, read one after the other."""
        time.sleep(len(indices) * (LATENCY_S + self._image_bytes / (LINK_KIB_PER_S * 1024)))
        return [(self._read(index), self._labels[index]) for index in indices]

    def _read(self, index: int) -> Tensor:
        content = os.pread(self._file.fileno(), self._image_bytes, index * self._image_bytes)
        header, pixels = content.split(b"\n", 1)
        _, width, height, _ = header.split()
        image = torch.tensor(list(pixels), dtype=torch.float32).reshape(1, int(height), int(width)) / 255
        shift = (index * 7919 + self._seed) % 3 - 1
        return image.roll(shift, dims=-1)


def store(images: TensorDataset, seed: int) -> ImageFile:
    """The samples in a file that is gone when nobody has it open any more."""
    print(f"{LATENCY_S * 1000:g} ms and {LINK_KIB_PER_S:g} KiB/s for each sample: a slow disk", flush=True)
    return ImageFile(tempfile.TemporaryFile(prefix="demo-digits-"), images, seed)
