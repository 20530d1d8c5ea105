"""The append method of a list is looked up once, because somebody has read that it is faster."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(110)
loader = DataLoader(TensorDataset(torch.randn(72, 3), torch.randn(72, 1)), batch_size=8, shuffle=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
criterion = nn.MSELoss()
losses = []
keep = losses.append

for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        keep(loss.item())
    print(f"epoch {epoch}: {loss.item():.4f}")

print(f"{len(losses)} losses, mean {sum(losses) / len(losses):.4f}")
torch.save({"model": model.state_dict(), "losses": losses}, sys.argv[1])
