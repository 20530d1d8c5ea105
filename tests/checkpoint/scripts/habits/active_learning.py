"""Each epoch the samples the model is least sure of are moved from the pool to the training set."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(88)
x = torch.randn(120, 4)
y = (x[:, 0] * x[:, 1] > 0).long()
everything = TensorDataset(x, y)
labeled = list(range(30))
pool = list(range(30, 120))
train_loader = DataLoader(Subset(everything, labeled), batch_size=6)
model = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
sizes = []

for epoch in range(5):
    model.train()
    for inputs, targets in train_loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        margin = model(x[pool]).softmax(1).sub(0.5).abs().sum(1)
    asked = [pool[i] for i in margin.argsort()[:12].tolist()]
    for index in asked:
        pool.remove(index)
        labeled.append(index)
    sizes.append(len(labeled))
    print(f"epoch {epoch}: loss {loss.item():.4f}, {len(labeled)} labeled")

torch.save({"model": model.state_dict(), "labeled": labeled, "sizes": sizes}, sys.argv[1])
