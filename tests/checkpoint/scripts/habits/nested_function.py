"""Functions inside main that use its variables; one of them appends to a list of it."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(128)
    data = torch.randn(64, 6)
    loader = DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trace, best = [], {"loss": float("inf"), "step": -1}

    def remember(loss):
        trace.append(loss)
        if loss < best["loss"]:
            best["loss"], best["step"] = loss, len(trace)

    def train_step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        remember(loss.item())
        return loss

    for epoch in range(4):
        for x, y in loader:
            loss = train_step(x, y)
        print(f"epoch {epoch}: {loss.item():.4f}, best {best}")
    torch.save({"model": model.state_dict(), "trace": trace, "best": best}, sys.argv[1])


main()
