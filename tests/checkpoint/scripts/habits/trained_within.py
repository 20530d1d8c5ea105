"""A probe with an optimizer of its own is trained after each epoch; the model's steps are the training."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def probe(model, x, y):
    head = nn.Linear(8, 1)
    sgd = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(3):
        loss = nn.functional.mse_loss(head(model[0](x).detach()), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return loss.item()


torch.manual_seed(30)
data = TensorDataset(torch.randn(40, 6), torch.randn(40, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
probes = []
for epoch in range(4):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    probes.append(probe(model, x, y))
torch.save({"model": model.state_dict(), "probes": probes}, sys.argv[1])
