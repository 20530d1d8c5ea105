"""A Trainer with fit, an epoch and a validation, and what it has seen in attributes."""

import sys
from collections import OrderedDict

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, optimizer, criterion, train_loader, val_loader, max_norm=1.0):
        self.model = model
        self.optimizer = optimizer
        self.criterion = criterion
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.max_norm = max_norm
        self.global_step = 0
        self.best_loss = float("inf")
        self.history = {"train": [], "val": [], "norm": []}

    def _train_step(self, x, y):
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()
        self.global_step += 1
        self.history["norm"].append(norm.item())
        self.history["train"].append(loss.item())

    def _run_epoch(self):
        self.model.train()
        for x, y in self.train_loader:
            self._train_step(x, y)

    @torch.no_grad()
    def _validate(self):
        self.model.eval()
        return sum(self.criterion(self.model(x), y).item() for x, y in self.val_loader) / len(self.val_loader)

    def fit(self, epochs):
        for epoch in range(epochs):
            self._run_epoch()
            val_loss = self._validate()
            self.history["val"].append(val_loss)
            if val_loss < self.best_loss:
                self.best_loss = val_loss
            print(f"epoch {epoch} step {self.global_step} val {val_loss:.4f} best {self.best_loss:.4f}")


torch.manual_seed(21)
x = torch.randn(96, 7)
y = torch.sin(x.sum(1, keepdim=True))
train_loader = DataLoader(TensorDataset(x[:76], y[:76]), batch_size=8, shuffle=True)
val_loader = DataLoader(TensorDataset(x[76:], y[76:]), batch_size=8)
layers = [("one", nn.Linear(7, 24)), ("act", nn.GELU()), ("drop", nn.Dropout(0.1)), ("two", nn.Linear(24, 1))]
model = nn.Sequential(OrderedDict(layers))
trainer = Trainer(model, torch.optim.AdamW(model.parameters()), nn.SmoothL1Loss(), train_loader, val_loader)
trainer.fit(4)
result = {"history": trainer.history, "best": trainer.best_loss, "steps": trainer.global_step}
torch.save({**result, "model": model.state_dict()}, sys.argv[1])
