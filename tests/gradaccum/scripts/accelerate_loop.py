"""A loop with Accelerate's own accumulation, of a loss that is a mean over rows."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 5, (96,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
criterion = nn.CrossEntropyLoss()

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for _ in range(2):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = criterion(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

print(f"knob: {accelerator.gradient_accumulation_steps} steps of {loader.batch_sampler.batch_size} rows")
torch.save(accelerator.unwrap_model(model).state_dict(), sys.argv[1])
