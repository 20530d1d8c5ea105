"""Rare classes are drawn more often by a WeightedRandomSampler."""

import sys
from collections import Counter

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


def make_sampler(labels):
    counts = Counter(labels.tolist())
    weights = [1.0 / counts[label] for label in labels.tolist()]
    return WeightedRandomSampler(weights, num_samples=len(weights), replacement=True)


torch.manual_seed(64)
labels = (torch.rand(72) < 0.2).long()
points = torch.randn(72, 3) + 2.0 * labels.unsqueeze(1)
loader = DataLoader(TensorDataset(points, labels), batch_size=9, sampler=make_sampler(labels))
model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
drawn = {0: 0, 1: 0}

for epoch in range(5):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        for label in y.tolist():
            drawn[label] += 1
    print(f"epoch {epoch}: drawn {drawn}")

torch.save({"model": model.state_dict(), "drawn": drawn}, sys.argv[1])
