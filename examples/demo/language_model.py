"""The language model: a small causal transformer predicts the next character of Shakespeare's sonnets."""

from __future__ import annotations

from pathlib import Path

import torch
import training
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

CONTEXT_CHARS = 64
WIDTH = 96
_HELD_OUT_SHARE = 0.1


class Block(nn.Module):
    """Pre-norm attention and a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, chars, width = x.shape
        parts = self.attention_in(self.attention_norm(x)).view(
            batch, chars, 3, self.heads, width // self.heads
        )
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, chars, width))
        return x + self.mlp(x)  # type: ignore[no-any-return]


class CharTransformer(nn.Module):
    """Logits for every next character, given those before it."""

    def __init__(self, vocabulary_size: int, scale: int) -> None:
        super().__init__()
        width = WIDTH * scale
        self.characters = nn.Embedding(vocabulary_size, width)
        self.positions = nn.Parameter(torch.zeros(CONTEXT_CHARS, width))
        self.blocks = nn.Sequential(*(Block(width, heads=4 * scale) for _ in range(2 * scale)))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary_size))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.blocks(self.characters(x) + self.positions[: x.shape[1]]))  # type: ignore[no-any-return]


def windows(codes: Tensor, stride_chars: int) -> TensorDataset:
    """Overlapping windows and the same windows one character later."""
    cuts = codes.unfold(0, CONTEXT_CHARS + 1, stride_chars)
    return TensorDataset(cuts[:, :-1].contiguous(), cuts[:, 1:].contiguous())


def next_char_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def build(options: training.DemoOptions) -> training.TrainingTask:
    text = Path(__file__).with_name("sonnets.txt").read_text(encoding="utf-8")
    vocabulary = {char: code for code, char in enumerate(sorted(set(text)))}
    codes = torch.tensor([vocabulary[char] for char in text])
    cut = int(len(codes) * (1 - _HELD_OUT_SHARE))
    return training.TrainingTask(
        model=CharTransformer(len(vocabulary), options.scale),
        train=windows(codes[:cut], stride_chars=3),
        held_out=windows(codes[cut:], stride_chars=16),
        loss=next_char_loss,
    )


if __name__ == "__main__":
    training.main(build, batch_size=32, steps=400, learning_rate=1e-3, about=__doc__)
