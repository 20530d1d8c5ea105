"""A moving average of the weights in a dict of tensors, by name."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(136)
x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
updates = 0
scores = []


def score_of_average():
    backup = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.load_state_dict(shadow)
    model.eval()
    with torch.no_grad():
        score = (model(x).argmax(1) == y).float().mean().item()
    model.load_state_dict(backup)
    model.train()
    return score


for epoch in range(4):
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        updates += 1
        decay = min(0.95, (1 + updates) / (10 + updates))
        for name, p in model.named_parameters():
            shadow[name] = decay * shadow[name] + (1 - decay) * p.detach()
    scores.append(score_of_average())
    print(f"epoch {epoch}: the average scores {scores[-1]:.3f}")

torch.save({"model": model.state_dict(), "shadow": shadow, "scores": scores}, sys.argv[1])
