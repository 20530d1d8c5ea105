"""A loop over epochs and batches at the top of a file: `plain_loop.py EPOCHS [SAVED]`."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
epochs = int(sys.argv[1])
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(100, 4), torch.randn(100, 1)), batch_size=8, shuffle=True)
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}")
if len(sys.argv) > 2:
    torch.save({**model.state_dict(), "drawn": torch.rand(4)}, sys.argv[2])
