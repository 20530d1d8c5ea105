"""Recommendation: large tables read at random places, bound by memory and not by arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hwtests.models.training import Batch, Workload


class Recommender(nn.Module):
    """How likely a click is, from the sums of a few looked-up rows per table and some numbers."""

    def __init__(self, tables: int, rows: int, width: int, numbers: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.numbers = nn.Linear(numbers, width)
        self.out = nn.Sequential(nn.Linear(width * (tables + 1), 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, chosen: Tensor, numbers: Tensor) -> Tensor:
        parts = [table(chosen[:, place]) for place, table in enumerate(self.tables)]
        return self.out(torch.cat([*parts, self.numbers(numbers)], dim=1)).squeeze(1)  # type: ignore[no-any-return]


def build(small: bool) -> Workload:
    tables, rows, width, looked_up = (2, 100, 8, 4) if small else (8, 200_000, 64, 32)
    numbers = 13

    def make(generator: torch.Generator, count: int) -> Batch:
        chosen = torch.randint(rows, (count, tables, looked_up), generator=generator)
        values = torch.randn(count, numbers, generator=generator)
        return chosen, values, (values[:, 0] > 0).float()

    def loss(net: nn.Module, chosen: Tensor, values: Tensor, clicked: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(net(chosen, values), clicked)

    return Workload(model=Recommender(tables, rows, width, numbers), make=make, loss=loss)
