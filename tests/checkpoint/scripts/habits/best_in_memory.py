"""The best weights in memory as a deep copy, put back at the end."""

import copy
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fit(model, train_loader, val_loader, epochs=5, lr=0.02):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    criterion = nn.CrossEntropyLoss()
    best_acc, best_weights = 0.0, copy.deepcopy(model.state_dict())
    train_losses, val_accs = [], []
    for epoch in range(epochs):
        model.train()
        running = 0.0
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            running += loss.item() * x.size(0)
        train_losses.append(running / len(train_loader.dataset))
        model.eval()
        with torch.no_grad():
            hits = sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader)
        val_accs.append(hits / len(val_loader.dataset))
        if val_accs[-1] > best_acc:
            best_acc = val_accs[-1]
            best_weights = copy.deepcopy(model.state_dict())
        print(f"epoch {epoch}: loss {train_losses[-1]:.4f}, accuracy {val_accs[-1]:.3f}")
    model.load_state_dict(best_weights)
    return {"best_acc": best_acc, "train_losses": train_losses, "val_accs": val_accs}


torch.manual_seed(120)
x = torch.randn(84, 8)
y = (x[:, :2].prod(1) > 0).long()
train_loader = DataLoader(TensorDataset(x[:60], y[:60]), batch_size=8, shuffle=True)
val_loader = DataLoader(TensorDataset(x[60:], y[60:]), batch_size=24)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
result = fit(net, train_loader, val_loader)
torch.save({"net": net.state_dict(), **result}, sys.argv[1])
