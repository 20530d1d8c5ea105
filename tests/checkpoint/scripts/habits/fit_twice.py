"""The same fit function for the pretext task and for the task."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fit(model, loader, loss_fn, lr, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses = []
    for epoch in range(epochs):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
        print(f"  epoch {epoch}: {losses[-1]:.4f}")
    return losses


torch.manual_seed(56)
signals = torch.randn(64, 12)
classes = (signals[:, ::2].sum(1) > 0).long()
encoder = nn.Sequential(nn.Linear(12, 8), nn.ReLU())
autoencoder = nn.Sequential(encoder, nn.Linear(8, 12))
classifier = nn.Sequential(encoder, nn.Linear(8, 2))
pretext = DataLoader(TensorDataset(signals + 0.1 * torch.randn(64, 12), signals), batch_size=8, shuffle=True)
task = DataLoader(TensorDataset(signals, classes), batch_size=8, shuffle=True)
print("reconstruction")
reconstruction = fit(autoencoder, pretext, nn.MSELoss(), 0.01, 2)
print("classification")
classification = fit(classifier, task, nn.CrossEntropyLoss(), 0.005, 3)
told = {"reconstruction": reconstruction, "classification": classification}
torch.save({"encoder": encoder.state_dict(), "classifier": classifier.state_dict(), **told}, sys.argv[1])
