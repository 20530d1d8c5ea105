"""A concise style: walrus, comprehensions, conditional expressions."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(100)
x, y = (t := torch.linspace(-1, 1, 60).unsqueeze(1)), t.abs()
loader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)
net = nn.Sequential(
    *[layer for i, o in ((1, 12), (12, 12)) for layer in (nn.Linear(i, o), nn.ReLU())], nn.Linear(12, 1)
)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
best, bad, trace = float("inf"), 0, []
for epoch in range(4):
    seen = []
    for xb, yb in loader:
        opt.zero_grad()
        (loss := nn.functional.mse_loss(net(xb), yb)).backward()
        opt.step()
        seen.append(value := loss.item())
        best, bad = (value, 0) if value < best else (best, bad + 1)
    trace.append((mean := sum(seen) / len(seen), best, bad))
    print(*(f"{name}={number:.4f}" for name, number in zip(("mean", "best", "bad"), trace[-1])))
    if bad > 25 and mean > 2 * best:
        [group.update(lr=group["lr"] / 2) for group in opt.param_groups]

torch.save({"net": net.state_dict(), "trace": trace}, sys.argv[1])
