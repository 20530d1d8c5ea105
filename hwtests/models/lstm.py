"""Sequences: an LSTM, whose many small kernels leave a large GPU half idle."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hwtests.models.training import Batch, Workload


class Recurrent(nn.Module):
    """The class of a sequence, from its last state."""

    def __init__(self, inputs: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, num_layers=layers, batch_first=True)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x)
        return self.out(states[:, -1])  # type: ignore[no-any-return]


def build(small: bool) -> Workload:
    length, inputs, width, layers, classes = (8, 16, 32, 1, 10) if small else (128, 256, 1024, 2, 100)

    def make(generator: torch.Generator, rows: int) -> Batch:
        x = torch.randn(rows, length, inputs, generator=generator)
        return x, torch.randint(classes, (rows,), generator=generator)

    def loss(net: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(net(x), labels)

    return Workload(model=Recurrent(inputs, width, layers, classes), make=make, loss=loss)
