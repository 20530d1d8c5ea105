"""A history of lists, and a shorter name for one of them."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(118)
x, y = torch.randn(56, 4), torch.randn(56, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
history = {"loss": [], "val_loss": [], "lr": []}
losses = history["loss"]

for epoch in range(5):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        history["val_loss"].append(nn.functional.mse_loss(model(x), y).item())
    history["lr"].append(optimizer.param_groups[0]["lr"])
    print(f"epoch {epoch}: {losses[-1]:.4f} {history['val_loss'][-1]:.4f}")

torch.save({"model": model.state_dict(), "history": history}, sys.argv[1])
