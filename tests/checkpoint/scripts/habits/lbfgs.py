"""LBFGS, whose step takes a closure."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(75)
x = torch.linspace(-2, 2, 48).unsqueeze(1)
y = torch.sin(3 * x) + 0.05 * torch.randn_like(x)
loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
seq = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1)).double()
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(seq.parameters(), lr=0.3, max_iter=4, history_size=5)
losses = []

for epoch in range(8):
    for inputs, target in loader:
        inputs, target = inputs.double(), target.double()

        def closure():
            optimizer.zero_grad()
            loss = criterion(seq(inputs), target)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        losses.append(loss.item())
    print(f"epoch {epoch}: {losses[-1]:.6f}")

torch.save({"seq": seq.state_dict(), "losses": losses}, sys.argv[1])
