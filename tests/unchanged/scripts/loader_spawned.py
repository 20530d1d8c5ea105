"""A loader whose workers are interpreters of their own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        self.xs = torch.arange(24.0).reshape(24, 1) / 24

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return self.xs[index] + 0.1 * torch.rand(1), self.xs[index] * 2


def main():
    torch.manual_seed(4)
    loader = DataLoader(Rows(), batch_size=6, shuffle=True, num_workers=1, multiprocessing_context="spawn")
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        print(epoch, repr(loss.item()))


if __name__ == "__main__":
    main()
