"""Noise from a generator that is seeded anew for each epoch, so that epochs can be repeated."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(123)
noise_generator = torch.Generator()
loader = DataLoader(TensorDataset(torch.randn(64, 10)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
drawn = []

for epoch in range(5):
    noise_generator.manual_seed(1000 + epoch)
    for (x,) in loader:
        noise = 0.3 * torch.randn(x.shape, generator=noise_generator)
        loss = nn.functional.mse_loss(model(x + noise), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        drawn.append(noise[0, 0].item())
    print(f"epoch {epoch}: loss {loss.item():.4f}")

torch.save({"model": model.state_dict(), "drawn": drawn}, sys.argv[1])
