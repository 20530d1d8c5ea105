"""A wrapper around the loader that moves batches to a device."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_default_device():
    return torch.device("cpu")


def to_device(data, device):
    if isinstance(data, (list, tuple)):
        return [to_device(x, device) for x in data]
    return data.to(device, non_blocking=True)


class DeviceDataLoader:
    def __init__(self, dl, device):
        self.dl = dl
        self.device = device

    def __iter__(self):
        for b in self.dl:
            yield to_device(b, self.device)

    def __len__(self):
        return len(self.dl)


torch.manual_seed(126)
device = get_default_device()
dataset = TensorDataset(torch.randn(60, 6), torch.randint(0, 3, (60,)))
train_dl = DeviceDataLoader(DataLoader(dataset, batch_size=6, shuffle=True), device)
model = to_device(nn.Linear(6, 3), device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for epoch in range(4):
    train_losses = []
    for images, labels in train_dl:
        loss = nn.functional.cross_entropy(model(images), labels)
        train_losses.append(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    history.append(torch.stack(train_losses).mean().item())
    print(f"Epoch [{epoch}], train_loss: {history[-1]:.4f}")
torch.save({"model": model.state_dict(), "history": history}, sys.argv[1])
