"""Ctrl-C ends the training early and what there is gets saved."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(103)
loader = DataLoader(TensorDataset(torch.randn(48, 6), torch.randn(48, 1)), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []

try:
    for epoch in range(5):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: {losses[-1]:.4f}")
except KeyboardInterrupt:
    print("Interrupted, saving the model as it is")
    torch.save(model.state_dict(), "interrupted.pt")
finally:
    torch.save({"model": model.state_dict(), "losses": losses}, sys.argv[1])
