"""The plain pattern with all that a loop likes to carry, at the top level or (--function) in a function."""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(3)
    random.seed(4)
    data = TensorDataset(torch.randn(53, 6), torch.randint(0, 3, (53,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=28)
    per_epoch = []
    best, step = float("inf"), 0
    for epoch in range(4):
        model.train()
        total = 0.0
        for i, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x + 0.01 * random.random()), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
            step += 1
            best = min(best, loss.item())
            if i % 3 == 0:
                print(f"epoch {epoch} batch {i} step {step}", flush=True)
        model.eval()
        with torch.no_grad():
            right = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(data, 16))
        per_epoch.append([total, right])
        print(f"epoch {epoch}: loss {loss.item():.4f}, {right} right", flush=True)
    told = {"per_epoch": torch.tensor(per_epoch), "best": torch.tensor(best), "step": torch.tensor(step)}
    torch.save({**model.state_dict(), **told}, sys.argv[1])


main()
