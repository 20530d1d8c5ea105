"""The loader-bound job: a small network that waits for a slow disk most of the time (`slow_disk.py`)."""

from __future__ import annotations

import slow_disk
import training
from torch import nn
from torch.nn import functional


def build(options: training.DemoOptions) -> training.TrainingTask:
    train, held_out = training.split_held_out(*training.load_digits())
    width = 32 * options.scale
    model = nn.Sequential(
        nn.Conv2d(1, width // 2, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width // 2, width, 3, padding=1, stride=2),
        nn.GroupNorm(4, width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * 16, training.CLASS_COUNT),
    )
    return training.TrainingTask(
        model=model,
        train=slow_disk.store(train, options.seed),
        held_out=held_out,
        loss=functional.cross_entropy,
    )


if __name__ == "__main__":
    training.main(build, batch_size=64, steps=300, learning_rate=1e-3, about=__doc__)
