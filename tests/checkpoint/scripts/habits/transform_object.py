"""A transform with random numbers of its own, handed to the data set like torchvision's."""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


class RandomDrop:
    def __init__(self, p, seed):
        self.p = p
        self.random = random.Random(seed)

    def __call__(self, x):
        keep = [self.random.random() >= self.p for _ in range(len(x))]
        return x * torch.tensor(keep, dtype=x.dtype)


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


class VectorFolder(Dataset):
    def __init__(self, vectors, labels, transform=None):
        self.vectors, self.labels, self.transform = vectors, labels, transform

    def __len__(self):
        return len(self.vectors)

    def __getitem__(self, i):
        x = self.vectors[i]
        return (self.transform(x) if self.transform else x), self.labels[i]


torch.manual_seed(71)
transform = Compose([Scale(2.0), RandomDrop(0.2, seed=7)])
dataset = VectorFolder(torch.randn(60, 8), torch.randint(0, 3, (60,)), transform)
loader = DataLoader(dataset, batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch}: {losses[-1]:.4f}")
torch.save({"model": model.state_dict(), "losses": losses}, sys.argv[1])
