"""Two worker processes that augment at random, with pictures of odd sizes."""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, count, train):
        generator = torch.Generator().manual_seed(count)
        self.pictures = torch.rand(count, 1, 6, 6, generator=generator)
        self.labels = torch.randint(0, 3, (count,), generator=generator)
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        picture = self.pictures[i]
        if self.train:
            if random.random() < 0.5:
                picture = picture.flip(-1)
            picture = picture + 0.05 * torch.randn_like(picture)
        return picture, self.labels[i]


def main():
    torch.manual_seed(66)
    train_loader = DataLoader(Pictures(36, True), batch_size=4, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for epoch in range(3):
        for pictures, labels in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: {losses[-1]:.4f}")
    torch.save({"model": model.state_dict(), "losses": losses}, sys.argv[1])


if __name__ == "__main__":
    main()
