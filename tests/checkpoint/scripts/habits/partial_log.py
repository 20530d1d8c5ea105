"""functools.partial gives a logging function the list that it fills."""

import sys
from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def record(store, name, value):
    store.setdefault(name, []).append(value)


def main():
    torch.manual_seed(109)
    data = TensorDataset(torch.randn(64, 5), torch.randint(0, 2, (64,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    store = {}
    log = partial(record, store)
    for epoch in range(4):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log("loss", loss.item())
        log("norm", model[0].weight.norm().item())
        print(f"epoch {epoch}: {loss.item():.4f}")
    torch.save({"model": model.state_dict(), **store}, sys.argv[1])


if __name__ == "__main__":
    main()
