"""A data set with a numpy Generator for its augmentation, split by random_split."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class SensorDataset(Dataset):
    def __init__(self, length, seed):
        self.rng = np.random.default_rng(seed)
        self.signals = self.rng.standard_normal((length, 16)).astype(np.float32)
        self.labels = (self.signals.mean(axis=1) > 0).astype(np.int64)

    def __len__(self):
        return len(self.signals)

    def __getitem__(self, index):
        signal = self.signals[index]
        jitter = self.rng.normal(0, 0.05, signal.shape).astype(np.float32)
        scale = np.float32(self.rng.uniform(0.8, 1.2))
        return torch.from_numpy(signal * scale + jitter), self.labels[index]


torch.manual_seed(70)
full = SensorDataset(80, seed=70)
train_set, test_set = random_split(full, [64, 16])
train_loader = DataLoader(train_set, batch_size=8, shuffle=True)
test_loader = DataLoader(test_set, batch_size=16)
model = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
accuracy = []

for epoch in range(4):
    model.train()
    for signals, labels in train_loader:
        loss = nn.functional.cross_entropy(model(signals), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        hits = [(model(s).argmax(1) == y).float().mean().item() for s, y in test_loader]
    accuracy.append(sum(hits) / len(hits))
    print(f"epoch {epoch}: accuracy {accuracy[-1]:.3f}")

torch.save({"model": model.state_dict(), "accuracy": accuracy}, sys.argv[1])
