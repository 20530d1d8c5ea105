"""A training of one kind for the study of bounds, which writes when each of its steps ended.

    python training.py KIND SEED LOG [--small]

Kinds: compute (products of large matrices), memory (element-wise on large tensors), loader (mostly waits for
its data). It uses the GPU where there is one. `--small` suits a core of a CPU. A step ends when the device is
done with it, for its loss is read. The program ends when somebody ends it.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

WAIT_S = {"loader": 0.06}
"""For data, before each step."""
WIDTHS = {"compute": (4096, 512), "memory": (1024, 64), "loader": (2048, 256)}
"""On a GPU, and with `--small`."""
ROWS = (4096, 128)
ELEMENTS = (128_000_000, 2_000_000)
"""Of the large tensor of the kind `memory`: half a GiB on a GPU."""

kind, seed, log = sys.argv[1], int(sys.argv[2]), sys.argv[3]
size = int("--small" in sys.argv)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(seed)
torch.set_num_threads(1)
width = WIDTHS[kind][size]
model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
large = torch.randn(ELEMENTS[size], device=device) if kind == "memory" else None

with open(log, "a", buffering=1) as out:
    while True:
        time.sleep(WAIT_S.get(kind, 0.0))
        optimizer.zero_grad()
        rows = torch.randn(ROWS[size], width, device=device)
        loss = (model(rows) - rows).pow(2).mean()
        if large is not None:
            loss = loss + 0.0 * large.mul(1.0001).add(1.0).abs().mean()
        loss.backward()
        optimizer.step()
        float(loss)
        out.write(f"{time.monotonic():.6f}\n")
