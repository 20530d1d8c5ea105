"""A progress bar around enumerate, in a function that gives the mean of the epoch."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


def train_fn(loader, model, optimizer, loss_fn):
    loop = tqdm(enumerate(loader), total=len(loader))
    total = 0.0
    for batch_idx, (data, targets) in loop:
        predictions = model(data)
        loss = loss_fn(predictions, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        loop.set_postfix(loss=loss.item(), batch=batch_idx)
    return total / len(loader)


def main():
    torch.manual_seed(41)
    x = torch.rand(64, 2)
    y = ((x[:, 0] > 0.5) ^ (x[:, 1] > 0.5)).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    means = []
    for epoch in range(5):
        means.append(train_fn(loader, model, optimizer, nn.CrossEntropyLoss()))
        print(f"epoch {epoch}: {means[-1]:.4f}")
    torch.save({"model": model.state_dict(), "means": means}, sys.argv[1])


if __name__ == "__main__":
    main()
