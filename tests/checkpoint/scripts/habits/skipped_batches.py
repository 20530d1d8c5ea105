"""Batches that are too small or whose loss is not finite are skipped with continue."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(135)
x = torch.randn(83, 4)
x[7, 2] = float("inf")
y = torch.randn(83, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
skipped, losses = [], []

for epoch in range(4):
    for i, (inputs, targets) in enumerate(loader):
        if len(inputs) < 8:
            skipped.append((epoch, i, "small"))
            continue
        if not torch.isfinite(inputs).all():
            skipped.append((epoch, i, "not finite"))
            continue
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: {len(losses)} steps, {len(skipped)} batches skipped")

torch.save({"model": model.state_dict(), "skipped": skipped, "losses": losses}, sys.argv[1])
