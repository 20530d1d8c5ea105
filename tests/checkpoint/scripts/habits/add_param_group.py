"""The backbone joins the optimizer as a group of its own after two epochs."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(58)
backbone = nn.Sequential(nn.Linear(7, 14), nn.ReLU())
head = nn.Linear(14, 2)
model = nn.Sequential(backbone, head)
loader = DataLoader(TensorDataset(torch.randn(64, 7), torch.randn(64, 2)), batch_size=8, shuffle=True)
optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
history = []

for epoch in range(4):
    if epoch == 2:
        optimizer.add_param_group({"params": backbone.parameters(), "lr": 0.001})
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    print(f"epoch {epoch}: {len(optimizer.param_groups)} groups, loss {loss.item():.4f}")

torch.save({"model": model.state_dict(), "history": history}, sys.argv[1])
