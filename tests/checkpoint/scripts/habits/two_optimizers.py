"""A head that learns in every batch and a backbone whose gradients are collected over four."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(52)
backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
head = nn.Linear(16, 3)
head_optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
backbone_optimizer = torch.optim.SGD(backbone.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,))), batch_size=8, shuffle=True)
BACKBONE_EVERY = 4
losses = []

for epoch in range(5):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(head(backbone(x)), y)
        loss.backward()
        head_optimizer.step()
        head_optimizer.zero_grad()
        if (i + 1) % BACKBONE_EVERY == 0:
            backbone_optimizer.step()
            backbone_optimizer.zero_grad()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {losses[-1]:.4f}")

torch.save({"backbone": backbone.state_dict(), "head": head.state_dict(), "losses": losses}, sys.argv[1])
