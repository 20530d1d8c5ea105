"""An exponential moving average of the weights in a deep copy, updated after every step."""

import copy
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(26)


@torch.no_grad()
def update_ema(ema_model, model, decay=0.95):
    for ema_p, p in zip(ema_model.parameters(), model.parameters()):
        ema_p.mul_(decay).add_(p, alpha=1 - decay)


model = nn.Sequential(nn.Linear(5, 20), nn.SiLU(), nn.Linear(20, 1))
ema = copy.deepcopy(model).eval()
for parameter in ema.parameters():
    parameter.requires_grad_(False)
data = torch.randn(56, 5)
target = data.pow(2).mean(1, keepdim=True)
loader = DataLoader(TensorDataset(data, target), batch_size=7, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
gaps = []

for epoch in range(5):
    for x, t in loader:
        loss = nn.functional.mse_loss(model(x), t)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_ema(ema, model)
    with torch.no_grad():
        gap = nn.functional.mse_loss(ema(data), target) - nn.functional.mse_loss(model(data), target)
    gaps.append(gap.item())
    print(f"epoch {epoch}: the average is {gaps[-1]:+.5f} from the model")

torch.save({"model": model.state_dict(), "ema": ema.state_dict(), "gaps": gaps}, sys.argv[1])
