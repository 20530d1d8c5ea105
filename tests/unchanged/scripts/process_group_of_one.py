"""A script that makes its own process group, where nobody has told it another place."""

import os

import torch
import torch.distributed as dist
from torch import nn

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "0")
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
torch.manual_seed(1)
model = nn.parallel.DistributedDataParallel(nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 3)).square().mean()
    loss.backward()
    optimizer.step()
    print(step, repr(loss.item()))
print(dist.get_rank(), dist.get_world_size(), os.environ["MASTER_ADDR"])
dist.destroy_process_group()
