"""Clipping by norm, then by hand through `.grad`, a penalty on the parameters, and a log of the norms."""

import sys

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(5)
loader = DataLoader(TensorDataset(torch.randn(50, 5), torch.randn(50, 2)), batch_size=20, shuffle=True)
model = nn.Sequential(nn.Linear(5, 12), nn.SiLU(), nn.Linear(12, 2))
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
norms = []
for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        penalty = sum(p.square().sum() for p in model.parameters())
        loss = nn.functional.smooth_l1_loss(model(x), y) + 1e-3 * penalty
        loss.backward()
        norms.append(float(clip_grad_norm_(model.parameters(), 0.1)))
        for p in model.parameters():
            p.grad.clamp_(-0.05, 0.05)
        optimizer.step()
torch.save({**model.state_dict(), "norms": torch.tensor(norms)}, sys.argv[1])
