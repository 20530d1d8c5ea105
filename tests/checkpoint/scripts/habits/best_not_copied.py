"""The best weights are kept in a dict that in truth shares the model's memory."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(6)
x = torch.randn(72, 5)
y = (x[:, 0] + 1.5 * torch.randn(72) > 0).long()
train_loader = DataLoader(TensorDataset(x[:56], y[:56]), batch_size=7, shuffle=True)
model = nn.Sequential(nn.Linear(5, 30), nn.ReLU(), nn.Linear(30, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
best_loss, best_weights, best_epoch = float("inf"), None, 0
val_losses = []

for epoch in range(5):
    for inputs, labels in train_loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        val_loss = nn.functional.cross_entropy(model(x[56:]), y[56:]).item()
    val_losses.append(val_loss)
    if val_loss < best_loss:
        best_loss, best_epoch = val_loss, epoch
        best_weights = {name: value for name, value in model.state_dict().items()}
    print(f"epoch {epoch}: {val_loss:.4f}, best {best_loss:.4f}")

model.load_state_dict(best_weights)
torch.save({"model": model.state_dict(), "best_epoch": best_epoch, "val": val_losses}, sys.argv[1])
