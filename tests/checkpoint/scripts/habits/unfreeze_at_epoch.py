"""Layers are thawed one after the other, each at its epoch."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.lower = nn.Linear(9, 18)
        self.upper = nn.Linear(18, 18)
        self.head = nn.Linear(18, 4)

    def forward(self, x):
        return self.head(torch.relu(self.upper(torch.relu(self.lower(x)))))


def set_trainable(module, trainable):
    for p in module.parameters():
        p.requires_grad = trainable


torch.manual_seed(57)
data = TensorDataset(torch.randn(64, 9), torch.randint(0, 4, (64,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = Classifier()
set_trainable(model.lower, False)
set_trainable(model.upper, False)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
accs = []

for epoch in range(5):
    if epoch == 1:
        print("unfreezing the upper layer")
        set_trainable(model.upper, True)
    elif epoch == 2:
        print("unfreezing the lower layer")
        set_trainable(model.lower, True)
    correct = 0
    for x, y in loader:
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += (out.argmax(1) == y).sum().item()
    accs.append(correct / len(data))
    print(f"epoch {epoch}: accuracy {accs[-1]:.3f}")

torch.save({"model": model.state_dict(), "accs": accs}, sys.argv[1])
