"""The memory-heavy job: few weights, large activations, so that half a batch needs far less memory. With
`--slow-disk` it also waits for its samples, and a co-tenant can use the device meanwhile.

At the default batch of 512 one activation is 512 x 16 x 32 x 32 floats = 32 MiB, and the backward pass
keeps more than a dozen of them.
"""

from __future__ import annotations

from typing import Any

import slow_disk
import training
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

SIDE_PIXELS = 32


class Stage(nn.Module):
    """A cheap convolution between element-wise layers, each of which keeps its input for the backward
    pass."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.relu(self.mix(self.norm(x)))


class Enlarged(nn.Module):
    """Enlarges the digits inside the model: the loader stays light, the activations are what is large."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.interpolate(x, size=(SIDE_PIXELS, SIDE_PIXELS), mode="bilinear")


def build(options: training.DemoOptions) -> training.TrainingTask:
    channels = 16 * options.scale
    train, held_out = training.split_held_out(*training.load_digits())
    model = nn.Sequential(
        Enlarged(),
        nn.Conv2d(1, channels, 3, padding=1),
        *(Stage(channels) for _ in range(4)),
        nn.AdaptiveAvgPool2d(8),
        nn.Flatten(),
        nn.Linear(channels * 64, training.CLASS_COUNT),
    )
    samples: Dataset[Any] = slow_disk.store(train, options.seed) if options.slow_disk else train
    return training.TrainingTask(model=model, train=samples, held_out=held_out, loss=functional.cross_entropy)


if __name__ == "__main__":
    training.main(build, batch_size=512, steps=40, learning_rate=3e-3, about=__doc__)
