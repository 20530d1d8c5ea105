"""The one-cycle schedule, a step of it per batch, learning rates written down."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(30)
out = Path(sys.argv[1])
data = TensorDataset(torch.randn(62, 8), torch.randint(0, 2, (62,)))
train_dl = DataLoader(data, batch_size=8, shuffle=True)
epochs, max_lr, grad_clip, weight_decay = 4, 0.05, 0.1, 1e-4
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def get_lr(optimizer):
    for param_group in optimizer.param_groups:
        return param_group["lr"]


def fit_one_cycle(epochs, max_lr, model, train_loader, opt_func=torch.optim.Adam):
    history = []
    optimizer = opt_func(model.parameters(), max_lr, weight_decay=weight_decay)
    sched = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr, epochs=epochs, steps_per_epoch=len(train_loader)
    )
    for epoch in range(epochs):
        model.train()
        train_losses = []
        lrs = []
        for batch in train_loader:
            xb, yb = batch
            loss = nn.functional.cross_entropy(model(xb), yb)
            train_losses.append(loss.detach())
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), grad_clip)
            optimizer.step()
            optimizer.zero_grad()
            lrs.append(get_lr(optimizer))
            sched.step()
        result = {"train_loss": torch.stack(train_losses).mean().item(), "lrs": lrs}
        print(f"Epoch [{epoch}], last_lr: {lrs[-1]:.5f}, train_loss: {result['train_loss']:.4f}")
        history.append(result)
    return history


history = fit_one_cycle(epochs, max_lr, model, train_dl)
torch.save({"model": model.state_dict(), "history": history}, out)
