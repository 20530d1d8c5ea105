"""Regression with a loss summed over the batch, momentum and weight decay."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(3)
x = torch.randn(70, 4)
loader = DataLoader(TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=0.01, nesterov=True)
for _ in range(4):
    for inputs, targets in loader:
        optimizer.zero_grad()
        functional.mse_loss(model(inputs), targets, reduction="sum").backward()
        optimizer.step()
torch.save(model.state_dict(), sys.argv[1])
