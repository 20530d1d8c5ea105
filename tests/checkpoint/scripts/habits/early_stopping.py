"""Patience counted in the loop, which ends early when validation gets no better."""

import copy
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, random_split
from torch.utils.data.dataset import TensorDataset

torch.manual_seed(6)
x = torch.randn(90, 10)
y = (x[:, :3].sum(1) + 2 * torch.randn(90) > 0).float().unsqueeze(1)
train_set, val_set = random_split(TensorDataset(x, y), [72, 18])
train_loader = DataLoader(train_set, batch_size=8, shuffle=True)
val_loader = DataLoader(val_set, batch_size=18)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

patience, waited = 2, 0
best_loss, best_epoch, best_model = float("inf"), -1, None
for epoch in range(6):
    model.train()
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()

    model.eval()
    val_loss = 0.0
    with torch.no_grad():
        for inputs, targets in val_loader:
            val_loss += criterion(model(inputs), targets).item()
    print(f"epoch {epoch}: val {val_loss:.4f}")

    if val_loss < best_loss:
        best_loss, best_epoch, waited = val_loss, epoch, 0
        best_model = copy.deepcopy(model.state_dict())
    else:
        waited += 1
        if waited >= patience:
            print(f"Early stopping after epoch {epoch}")
            break

model.load_state_dict(best_model)
told = {"best_loss": best_loss, "best_epoch": best_epoch, "last_epoch": epoch}
torch.save({"model": model.state_dict(), **told}, sys.argv[1])
