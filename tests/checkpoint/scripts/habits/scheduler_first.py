"""The scheduler's step comes first in the epoch, as it was written long ago."""

import sys
import warnings

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
torch.manual_seed(35)
train_loader = DataLoader(TensorDataset(torch.randn(64, 5), torch.randint(0, 2, (64,))), 8, shuffle=True)
net = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 2))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
scheduler = lr_scheduler.ExponentialLR(optimizer, gamma=0.8)


def train(epoch):
    net.train()
    for batch_idx, (inputs, targets) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = criterion(net(inputs), targets)
        loss.backward()
        optimizer.step()
        if batch_idx % 4 == 0:
            print(f"Epoch {epoch} [{batch_idx}/{len(train_loader)}] loss {loss.item():.4f}")


rates = []
for epoch in range(5):
    scheduler.step()
    train(epoch)
    rates.append(scheduler.get_last_lr()[0])

torch.save({"net": net.state_dict(), "rates": rates}, sys.argv[1])
