"""Epochs that are counted down, an order that is taken from an iterator, and a function that has a name of
Python's own."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def enumerate(batches, skip=1):
    """Every other batch with its number."""
    left = skip
    for batch in batches:
        left = (left + 1) % (skip + 1)
        if left == 0:
            yield left, batch


torch.manual_seed(21)
loader = DataLoader(TensorDataset(torch.randn(56, 6), torch.randn(56, 1)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scales = iter([0.5, 1.0, 2.0, 1.5, 0.7, 0.9] * 4)
seen = []
for left in reversed(range(5)):
    for number, (x, y) in enumerate(loader):
        scale = next(scales)
        loss = nn.functional.mse_loss(model(x * scale), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append((left, number, loss.item()))
torch.save({"model": model.state_dict(), "seen": seen, "scales": list(scales)}, sys.argv[1])
