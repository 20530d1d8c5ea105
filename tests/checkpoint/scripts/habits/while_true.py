"""`while True` over epochs until the loss is small enough or patience ends."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(6)
X = torch.linspace(-1, 1, 56).unsqueeze(1)
Y = X**3 + 0.05 * torch.randn(56, 1)
loader = DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True)
net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
opt = torch.optim.Adam(net.parameters(), lr=0.01)
mse = nn.MSELoss()

epoch = 0
previous = float("inf")
curve = []
while True:
    epoch += 1
    total = 0.0
    for xb, yb in loader:
        opt.zero_grad()
        loss = mse(net(xb), yb)
        loss.backward()
        opt.step()
        total += loss.item()
    curve.append(total / len(loader))
    print(f"epoch {epoch}: {curve[-1]:.5f}")
    if curve[-1] > previous or curve[-1] < 0.02 or epoch == 5:
        break
    previous = curve[-1]

torch.save({"net": net.state_dict(), "curve": curve, "epochs": epoch}, sys.argv[1])
