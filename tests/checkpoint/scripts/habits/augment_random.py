"""Python's random decides in the loop whether and how a batch is augmented; mixup of pairs."""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def augment(batch):
    if random.random() < 0.5:
        batch = torch.flip(batch, dims=[-1])
    shift = random.randint(-1, 1)
    return torch.roll(batch, shifts=shift, dims=-1) * random.uniform(0.9, 1.1)


def mixup(x, y, alpha=0.4):
    lam = random.betavariate(alpha, alpha)
    order = torch.randperm(x.size(0))
    return lam * x + (1 - lam) * x[order], y, y[order], lam


SEED = 67
random.seed(SEED)
torch.manual_seed(SEED)
train_loader = DataLoader(TensorDataset(torch.randn(66, 10), torch.randint(0, 3, (66,))), 8, shuffle=True)
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
lams = []
for epoch in range(4):
    for x, y in train_loader:
        mixed, ya, yb, lam = mixup(augment(x), y)
        out = model(mixed)
        loss = lam * criterion(out, ya) + (1 - lam) * criterion(out, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lams.append(lam)
    print(f"epoch {epoch}: loss {loss.item():.4f}, last lam {lam:.3f}")
torch.save({"model": model.state_dict(), "lams": lams}, sys.argv[1])
