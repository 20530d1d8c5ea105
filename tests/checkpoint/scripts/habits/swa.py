"""Stochastic weight averaging in the last epochs, with its own learning rate."""

import sys

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(28)
loader = DataLoader(TensorDataset(torch.randn(60, 7), torch.randn(60, 1)), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(7, 14), nn.BatchNorm1d(14), nn.ReLU(), nn.Linear(14, 1))
swa_model = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = CosineAnnealingLR(optimizer, T_max=5)
swa_start = 2
swa_scheduler = SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
lrs = []

for epoch in range(5):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    if epoch >= swa_start:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
    lrs.append(optimizer.param_groups[0]["lr"])
    print(f"epoch {epoch} lr {lrs[-1]:.4f} loss {loss.item():.4f}")

update_bn(loader, swa_model)
torch.save({"swa": swa_model.state_dict(), "model": model.state_dict(), "lrs": lrs}, sys.argv[1])
