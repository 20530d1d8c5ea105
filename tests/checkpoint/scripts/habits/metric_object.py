"""A metric with a state_dict of its own, which is reset at the start of each epoch."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Accuracy:
    def __init__(self):
        self.correct = torch.zeros((), dtype=torch.long)
        self.total = torch.zeros((), dtype=torch.long)

    def update(self, logits, target):
        self.correct += (logits.argmax(dim=1) == target).sum()
        self.total += target.numel()

    def compute(self):
        return (self.correct / self.total).item()

    def reset(self):
        self.correct.zero_()
        self.total.zero_()

    def state_dict(self):
        return {"correct": self.correct.clone(), "total": self.total.clone()}

    def load_state_dict(self, state):
        self.correct.copy_(state["correct"])
        self.total.copy_(state["total"])


torch.manual_seed(76)
loader = DataLoader(TensorDataset(torch.randn(65, 6), torch.randint(0, 3, (65,))), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 18), nn.ReLU(), nn.Linear(18, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
train_acc = Accuracy()
accuracies = []

for epoch in range(4):
    train_acc.reset()
    model.train()
    for x, y in loader:
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        train_acc.update(logits.detach(), y)
    accuracies.append(train_acc.compute())
    print(f"epoch {epoch}: accuracy {accuracies[-1]:.4f}")

torch.save({"model": model.state_dict(), "accuracies": accuracies}, sys.argv[1])
