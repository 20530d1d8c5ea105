"""The model is put into training mode once, before the loop; evaluation leaves it in the other mode."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum().item()
    return correct / len(loader.dataset)


torch.manual_seed(78)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))
train_loader = DataLoader(data, batch_size=8, shuffle=True)
test_loader = DataLoader(data, batch_size=32)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scores = []

model.train()
for epoch in range(5):
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    scores.append(evaluate(model, test_loader))
    print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {scores[-1]:.3f}")

torch.save({"model": model.state_dict(), "scores": scores}, sys.argv[1])
