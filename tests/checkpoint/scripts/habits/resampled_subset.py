"""Negatives are drawn anew for each epoch, and the loader is made over them."""

import random
import sys

import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

random.seed(62)
torch.manual_seed(62)
positives = TensorDataset(torch.randn(24, 5) + 1, torch.ones(24, 1))
negatives = TensorDataset(torch.randn(200, 5) - 1, torch.zeros(200, 1))
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
criterion = nn.BCEWithLogitsLoss()
losses = []

for epoch in range(5):
    chosen = random.sample(range(len(negatives)), 2 * len(positives))
    loader = DataLoader(ConcatDataset([positives, Subset(negatives, chosen)]), batch_size=9, shuffle=True)
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: loss {losses[-1]:.4f}")

torch.save({"model": model.state_dict(), "losses": losses}, sys.argv[1])
