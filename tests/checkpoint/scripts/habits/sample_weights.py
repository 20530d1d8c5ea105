"""Per-sample weights in a tensor: boosted where the loss is large, kept normalised."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(98)
n = 60
X, Y = torch.randn(n, 3), torch.randn(n, 1)
loader = DataLoader(TensorDataset(X, Y, torch.arange(n)), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(3, 10), nn.ELU(), nn.Linear(10, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
sample_weights = torch.ones(n)
history = []

for epoch in range(5):
    for x, y, idx in loader:
        losses = (model(x) - y).pow(2).squeeze(1)
        loss = (sample_weights[idx] * losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sample_weights[idx] *= 1.0 + 0.1 * torch.tanh(losses.detach())
    sample_weights.div_(sample_weights.mean())
    history.append(sample_weights.max().item())
    print(f"epoch {epoch}: largest weight {history[-1]:.3f}")

torch.save({"model": model.state_dict(), "weights": sample_weights, "history": history}, sys.argv[1])
