"""One rank of a small training in float64, that writes the loss of each step's whole batch.

Rule: nothing in it knows how many ranks there are but the batch of its loader. `elastic_job.py FOLDER STEPS`
goes slowly until FOLDER/hurry is there, so that a test has time to see it on one number of devices.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from cotenant import checkpoint, gradaccum

ROWS = 4
SAMPLES = 128
PACE_S = 0.15
"""Of so many rows: like this, more ranks are faster however slowly this machine lets them meet."""


def main() -> None:
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    inputs = torch.randn(SAMPLES, 8)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sin())
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=gradaccum.batch_size(ROWS), sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    state = checkpoint.Session(model, optimizer, sampler=sampler)
    for _ in state.epochs(10_000):
        if state.step >= steps:
            break
        for x, y in state.batches(loader):
            if state.step >= steps:
                break
            optimizer.zero_grad()
            loss = gradaccum.backward(model, lambda a, b: nn.functional.mse_loss(model(a), b), x, y)
            optimizer.step()
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                with (folder / "losses").open("a") as losses:
                    losses.write(f"{state.step} {dist.get_world_size()} {float(mean).hex()}\n")
            if not (folder / "hurry").exists():
                time.sleep(PACE_S * len(x) / ROWS)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
