"""numpy's default_rng is made anew for each epoch from the seed and the epoch's number."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = 124
torch.manual_seed(SEED)
rng = np.random.default_rng(SEED)
features = torch.from_numpy(rng.random((70, 6), dtype=np.float32))
labels = torch.from_numpy(rng.integers(0, 3, 70))
loader = DataLoader(TensorDataset(features, labels), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
masked = []

for epoch in range(4):
    rng = np.random.default_rng((SEED, epoch))
    for x, y in loader:
        column = int(rng.integers(x.shape[1]))
        x[:, column] = 0.0
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        masked.append(column)
    print(f"epoch {epoch}: loss {loss.item():.4f}, masked {masked[-len(loader) :]}")

torch.save({"model": model.state_dict(), "masked": masked}, sys.argv[1])
