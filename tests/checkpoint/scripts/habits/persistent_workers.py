"""Worker processes that stay for the whole training."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, count):
        self.rows = torch.arange(count * 4, dtype=torch.float32).view(count, 4).remainder(7)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i] + torch.randn(4), self.rows[i].sum(0, keepdim=True)


def main():
    torch.manual_seed(129)
    loader = DataLoader(Noisy(40), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for epoch in range(3):
        for x, y in loader:
            loss = nn.functional.l1_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: {losses[-1]:.4f}")
    torch.save({"model": model.state_dict(), "losses": losses}, sys.argv[1])


if __name__ == "__main__":
    main()
