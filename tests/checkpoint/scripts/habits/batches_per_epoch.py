"""Epochs of so many hand-made random batches: `for _ in range(steps_per_epoch)`."""

import sys

import torch
from torch import nn

torch.manual_seed(12)
X_train = torch.rand(200, 3)
y_train = (X_train.prod(1, keepdim=True) * 10).round()
model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
epochs, steps_per_epoch, batch_size = 4, 10, 16


def sample_batch():
    rows = torch.randint(0, len(X_train), (batch_size,))
    return X_train[rows], y_train[rows]


history = []
for epoch in range(epochs):
    epoch_loss = 0.0
    for _ in range(steps_per_epoch):
        inputs, targets = sample_batch()
        loss = nn.functional.l1_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    history.append(epoch_loss / steps_per_epoch)
    print(f"epoch {epoch + 1}/{epochs} loss {history[-1]:.4f}")
torch.save({"model": model.state_dict(), "history": history}, sys.argv[1])
