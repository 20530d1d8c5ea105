"""Cross validation: a model of its own for each fold."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def folds(n, k, seed):
    order = np.random.RandomState(seed).permutation(n)
    for part in np.array_split(order, k):
        yield np.setdiff1d(order, part), part


def train_fold(dataset, train_idx, val_idx, epochs=3):
    train_loader = DataLoader(Subset(dataset, train_idx.tolist()), batch_size=8, shuffle=True)
    val_loader = DataLoader(Subset(dataset, val_idx.tolist()), batch_size=30)
    model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(epochs):
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        score = float(np.mean([nn.functional.mse_loss(model(x), y).item() for x, y in val_loader]))
    return model, score


torch.manual_seed(59)
np.random.seed(59)
x = torch.randn(60, 5)
y = x.sum(1, keepdim=True) + 0.1 * torch.randn(60, 1)
dataset = TensorDataset(x, y)
scores, states = [], []
for fold, (train_idx, val_idx) in enumerate(folds(len(dataset), 3, seed=0)):
    print(f"FOLD {fold}")
    model, score = train_fold(dataset, train_idx, val_idx)
    scores.append(score)
    states.append(model.state_dict())
print(f"mean {np.mean(scores):.4f} +- {np.std(scores):.4f}")
torch.save({"scores": scores, "states": states}, sys.argv[1])
