"""A real training of one kind, which writes when each of its steps ended.

    python training.py KIND SEED LOG

Kinds: compute (large products), loader (mostly waits for its data), memory (element-wise on large tensors),
bursty (a second of compute, a second of nothing). It ends when it is ended.
"""

from __future__ import annotations

import sys
import time

import torch

kind, seed, log = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.manual_seed(seed)
torch.set_num_threads(2)
width = {"compute": 640, "loader": 256, "memory": 64, "bursty": 512}[kind]
model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
big = torch.randn(4_000_000) if kind == "memory" else None

with open(log, "a", buffering=1) as out:
    while True:
        if kind == "loader":
            time.sleep(0.02)
        if kind == "bursty" and int(time.monotonic()) % 2:
            time.sleep(0.02)
        rows = torch.randn(64, width)
        loss = (model(rows) - rows).pow(2).mean()
        if big is not None:
            loss = loss + 0.0 * big.mul(1.0001).add(1.0).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.write(f"{time.monotonic():.6f}\n")
