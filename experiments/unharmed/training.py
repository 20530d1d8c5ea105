"""A real training of one kind, which writes when each of its steps ended, and its processor time by then.

    python training.py KIND SEED LOG

Kinds, each with one thread: compute (large products), loader (mostly waits for its data), memory
(element-wise on large tensors), bursty (small steps, and every twentieth a large one), accumulating (four
backward passes a step), gang (compute, on as many ranks as there are, whose gradients are averaged). It ends
when it is ended.
"""

from __future__ import annotations

import os
import sys
import time

import torch
from torch import distributed, nn

WAITS_S = {"loader": 0.06, "accumulating": 0.02, "bursty": 0.02}
"""For data, before each step."""
WIDTHS = {"compute": 1024, "loader": 384, "memory": 64, "bursty": 384, "accumulating": 512, "gang": 768}
PASSES = {"accumulating": 4}
BURST_EVERY = 20

kind, seed, log = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.manual_seed(seed)
torch.set_num_threads(1)
width = WIDTHS[kind]
model: nn.Module = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
if ranks > 1:
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
big = torch.randn(6_000_000) if kind == "memory" else None

with open(log if rank == 0 else os.devnull, "a", buffering=1) as out:
    step = 0
    while True:
        step += 1
        time.sleep(WAITS_S.get(kind, 0.0))
        optimizer.zero_grad()
        for _ in range(PASSES.get(kind, 1)):
            rows = torch.randn(256, width)
            loss = (model(rows) - rows).pow(2).mean()
            if big is not None:
                loss = loss + 0.0 * big.mul(1.0001).add(1.0).abs().mean()
            loss.backward()
        if kind == "bursty" and step % BURST_EVERY == 0:
            for _ in range(10):
                model(torch.randn(1024, width))
        optimizer.step()
        out.write(f"{time.monotonic():.6f} {time.process_time():.6f}\n")
