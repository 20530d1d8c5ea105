"""A small network behind slow input: every picture is made on the CPU, and crosses PCIe in pageable memory.

The device waits for its input, which is what a co-tenant can use. The work is real arithmetic, not a sleep.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from hwtests.models.training import Batch, Workload

CLASSES = 10


def picture(generator: torch.Generator, side: int) -> Tensor:
    """One picture: noise that is blurred a few times, to keep a core busy as a decoder does."""
    image = torch.randn(1, 3, side, side, generator=generator)
    for _ in range(4):
        image = functional.avg_pool2d(functional.pad(image, (1, 1, 1, 1), mode="reflect"), 3, stride=1)
    return image[0]


def build(small: bool) -> Workload:
    side = 32 if small else 160
    model = nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )

    def make(generator: torch.Generator, rows: int) -> Batch:
        images = torch.stack([picture(generator, side) for _ in range(rows)])
        return images, torch.randint(CLASSES, (rows,), generator=generator)

    def stream(rows: int, first: int) -> Iterator[Batch]:
        step = first
        while True:  # Each batch anew, from its number: that is the point.
            yield make(torch.Generator().manual_seed(step), rows)
            step += 1

    def loss(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(net(images), labels)

    return Workload(model=model, make=make, loss=loss, stream=stream)
