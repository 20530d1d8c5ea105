"""Dropout is made stronger in the middle of the training, in the layer itself."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(131)
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
rates = []

for epoch in range(5):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rates.append(model[3].p)
    if epoch in (1, 2):
        model[3].p = model[3].p + 0.2
        model[1].momentum = model[1].momentum / 2
    print(f"epoch {epoch}: dropout {rates[-1]:.1f}, loss {loss.item():.4f}")

torch.save({"model": model.state_dict(), "rates": rates}, sys.argv[1])
