"""Torch code that goes down with a signal, in the middle of a loop."""

import os

import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 2)).sum().backward()
    optimizer.step()
    print(epoch, flush=True)
    if epoch == 1:
        os.abort()
