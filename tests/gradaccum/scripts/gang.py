"""Two ranks with DistributedDataParallel, a token mean per rank, and a last batch that is smaller."""

import datetime
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
torch.manual_seed(8)
x, y = torch.randn(75, 5, 6), torch.randint(0, 4, (75, 5))
y[torch.rand(75, 5) < 0.4] = -100
data = TensorDataset(x, y)
sampler = DistributedSampler(data, seed=3)
loader = DataLoader(data, batch_size=15, sampler=sampler)
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4))
model = DistributedDataParallel(net, find_unused_parameters="--unused" in sys.argv)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
torch.save(net.state_dict(), f"{sys.argv[1]}.{dist.get_rank()}")
dist.barrier()
