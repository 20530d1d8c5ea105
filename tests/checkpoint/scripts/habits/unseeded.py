"""No seed is set: data are drawn and split at random before the loop, as often happens."""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

x = torch.rand(80, 4)
y = (x.sum(1, keepdim=True) + 0.1 * torch.randn(80, 1)).sqrt()
train_set, val_set = random_split(TensorDataset(x, y), [64, 16])
width = random.choice([16, 24, 32])
train_loader = DataLoader(train_set, batch_size=8, shuffle=True)
val_loader = DataLoader(val_set, batch_size=16)
model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(1 / width), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
val_losses = []

for epoch in range(4):
    model.train()
    for inputs, targets in train_loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        val_losses.append(sum(nn.functional.mse_loss(model(a), b).item() for a, b in val_loader))
    print(f"epoch {epoch}: validation {val_losses[-1]:.5f}")

torch.save({"model": model.state_dict(), "val_losses": val_losses, "split": val_set.indices}, sys.argv[1])
