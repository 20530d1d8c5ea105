"""Statistics in a numpy table with named columns, errors that are kept, tensors of a class of its own."""

import sys

import numpy as np
import torch
from torch import nn


class Scaled(torch.Tensor):
    """A batch that knows its scale."""


torch.manual_seed(17)
table = np.zeros(6, dtype=[("steps", "i4"), ("loss", "f8")])
rows, targets = torch.randn(48, 6), torch.randn(48, 1)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
notes = []
for epoch in range(4):
    for start in range(0, 48, 8):
        x = rows[start : start + 8].clone().as_subclass(Scaled)
        x.scale = 1.0 + epoch
        loss = nn.functional.mse_loss(model(x) * x.scale, targets[start : start + 8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        place = table[start // 8]
        place["steps"] += 1
        place["loss"] += loss.item()
        notes.append(UserWarning(f"loss {loss.item():.3f}"))
        del notes[:-3]
torch.save({"model": model.state_dict(), "table": table, "notes": [str(each) for each in notes]}, sys.argv[1])
