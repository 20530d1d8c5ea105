"""ReduceLROnPlateau on the validation loss, the best model kept in a file."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += nn.functional.mse_loss(model(x), y, reduction="sum").item()
    return total / len(loader.dataset)


def main():
    torch.manual_seed(29)
    x = torch.randn(88, 6)
    y = torch.tanh(x @ torch.randn(6, 1))
    train_loader = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=8, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=24)
    model = nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Dropout(0.2), nn.Linear(30, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    os.makedirs("checkpoints", exist_ok=True)
    best_path = os.path.join("checkpoints", "best.pt")
    best, lrs = None, []
    for epoch in range(5):
        model.train()
        for xb, yb in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(xb), yb)
            loss.backward()
            optimizer.step()
        val = evaluate(model, val_loader)
        scheduler.step(val)
        lrs.append(optimizer.param_groups[0]["lr"])
        if best is None or val < best:
            best = val
            torch.save(model.state_dict(), best_path)
        print(f"epoch {epoch}: val {val:.4f} lr {lrs[-1]}")
    model.load_state_dict(torch.load(best_path))
    torch.save({"model": model.state_dict(), "best": best, "lrs": lrs}, sys.argv[1])


if __name__ == "__main__":
    main()
