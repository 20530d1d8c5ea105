"""A main function that a decorator calls with a config of nested objects."""

import functools
import sys
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEFAULTS = {
    "seed": 46,
    "model": {"width": 20, "classes": 3},
    "training": {"epochs": 4, "lr": 0.01, "log_every": 4},
}


def to_namespace(tree):
    if isinstance(tree, dict):
        return SimpleNamespace(**{key: to_namespace(value) for key, value in tree.items()})
    return tree


def configured(defaults):
    def decorator(function):
        @functools.wraps(function)
        def main():
            cfg = to_namespace(defaults)
            cfg.out = sys.argv[-1]
            return function(cfg)

        return main

    return decorator


@configured(DEFAULTS)
def main(cfg):
    torch.manual_seed(cfg.seed)
    dataset = TensorDataset(torch.randn(60, 10), torch.randint(0, cfg.model.classes, (60,)))
    train_loader = DataLoader(dataset, batch_size=6, shuffle=True)
    model = nn.Sequential(
        nn.Linear(10, cfg.model.width), nn.ReLU(), nn.Linear(cfg.model.width, cfg.model.classes)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.training.lr)
    logged = []
    for epoch in range(cfg.training.epochs):
        for i, (x, y) in enumerate(train_loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if i % cfg.training.log_every == 0:
                logged.append((epoch, i, loss.item()))
    print(f"{len(logged)} losses logged, the last is {logged[-1]}")
    torch.save({"model": model.state_dict(), "logged": logged}, cfg.out)


if __name__ == "__main__":
    main()
