"""Mixed precision as the tutorials have it: autocast, a GradScaler, clipping of unscaled gradients."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float32 if "--float32" in sys.argv else torch.float64)
torch.manual_seed(4)
loader = DataLoader(TensorDataset(torch.randn(60, 8), torch.randint(0, 3, (60,))), batch_size=25)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x).float() if "--float32" in sys.argv else model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
torch.save(model.state_dict(), sys.argv[1])
