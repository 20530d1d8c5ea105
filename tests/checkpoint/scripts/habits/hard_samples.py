"""Samples with a large loss are drawn more often: their weights change while the epoch runs."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(65)
count = 64
dataset = TensorDataset(torch.randn(count, 4), torch.randn(count, 1), torch.arange(count))
weights = torch.ones(count, dtype=torch.double)
sampler = WeightedRandomSampler(weights, count)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
seen = torch.zeros(count, dtype=torch.long)

for epoch in range(5):
    for x, y, index in loader:
        each = nn.functional.mse_loss(model(x), y, reduction="none").squeeze(1)
        loss = each.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights[index] = 0.5 * weights[index] + 0.5 * each.detach().double()
        seen[index] += 1
    print(f"epoch {epoch}: loss {loss.item():.4f}, {int((seen == 0).sum())} never seen")

torch.save({"model": model.state_dict(), "weights": weights, "seen": seen}, sys.argv[1])
