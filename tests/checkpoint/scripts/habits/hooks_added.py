"""Hooks that are added while it trains, a few in every epoch, and none is taken away."""

import sys

import torch
from torch import nn

torch.manual_seed(40)
rows, targets = torch.randn(48, 6), torch.randn(48, 1)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
noted = []


def note(module, args, out):
    noted.append(out.detach().mean().item())


for step in range(24):
    if step % 5 == 3:
        model[0].register_forward_hook(note)
        model[2].register_forward_hook(note)
    batch = slice(8 * (step % 6), 8 * (step % 6) + 8)
    loss = nn.functional.mse_loss(model(rows[batch]), targets[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save({"model": model.state_dict(), "noted": noted}, sys.argv[1])
