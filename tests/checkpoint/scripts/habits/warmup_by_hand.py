"""Learning rates set by hand: warm-up by steps, then a fall at given epochs."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("save")
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--warmup", type=int, default=10)
parser.add_argument("--milestones", type=int, nargs="+", default=[2, 3])
opt = parser.parse_args()

torch.manual_seed(33)
loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.randn(64, 2)), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.Sigmoid(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=opt.lr, momentum=0.9)
iteration = 0
rates = []


def set_lr(optimizer, lr):
    for group in optimizer.param_groups:
        group["lr"] = lr


for epoch in range(4):
    if epoch in opt.milestones:
        opt.lr = opt.lr * 0.1
        set_lr(optimizer, opt.lr)
    for x, y in loader:
        if iteration < opt.warmup:
            set_lr(optimizer, opt.lr * (iteration + 1) / opt.warmup)
        loss = nn.functional.huber_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.append(optimizer.param_groups[0]["lr"])
        iteration += 1
    print(f"epoch {epoch}: rate {rates[-1]:.5f}")

torch.save({"model": model.state_dict(), "rates": rates}, opt.save)
