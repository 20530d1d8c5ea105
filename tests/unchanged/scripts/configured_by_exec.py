"""Settings that are executed into the script's own names, as nanoGPT does."""

import sys

import torch
from torch import nn

steps, rate = 5, 0.1
keys = [
    name for name, value in globals().items() if not name.startswith("_") and isinstance(value, int | float)
]
exec("steps = 8\nrate = 0.05")
config = {name: globals()[name] for name in keys}
print(config, len(globals()))
torch.manual_seed(3)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
taken = 0
while True:
    optimizer.zero_grad()
    loss = model(torch.randn(4, 3)).square().mean()
    loss.backward()
    optimizer.step()
    taken += 1
    if taken > steps:
        break
print(taken, repr(loss.item()), config)
torch.save({"model": model.state_dict(), "config": config}, sys.argv[1])
