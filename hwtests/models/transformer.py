"""Language: a causal transformer that predicts the next token of random text."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hwtests.models.training import Batch, Workload


class Layer(nn.Module):
    """Pre-norm attention and a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        split = self.into(self.norm(x)).view(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, tokens, width))
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Logits for every next token."""

    def __init__(self, vocabulary: int, tokens: int, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(tokens, width))
        self.layers = nn.Sequential(*(Layer(width, heads=width // 64) for _ in range(layers)))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.layers(self.words(tokens) + self.places[: tokens.shape[1]]))  # type: ignore[no-any-return]


def build(small: bool) -> Workload:
    vocabulary, length, width, layers = (128, 16, 64, 1) if small else (16384, 256, 512, 8)

    def make(generator: torch.Generator, rows: int) -> Batch:
        text = torch.randint(vocabulary, (rows, length + 1), generator=generator)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def loss(net: nn.Module, given: Tensor, wanted: Tensor) -> Tensor:
        return functional.cross_entropy(net(given).flatten(0, 1), wanted.flatten())

    return Workload(model=Transformer(vocabulary, length, width, layers), make=make, loss=loss)
