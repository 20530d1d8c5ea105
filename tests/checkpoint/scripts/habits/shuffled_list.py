"""A list of batches that random.shuffle mixes in place before each epoch; no loader at all."""

import random
import sys

import torch
from torch import nn

random.seed(114)
torch.manual_seed(114)
x, y = torch.randn(63, 5), torch.randn(63, 1)
batches = [(x[i : i + 7], y[i : i + 7]) for i in range(0, len(x), 7)]
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []

for epoch in range(4):
    random.shuffle(batches)
    total = 0.0
    for inputs, targets in batches:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    losses.append(total / len(batches))
    print(f"epoch {epoch}: {losses[-1]:.4f}")

torch.save({"model": model.state_dict(), "losses": losses}, sys.argv[1])
