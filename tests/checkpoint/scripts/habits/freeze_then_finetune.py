"""Two phases in two loops: first the head alone, then everything with a smaller rate."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(55)
loader = DataLoader(
    TensorDataset(torch.randn(60, 10), torch.randint(0, 3, (60,))), batch_size=8, shuffle=True
)
features = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Dropout(0.1))
model = nn.Sequential(features, nn.Linear(20, 3))
criterion = nn.CrossEntropyLoss()
log = []

print("training the head")
for param in features.parameters():
    param.requires_grad = False
optimizer = torch.optim.Adam(model[1].parameters(), lr=1e-2)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    log.append(("head", epoch, loss.item()))

print("fine-tuning all of it")
for param in features.parameters():
    param.requires_grad = True
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    log.append(("all", epoch, loss.item()))

torch.save({"model": model.state_dict(), "log": log}, sys.argv[1])
