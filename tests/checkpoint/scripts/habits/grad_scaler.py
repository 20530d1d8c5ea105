"""Mixed precision with a GradScaler that is switched on, unscaling before clipping."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(24)
loader = DataLoader(
    TensorDataset(torch.randn(64, 16), torch.randint(0, 5, (64,))), batch_size=8, shuffle=True
)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7)
scales, losses = [], []

for epoch in range(4):
    for inputs, targets in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            outputs = model(inputs)
            loss = nn.functional.cross_entropy(outputs, targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        losses.append(loss.item())
    print(f"epoch {epoch}: scale {scales[-1]:.0f}, loss {losses[-1]:.4f}")

torch.save({"model": model.state_dict(), "scales": scales, "losses": losses}, sys.argv[1])
