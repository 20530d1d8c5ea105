"""What most jobs here train: small, with dropout and DataLoader processes, for a resume to restore.

Started as any DDP script; its numbers depend on the options and the number of ranks alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from cotenant import checkpoint, gradaccum

# What --accumulate equivalent says: parts of a batch may have other dropout.
os.environ["COTENANT_ZERO_CODE"] = "equivalent"
SAMPLES, WIDTH, CLASSES = 256, 24, 5


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--steps", "--batch-size", "--seed", "--loaders"):
        parser.add_argument(name, type=int, default=0)
    parser.add_argument("--result", type=Path)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True)
    inner = nn.Sequential(nn.Linear(WIDTH, 32), nn.Dropout(0.2), nn.Tanh(), nn.Linear(32, CLASSES))
    data = TensorDataset(torch.randn(SAMPLES, WIDTH), torch.randint(CLASSES, (SAMPLES,)))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler: DistributedSampler[object] = DistributedSampler(data, seed=options.seed, drop_last=True)
    loader = DataLoader(
        data, options.batch_size, sampler=sampler, drop_last=True, num_workers=options.loaders
    )
    state = checkpoint.Session(model, optimizer, sampler=sampler)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x), y)

    for _ in state.epochs(math.ceil(options.steps / len(loader))):
        for x, y in state.batches(loader):
            if state.step >= options.steps:
                break
            optimizer.zero_grad()
            gradaccum.backward(model, loss_of, x, y)
            optimizer.step()
    if dist.get_rank() == 0 and state.step >= options.steps:
        digest = hashlib.sha256()
        for name, value in sorted(inner.state_dict().items()):
            digest.update(name.encode() + value.numpy().tobytes())
        partial = options.result.with_name(f".{options.result.name}.{os.getpid()}")
        partial.write_text(json.dumps({"parameters_sha256": digest.hexdigest()}))
        partial.replace(options.result)
    dist.barrier()  # Else the first to leave may cut the other off in its last collective.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
