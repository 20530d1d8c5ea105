"""A loop with Accelerate's own accumulation, and dropout."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(96, 6), torch.randint(0, 5, (96,)))
model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.Linear(16, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=16))
steps = 0
try:
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            steps += accelerator.sync_gradients
finally:
    print(f"steps: {steps}")
