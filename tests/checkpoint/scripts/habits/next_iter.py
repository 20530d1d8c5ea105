"""Steps with `next` on an iterator that is made anew when it is used up."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(13)
dataset = TensorDataset(torch.randn(50, 6), torch.randn(50, 1))
train_loader = DataLoader(dataset, batch_size=8, shuffle=True, drop_last=True)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

num_steps = 40
epochs_seen = 0
running = None
data_iter = iter(train_loader)
for step in range(num_steps):
    try:
        x, y = next(data_iter)
    except StopIteration:
        epochs_seen += 1
        data_iter = iter(train_loader)
        x, y = next(data_iter)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
    if step % 10 == 0:
        print(f"step {step} loss {running:.4f}")

torch.save({"model": model.state_dict(), "running": running, "epochs_seen": epochs_seen}, sys.argv[1])
