"""The learning rate falls by a factor at the start of each epoch, straight in the optimizer."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(34)
loader = DataLoader(TensorDataset(torch.randn(72, 4), torch.randn(72, 1)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
decay = 0.7
lr_history = []

for epoch in range(4):
    if epoch > 0:
        for g in optimizer.param_groups:
            g["lr"] *= decay
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.MSELoss()(model(x), y)
        loss.backward()
        optimizer.step()
    lr_history.append(optimizer.param_groups[0]["lr"])
    print("epoch", epoch, "lr", lr_history[-1], "loss", loss.item())

torch.save({"model": model.state_dict(), "lr_history": lr_history}, sys.argv[1])
