"""A numpy Generator that the loop draws noise levels from."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rng = np.random.default_rng(69)
torch.manual_seed(69)
clean = torch.from_numpy(rng.standard_normal((56, 12)).astype("float32"))
loader = DataLoader(TensorDataset(clean), batch_size=7, shuffle=True)
denoiser = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12))
optimizer = torch.optim.Adam(denoiser.parameters(), lr=3e-3)


def noisy(batch, sigma):
    return batch + torch.from_numpy(rng.normal(0.0, sigma, batch.shape).astype("float32"))


sigmas = []
for epoch in range(5):
    for (batch,) in loader:
        sigma = float(rng.choice([0.1, 0.3, 0.5]))
        loss = nn.functional.mse_loss(denoiser(noisy(batch, sigma)), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sigmas.append(sigma)
    print(f"epoch {epoch}: loss {loss.item():.4f} at sigma {sigma}")
torch.save({"denoiser": denoiser.state_dict(), "sigmas": sigmas}, sys.argv[1])
