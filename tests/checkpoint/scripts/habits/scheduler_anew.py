"""Each stage of the training has a scheduler of its own, made when the stage begins."""

import sys

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(134)
loader = DataLoader(TensorDataset(torch.randn(60, 6), torch.randn(60, 1)), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=len(loader))
lrs = []

for epoch in range(4):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        lrs.append(optimizer.param_groups[0]["lr"])
    if epoch == 0:
        print("the warm-up is over")
        scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3 * len(loader))
    print(f"epoch {epoch}: lr {lrs[-1]:.4f}, loss {loss.item():.4f}")

torch.save({"model": model.state_dict(), "lrs": lrs}, sys.argv[1])
