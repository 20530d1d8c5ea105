"""A function that remembers in its default argument."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def smooth(value, window=[]):
    window.append(value)
    if len(window) > 5:
        window.pop(0)
    return sum(window) / len(window)


torch.manual_seed(108)
loader = DataLoader(TensorDataset(torch.randn(60, 4), torch.randn(60, 1)), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
smoothed = []

for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        smoothed.append(smooth(loss.item()))
    print(f"epoch {epoch}: {smoothed[-1]:.4f}")

torch.save({"model": model.state_dict(), "smoothed": smoothed}, sys.argv[1])
