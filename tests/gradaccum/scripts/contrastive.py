"""Two views of each sample; each is compared with all others of the batch, outside the model."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(9)
loader = DataLoader(TensorDataset(torch.randn(44, 10)), batch_size=16, shuffle=True, drop_last=True)
encoder = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 8))
optimizer = torch.optim.AdamW(encoder.parameters(), lr=0.01)
for _ in range(3):
    for (x,) in loader:
        one = functional.normalize(encoder(x + 0.1 * torch.randn_like(x)))
        two = functional.normalize(encoder(x + 0.1 * torch.randn_like(x)))
        loss = functional.cross_entropy(one @ two.t() / 0.2, torch.arange(len(x)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.save(encoder.state_dict(), sys.argv[1])
