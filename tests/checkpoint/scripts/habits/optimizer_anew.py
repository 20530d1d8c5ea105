"""After two epochs of Adam the loop goes on with SGD."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(130)
loader = DataLoader(TensorDataset(torch.randn(60, 5), torch.randint(0, 2, (60,))), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(5, 15), nn.ReLU(), nn.Linear(15, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
names, losses = [], []

for epoch in range(5):
    if epoch == 2:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    names.append(type(optimizer).__name__)
    print(f"epoch {epoch} with {names[-1]}: {losses[-1]:.4f}")

torch.save({"model": model.state_dict(), "losses": losses, "names": names}, sys.argv[1])
