"""An epoch's function that sums up in a dict and in tensors, and returns the means."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def run_epoch(model, loader, optimizer=None):
    training = optimizer is not None
    model.train(training)
    stats = {"loss": 0.0, "correct": 0, "count": 0}
    per_class = torch.zeros(3)
    for x, y in loader:
        with torch.set_grad_enabled(training):
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
        if training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        stats["loss"] += loss.item() * len(y)
        stats["correct"] += (logits.argmax(1) == y).sum().item()
        stats["count"] += len(y)
        per_class.index_add_(0, y, torch.ones(len(y)))
    return stats["loss"] / stats["count"], stats["correct"] / stats["count"], per_class.tolist()


def main():
    torch.manual_seed(127)
    x, y = torch.randn(86, 6), torch.randint(0, 3, (86,))
    train_loader = DataLoader(TensorDataset(x[:66], y[:66]), batch_size=8, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[66:], y[66:]), batch_size=10)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rows = []
    for epoch in range(1, 5):
        train = run_epoch(model, train_loader, optimizer)
        val = run_epoch(model, val_loader)
        rows.append((train, val))
        print(f"{epoch}: train {train[0]:.4f} {train[1]:.3f} val {val[0]:.4f} {val[1]:.3f}")
    torch.save({"model": model.state_dict(), "rows": rows}, sys.argv[1])


if __name__ == "__main__":
    main()
