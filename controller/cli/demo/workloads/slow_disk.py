"""A slow disk: every sample is one small image file, read through a link of limited speed.

The digits are written once per worker as PGM files into a temporary folder. Reading one opens the file,
decodes it, shifts it by up to a pixel, and then *waits* as long as a slow network file system would:
`LATENCY_S` per file plus its bytes at `LINK_KIB_PER_S`. The wait is a sleep, announced at start-up; it
burns no processor time, as a real wait for storage would not. The device idles meanwhile, which is what a
co-tenant can use.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

LATENCY_S = 0.0004
LINK_KIB_PER_S = float(os.environ.get("DEMO_LINK_KIB_PER_S", "256"))


class ImageFolder(Dataset[tuple[Tensor, Tensor]]):
    """One PGM file per image in `folder`; how it is shifted depends on seed and sample alone."""

    def __init__(self, folder: Path, images: TensorDataset, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._labels = images.tensors[1]
        for index, image in enumerate(images.tensors[0]):
            levels = (image * 255).round().to(torch.uint8)
            header = f"P5 {levels.shape[-1]} {levels.shape[-2]} 255\n".encode("ascii")
            (folder / f"{index:05d}.pgm").write_bytes(header + bytes(levels.flatten().tolist()))

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        content = (self._folder / f"{index:05d}.pgm").read_bytes()
        time.sleep(LATENCY_S + len(content) / (LINK_KIB_PER_S * 1024))
        header, pixels = content.split(b"\n", 1)
        _, width, height, _ = header.split()
        image = torch.tensor(list(pixels), dtype=torch.float32).reshape(1, int(height), int(width)) / 255
        shift = (index * 7919 + self._seed) % 3 - 1
        return image.roll(shift, dims=-1), self._labels[index]


def store(images: TensorDataset, seed: int) -> tuple[ImageFolder, tempfile.TemporaryDirectory[str]]:
    """The samples as files, and the folder that holds them as long as it is referred to."""
    folder = tempfile.TemporaryDirectory(prefix="demo-digits-")
    print(
        f"one file per sample, {LATENCY_S * 1000:g} ms and {LINK_KIB_PER_S:g} KiB/s each: a slow disk",
        flush=True,
    )
    return ImageFolder(Path(folder.name), images, seed), folder
