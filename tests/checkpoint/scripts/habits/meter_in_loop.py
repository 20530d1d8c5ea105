"""An AverageMeter made anew at the start of each epoch, in the loop itself."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AverageMeter:
    def __init__(self):
        self.total = 0.0
        self.count = 0

    def update(self, value, n):
        self.total += value * n
        self.count += n

    @property
    def average(self):
        return self.total / max(1, self.count)


torch.manual_seed(11)
x, y = torch.randn(66, 4), torch.randn(66, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)

train_losses = []
for epoch in range(4):
    meter = AverageMeter()
    for xb, yb in loader:
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(loss.item(), xb.size(0))
    train_losses.append(meter.average)
    print(f"Epoch {epoch}: {meter.average:.5f}")

torch.save({"weights": model.state_dict(), "train_losses": train_losses}, sys.argv[1])
