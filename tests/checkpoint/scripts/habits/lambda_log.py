"""A lambda as a short way to write a loss down."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(112)
curve, norms = [], []
note = lambda step, loss: curve.append((step, round(loss.item(), 5)))
grad_norm = lambda m: sum(p.grad.norm() ** 2 for p in m.parameters()).sqrt()

loader = DataLoader(TensorDataset(torch.randn(63, 4), torch.randn(63, 1)), batch_size=7, shuffle=True)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
step = 0
for epoch in range(4):
    for x, y in loader:
        loss = nn.functional.smooth_l1_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norms.append(grad_norm(model).item())
        optimizer.step()
        step += 1
        note(step, loss)
    print(f"epoch {epoch}: {loss.item():.4f}")
torch.save({"model": model.state_dict(), "curve": curve, "norms": norms}, sys.argv[1])
