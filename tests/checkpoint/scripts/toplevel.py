"""The plain pattern at the top level, its loop over batches in a function as in many examples."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(model, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % 2 == 0:
            print(f"epoch {epoch} [{batch_idx * len(data)}/{len(loader.dataset)}]", flush=True)


def test(model, loader):
    model.eval()
    with torch.no_grad():
        return sum(float(nn.functional.mse_loss(model(x), y, reduction="sum")) for x, y in loader)


torch.manual_seed(5)
dataset = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
train_loader = DataLoader(dataset, batch_size=8, shuffle=True)
test_loader = DataLoader(dataset, batch_size=20)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
history = {}
best = None
for epoch in range(1, 5):
    train(model, train_loader, optimizer, epoch)
    error = test(model, test_loader)
    history[epoch] = error
    if best is None or error < best:
        best = error
    scheduler.step()
told = {"history": torch.tensor(list(history.values())), "best": torch.tensor(best)}
torch.save({**model.state_dict(), **told}, sys.argv[1])
