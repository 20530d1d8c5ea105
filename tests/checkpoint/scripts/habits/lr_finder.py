"""A range test looks for a learning rate first; then the model is put back and trained with it."""

import copy
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def find_lr(model, loader, criterion, low=1e-4, high=1.0):
    state = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=low)
    factor = (high / low) ** (1 / (len(loader) - 1))
    best, best_lr, smoothed = float("inf"), low, None
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smoothed = loss.item() if smoothed is None else 0.7 * smoothed + 0.3 * loss.item()
        if smoothed < best:
            best, best_lr = smoothed, optimizer.param_groups[0]["lr"]
        for group in optimizer.param_groups:
            group["lr"] *= factor
    model.load_state_dict(state)
    return best_lr / 2


def main():
    torch.manual_seed(89)
    x = torch.randn(70, 5)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=7, shuffle=True)
    model = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
    criterion = nn.MSELoss()
    lr = find_lr(model, loader, criterion)
    print(f"suggested learning rate: {lr:.2e}")
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    for epoch in range(4):
        for inputs, targets in loader:
            loss = criterion(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        print(f"epoch {epoch}: {losses[-1]:.5f}")
    torch.save({"model": model.state_dict(), "lr": lr, "losses": losses}, sys.argv[1])


if __name__ == "__main__":
    main()
