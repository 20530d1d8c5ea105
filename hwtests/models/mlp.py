"""Tables: a small perceptron, bound by the launching of its kernels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hwtests.models.training import Batch, Workload


def build(small: bool) -> Workload:
    inputs, width, layers = (16, 32, 2) if small else (256, 1024, 8)
    hidden: list[nn.Module] = [nn.Linear(inputs, width), nn.ReLU()]
    for _ in range(layers - 1):
        hidden += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*hidden, nn.Linear(width, 1))

    def make(generator: torch.Generator, rows: int) -> Batch:
        x = torch.randn(rows, inputs, generator=generator)
        return x, x[:, :4].sum(dim=1, keepdim=True)

    def loss(net: nn.Module, x: Tensor, wanted: Tensor) -> Tensor:
        return functional.mse_loss(net(x), wanted)

    return Workload(model=model, make=make, loss=loss)
