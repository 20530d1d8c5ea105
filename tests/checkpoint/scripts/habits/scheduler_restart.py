"""A new scheduler every other epoch: warm restarts by hand."""

import sys

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(36)
dataset = TensorDataset(torch.randn(54, 6), torch.randn(54, 1))
loader = DataLoader(dataset, batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = CosineAnnealingLR(optimizer, T_max=len(loader), eta_min=0.001)
lrs = []

for epoch in range(5):
    for x, y in loader:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        lrs.append(scheduler.get_last_lr()[0])
    if epoch % 2 == 1:
        cycle_length = 2 * len(loader)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] = 0.05
        scheduler = CosineAnnealingLR(optimizer, T_max=cycle_length, eta_min=0.001)
        print(f"restart after epoch {epoch}, loss {loss.item():.4f}")

torch.save({"model": model.state_dict(), "lrs": lrs}, sys.argv[1])
