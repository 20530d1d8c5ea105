"""A memory bank that a function updates in place; the function calls it by another name."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def update_memory(memory, features, index, momentum=0.5):
    with torch.no_grad():
        mixed = momentum * memory[index] + (1 - momentum) * features
        memory[index] = F.normalize(mixed, dim=1)


def nce_loss(features, bank, index, temperature=0.2):
    return F.cross_entropy(features @ bank.t() / temperature, index)


def main():
    torch.manual_seed(97)
    count, dim = 48, 5
    images = torch.randn(count, 9)
    loader = DataLoader(TensorDataset(images, torch.arange(count)), batch_size=6, shuffle=True)
    net = nn.Sequential(nn.Linear(9, 14), nn.ReLU(), nn.Linear(14, dim))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    memory_bank = F.normalize(torch.randn(count, dim), dim=1)
    losses = []
    for epoch in range(5):
        for x, index in loader:
            features = F.normalize(net(x), dim=1)
            loss = nce_loss(features, memory_bank, index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            update_memory(memory_bank, features.detach(), index)
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {losses[-1]:.4f}")
    torch.save({"net": net.state_dict(), "bank": memory_bank, "losses": losses}, sys.argv[1])


main()
