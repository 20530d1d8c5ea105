"""A loop that writes what it measures into a module of the project."""

import sys

import metrics
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(107)
loader = DataLoader(TensorDataset(torch.randn(60, 5), torch.randint(0, 3, (60,))), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(5, 15), nn.ReLU(), nn.Linear(15, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(4):
    for x, y in loader:
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics.add("loss", loss.item())
        metrics.add("accuracy", (logits.argmax(1) == y).float().mean().item())
        metrics.advance()
    print(f"epoch {epoch}: {metrics.mean('loss', last=len(loader)):.4f} after {metrics.steps} steps")

told = {"values": metrics.values, "steps": metrics.steps, "mean": metrics.mean("loss")}
torch.save({"model": model.state_dict(), **told}, sys.argv[1])
