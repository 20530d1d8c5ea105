"""A confusion matrix in a numpy array that every batch adds to, and class weights from it."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(77)
CLASSES = 3
x = torch.randn(72, 5)
y = (x[:, 0] * 1.5).round().clamp(-1, 1).long() + 1
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(5, 15), nn.ReLU(), nn.Linear(15, CLASSES))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
confusion = np.zeros((CLASSES, CLASSES), dtype=np.int64)
matrices = []

for epoch in range(4):
    confusion[:] = 0
    for inputs, labels in loader:
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        np.add.at(confusion, (labels.numpy(), logits.argmax(1).numpy()), 1)
    matrices.append(confusion.copy())
    recall = confusion.diagonal() / confusion.sum(axis=1).clip(min=1)
    print(f"epoch {epoch}: recall {np.round(recall, 3)}")

torch.save({"model": model.state_dict(), "matrices": np.stack(matrices)}, sys.argv[1])
