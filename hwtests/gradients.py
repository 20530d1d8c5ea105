"""One batch at once and in s micro-batches, on a device: how far apart the gradients are, and their memory.

`python -m hwtests.gradients --device cuda --precision fp64 --steps 4` prints one line of JSON.

Rule: the same weights and rows for both; TF32 off, so that fp32 is fp32. What is compared is the explicit
interface, `gradaccum.backward`, as a training script calls it.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotenant import gradaccum

PRECISIONS = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.float32}
"""What the weights are; bf16 is autocast over fp32 weights."""


class Net(nn.Module):
    """Layers with large activations and no state that depends on the batch."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        blocks = (
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(layers)
        )
        self.blocks = nn.ModuleList(blocks)
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)  # type: ignore[no-any-return]


def compare(device: str, precision: str, steps: int, *, rows: int, width: int, layers: int) -> dict[str, Any]:
    """`apart`: the largest difference of an entry over the largest entry. `peak_mib` by s; None on a CPU."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(1)
    dtype = PRECISIONS[precision]
    model = Net(width, layers).to(device, dtype)
    x = torch.randn(rows, width, device=device, dtype=dtype)
    y = torch.randint(10, (rows,), device=device)

    def loss_of(part: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            return functional.cross_entropy(model(part), labels)

    whole, peak_whole = gradient(model, loss_of, (x, y), 1, device)
    parts, peak_parts = gradient(model, loss_of, (x, y), steps, device)
    largest = max(float(g.abs().max()) for g in whole)
    apart = max(float((a - b).abs().max()) for a, b in zip(whole, parts, strict=True))
    return {"apart": apart / largest, "peak_mib": {"1": peak_whole, str(steps): peak_parts}}


def gradient(
    model: nn.Module, loss_of: Any, batch: tuple[Tensor, ...], steps: int, device: str
) -> tuple[list[Tensor], float | None]:
    """The gradient of every parameter, and the peak of the memory that torch allocated for it."""
    for _ in range(3):  # The first two check a few rows, and warm up: that is not what is compared.
        model.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        gradaccum.backward(model, loss_of, *batch, steps=steps)
    found = [p.grad.detach().clone() for p in model.parameters() if p.grad is not None]
    return found, torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None


def refused(device: str, kind: str) -> str:
    """What the library says to something that must not be accumulated; empty if it does not notice."""
    torch.manual_seed(1)
    norm: nn.Module = nn.BatchNorm1d(64) if kind == "batchnorm" else nn.LayerNorm(64)
    model = nn.Sequential(nn.Linear(64, 64), norm, nn.Linear(64, 10)).to(device)
    x, y = torch.randn(64, 64, device=device), torch.randint(10, (64,), device=device)
    reduction = "sum" if kind == "sum" else "mean"

    def loss_of(part: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(part), labels, reduction=reduction)

    try:
        gradaccum.backward(model, loss_of, x, y, steps=4)
    except gradaccum.Refused as problem:
        return str(problem)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), default="fp32")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--refused", choices=("sum", "batchnorm"))
    given = parser.parse_args()
    if given.refused:
        print(json.dumps({"refused": refused(given.device, given.refused)}))
        return 0
    sizes = {"rows": given.rows, "width": given.width, "layers": given.layers}
    print(json.dumps(compare(given.device, given.precision, given.steps, **sizes)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
