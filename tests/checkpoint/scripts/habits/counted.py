"""A decorator that counts calls and adds up what they return."""

import functools
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def counted(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        wrapper.calls += 1
        value = function(*args, **kwargs)
        wrapper.total += value
        return value

    wrapper.calls, wrapper.total = 0, 0.0
    return wrapper


torch.manual_seed(125)
loader = DataLoader(TensorDataset(torch.randn(54, 5), torch.randn(54, 1)), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


@counted
def train_step(x, y):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


for epoch in range(4):
    for x, y in loader:
        train_step(x, y)
    print(f"epoch {epoch}: {train_step.calls} calls, mean {train_step.total / train_step.calls:.4f}")

told = {"calls": train_step.calls, "total": train_step.total}
torch.save({"model": model.state_dict(), **told}, sys.argv[1])
