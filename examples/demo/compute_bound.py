"""The compute-bound job: a small residual network on enlarged digits, data in memory, duty cycle near 1."""

from __future__ import annotations

import training
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions around a skip. GroupNorm, because batch statistics would depend on the sub-batch."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.first_norm = nn.GroupNorm(8, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.second_norm = nn.GroupNorm(8, channels)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(x + self.second_norm(self.second(inner)))


def build(options: training.DemoOptions) -> training.TrainingTask:
    channels = 32 * options.scale
    images, labels = training.load_digits()
    train, held_out = training.split_held_out(
        functional.interpolate(images, size=(16, 16), mode="bilinear"), labels
    )
    model = nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        *(Residual(channels) for _ in range(3)),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(channels * 16, training.CLASS_COUNT),
    )
    return training.TrainingTask(model=model, train=train, held_out=held_out, loss=functional.cross_entropy)


if __name__ == "__main__":
    training.main(build, batch_size=64, steps=200, learning_rate=1e-3, about=__doc__)
