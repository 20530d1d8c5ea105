"""Images: a residual network with GroupNorm, because batch statistics would depend on the sub-batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hwtests.models.training import Batch, Workload

CLASSES = 1000


class Block(nn.Module):
    """Two convolutions around a skip, halving the picture where `stride` is 2."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(8, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(8, channels)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.skip = nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.skip(x) + self.second_norm(self.second(inner)))


def build(small: bool) -> Workload:
    side, width, depth = (32, 16, (1, 1)) if small else (224, 64, (2, 2, 2, 2))
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False), nn.MaxPool2d(2)]
    channels = width
    for stage, blocks in enumerate(depth):
        for block in range(blocks):
            after = width * 2**stage
            layers.append(Block(channels, after, stride=2 if stage and not block else 1))
            channels = after
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))

    def make(generator: torch.Generator, rows: int) -> Batch:
        images = torch.randn(rows, 3, side, side, generator=generator)
        return images, torch.randint(CLASSES, (rows,), generator=generator)

    def loss(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(net(images), labels)

    return Workload(model=model, make=make, loss=loss)
