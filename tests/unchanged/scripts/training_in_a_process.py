"""A model in shared memory that two started processes train one after the other."""

import torch
from torch import nn


def train(rank, model):
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3)).square().mean()
        loss.backward()
        optimizer.step()
    print(rank, repr(loss.item()), flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    model.share_memory()
    for rank in range(2):
        torch.multiprocessing.spawn(train, args=(model,), nprocs=1) if rank else train(rank, model)
    print(repr(model.weight.sum().item()))
