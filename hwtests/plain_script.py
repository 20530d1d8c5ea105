"""A training script that knows nothing of cotenant: `python hwtests/plain_script.py --device cuda`.

Rule: nothing of ours is imported, and nothing is done for our sake. It prints a number per parameter, so that
two runs can be compared.
"""

from __future__ import annotations

import argparse
import json

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
options = parser.parse_args()

torch.manual_seed(3)
dtype = getattr(torch, options.dtype)
x, y = torch.randn(512, 64, dtype=dtype), torch.randint(10, (512,))
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 10))
model.to(options.device, dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for _ in range(3):
    for rows, labels in loader:
        optimizer.zero_grad()
        loss = functional.cross_entropy(
            model(rows.to(options.device)), labels.to(options.device), reduction="sum"
        )
        (loss / len(rows)).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

print(json.dumps([float(parameter.double().norm()) for parameter in model.parameters()]))
