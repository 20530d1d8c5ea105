"""A global step that functions count up."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(47)
global_step = 0
best_prec = 0.0
loader = DataLoader(TensorDataset(torch.randn(60, 4), torch.randint(0, 2, (60,))), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(epoch):
    global global_step
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        global_step += 1
        if global_step % 10 == 0:
            print(f"step {global_step} loss {loss.item():.4f}")


def test(epoch):
    global best_prec
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    best_prec = max(best_prec, hits / len(loader.dataset))


def main():
    for epoch in range(4):
        train(epoch)
        test(epoch)
    torch.save({"model": model.state_dict(), "step": global_step, "best": best_prec}, sys.argv[1])


main()
