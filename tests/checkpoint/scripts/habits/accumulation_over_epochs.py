"""A step per four batches, counted over all epochs: the gradients of an epoch's end go on into the next."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(51)
K = 4
model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(90, 6), torch.randint(0, 2, (90,))), batch_size=2, shuffle=True)
batches, steps = 0, 0
total = 0.0
means = []

optimizer.zero_grad()
for epoch in range(4):
    for inputs, targets in loader:
        batches += 1
        loss = nn.functional.cross_entropy(model(inputs), targets) / K
        loss.backward()
        total += loss.item()
        if batches % K == 0:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            means.append(total)
            total = 0.0
    print(f"epoch {epoch}: {steps} steps of {batches} batches")

torch.save({"model": model.state_dict(), "means": means, "steps": steps}, sys.argv[1])
