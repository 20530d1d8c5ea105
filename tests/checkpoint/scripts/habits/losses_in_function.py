"""The function of an epoch collects its losses in a list and returns their mean."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_epoch(model, loader, optimizer, criterion):
    model.train()
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.mean(losses)


@torch.no_grad()
def evaluate(model, loader, criterion):
    model.eval()
    losses = [criterion(model(x), y).item() for x, y in loader]
    return np.mean(losses)


def main():
    torch.manual_seed(0)
    x = torch.randn(100, 5)
    y = (x**2).sum(1, keepdim=True)
    train_loader = DataLoader(TensorDataset(x[:80], y[:80]), batch_size=8, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[80:], y[80:]), batch_size=20)
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.MSELoss()
    history = {"train": [], "val": []}
    for epoch in range(4):
        train_loss = train_epoch(model, train_loader, optimizer, criterion)
        val_loss = evaluate(model, val_loader, criterion)
        history["train"].append(train_loss)
        history["val"].append(val_loss)
        print(f"epoch {epoch}: train {train_loss:.4f} val {val_loss:.4f}")
    torch.save({"model": model.state_dict(), "history": history}, sys.argv[1])


if __name__ == "__main__":
    main()
