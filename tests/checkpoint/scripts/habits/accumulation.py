"""Gradients of three batches make up a step, and what is left over at the end of an epoch stays."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(50)
accum_iter = 3
loader = DataLoader(TensorDataset(torch.randn(120, 5), torch.randn(120, 1)), batch_size=4, shuffle=True)
loader_size = len(loader)
model = nn.Sequential(nn.Linear(5, 15), nn.ReLU(), nn.Linear(15, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
updates, shown = 0, []

for epoch in range(4):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y) / accum_iter
        loss.backward()
        if (i + 1) % accum_iter == 0 or (i + 1) == loader_size:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            updates += 1
            shown.append(loss.item() * accum_iter)
    print(f"epoch {epoch}: {updates} updates, loss {shown[-1]:.4f}")

torch.save({"model": model.state_dict(), "updates": updates, "shown": shown}, sys.argv[1])
