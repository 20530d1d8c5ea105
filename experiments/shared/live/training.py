"""A training of one kind, which writes when each of its steps ended, and its processor time by then.

    python training.py KIND SEED LOG

Kinds, each with one thread: compute (products of large matrices), loader (mostly waits for its data), memory
(element-wise on large tensors), bursty (small steps, and every twentieth a large one), accumulating (four
backward passes a step), gang (compute, on as many ranks as there are, whose gradients are averaged).

It uses the GPU where there is one, with larger matrices; else steps take 30 to 90 ms on a core. A step ends
when the device is done with it, for its loss is read. The program ends when somebody ends it.
"""

from __future__ import annotations

import os
import sys
import time

import torch
from torch import distributed, nn

WAITS_S = {"loader": 0.06, "accumulating": 0.02, "bursty": 0.02}
"""For data, before each step."""
WIDTHS = {
    "compute": (1024, 4096),
    "loader": (384, 2048),
    "memory": (64, 1024),
    "bursty": (384, 2048),
    "accumulating": (512, 2048),
    "gang": (768, 4096),
}
"""Of a layer, on a core and on a GPU."""
ROWS = (256, 4096)
ELEMENTS = (6_000_000, 128_000_000)
"""Of the large tensor of the kind `memory`: half a GiB on a GPU."""
PASSES = {"accumulating": 4}
BURST_EVERY = 20
"""Steps of the kind `bursty`; ten products of four times the rows come then."""

kind, seed, log = sys.argv[1], int(sys.argv[2]), sys.argv[3]
on_gpu = int(torch.cuda.is_available())
device = "cuda" if on_gpu else "cpu"
torch.manual_seed(seed)
torch.set_num_threads(1)
width, rows_count = WIDTHS[kind][on_gpu], ROWS[on_gpu]
model: nn.Module = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to(device)
ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
if ranks > 1:
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
large = torch.randn(ELEMENTS[on_gpu], device=device) if kind == "memory" else None

with open(log if rank == 0 else os.devnull, "a", buffering=1) as out:
    step = 0
    while True:
        step += 1
        loss = torch.zeros(())
        time.sleep(WAITS_S.get(kind, 0.0))
        optimizer.zero_grad()
        for _ in range(PASSES.get(kind, 1)):
            rows = torch.randn(rows_count, width, device=device)
            loss = (model(rows) - rows).pow(2).mean()
            if large is not None:
                loss = loss + 0.0 * large.mul(1.0001).add(1.0).abs().mean()
            loss.backward()
        if kind == "bursty" and step % BURST_EVERY == 0:
            for _ in range(10):
                model(torch.randn(4 * rows_count, width, device=device))
        optimizer.step()
        float(loss)
        out.write(f"{time.monotonic():.6f} {time.process_time():.6f}\n")
