"""A generator of minibatches over two arrays, in a new order each time."""

import sys

import numpy as np
import torch
from torch import nn


def iterate_minibatches(inputs, targets, batchsize, shuffle=True):
    indices = np.arange(len(inputs))
    if shuffle:
        np.random.shuffle(indices)
    for start in range(0, len(inputs) - batchsize + 1, batchsize):
        excerpt = indices[start : start + batchsize]
        yield inputs[excerpt], targets[excerpt]


np.random.seed(115)
torch.manual_seed(115)
X = np.random.randn(80, 6).astype("float32")
Y = (X[:, 0] > X[:, 1]).astype("int64")
network = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
epochs, per_epoch = 4, []

for epoch in range(epochs):
    train_err, train_batches = 0.0, 0
    for inputs, targets in iterate_minibatches(X, Y, 8):
        loss = nn.functional.cross_entropy(network(torch.from_numpy(inputs)), torch.from_numpy(targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        train_err += loss.item()
        train_batches += 1
    per_epoch.append(train_err / train_batches)
    print(f"Epoch {epoch + 1} of {epochs}: training loss {per_epoch[-1]:.6f}")

torch.save({"network": network.state_dict(), "per_epoch": per_epoch}, sys.argv[1])
