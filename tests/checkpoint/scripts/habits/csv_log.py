"""A CSV file: its header is written before the loop, a row appended per epoch, all of it read at the end."""

import csv
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LOG = "train_log.csv"
FIELDS = ["epoch", "train_loss", "val_acc"]

torch.manual_seed(48)
x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def begin_log():
    with open(LOG, "w", newline="") as file:
        csv.writer(file).writerow(FIELDS)


def log_row(*values):
    with open(LOG, "a", newline="") as file:
        csv.writer(file).writerow(values)


begin_log()
for epoch in range(4):
    model.train()
    train_loss = 0.0
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        train_loss += loss.item() / len(loader)
    model.eval()
    with torch.no_grad():
        val_acc = (model(x).argmax(1) == y).float().mean().item()
    log_row(epoch, f"{train_loss:.6f}", f"{val_acc:.4f}")
    print(f"epoch {epoch}: {train_loss:.4f} {val_acc:.4f}")

with open(LOG, newline="") as file:
    rows = list(csv.DictReader(file))
print(f"{len(rows)} rows, the best accuracy is {max(float(row['val_acc']) for row in rows)}")
torch.save({"model": model.state_dict(), "rows": [dict(row) for row in rows]}, sys.argv[1])
