"""A generator that fetches a batch ahead of the one that is used."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def prefetch(loader):
    iterator = iter(loader)
    ahead = next(iterator, None)
    while ahead is not None:
        batch = ahead
        ahead = next(iterator, None)
        yield [tensor.float() for tensor in batch]


torch.manual_seed(122)
pixels = torch.randint(0, 256, (63, 8), dtype=torch.uint8)
targets = pixels.float().mean(1, keepdim=True) / 255
loader = DataLoader(TensorDataset(pixels, targets), batch_size=7, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
losses = []
for epoch in range(4):
    for x, y in prefetch(loader):
        loss = nn.functional.mse_loss(model(x / 255), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: {losses[-1]:.5f}")
torch.save({"model": model.state_dict(), "losses": losses}, sys.argv[1])
