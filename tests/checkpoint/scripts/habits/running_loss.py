"""An inner function that keeps a running loss and returns the last average; the best model counts."""

import sys

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
x = torch.randn(90, 6)
y = x @ torch.randn(6, 1) + 0.1 * torch.randn(90, 1)
training_loader = DataLoader(TensorDataset(x[:70], y[:70]), batch_size=6, shuffle=True)
validation_loader = DataLoader(TensorDataset(x[70:], y[70:]), batch_size=10)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
loss_fn = nn.MSELoss()
optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
EPOCHS = 4


def train_one_epoch(epoch_index):
    running_loss = 0.0
    last_loss = 0.0
    for i, data in enumerate(training_loader):
        inputs, targets = data
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        if i % 5 == 4:
            last_loss = running_loss / 5  # loss per batch
            print(f"  batch {i + 1} loss: {last_loss}")
            running_loss = 0.0
    return last_loss


best_vloss = 1_000_000.0
curve = []
for epoch in range(EPOCHS):
    print(f"EPOCH {epoch + 1}:")
    model.train(True)
    avg_loss = train_one_epoch(epoch)

    running_vloss = 0.0
    model.eval()
    with torch.no_grad():
        for i, vdata in enumerate(validation_loader):
            vinputs, vtargets = vdata
            running_vloss += loss_fn(model(vinputs), vtargets)
    avg_vloss = running_vloss / (i + 1)
    print(f"LOSS train {avg_loss} valid {avg_vloss}")
    curve.append((avg_loss, avg_vloss.item()))
    if avg_vloss < best_vloss:
        best_vloss = avg_vloss
        torch.save(model.state_dict(), f"model_{epoch}.pt")

torch.save({"model": model.state_dict(), "curve": curve, "best": float(best_vloss)}, sys.argv[1])
