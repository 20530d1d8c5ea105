"""A base Trainer with empty hooks, and one of its own for each task that fills them in."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class BaseTrainer:
    def __init__(self, model, optimizer, loader):
        self.model = model
        self.optimizer = optimizer
        self.loader = loader

    def training_step(self, batch):
        raise NotImplementedError

    def on_epoch_end(self, epoch):
        pass

    def run_epoch(self):
        self.model.train()
        for batch in self.loader:
            self.optimizer.zero_grad()
            loss = self.training_step(batch)
            loss.backward()
            self.optimizer.step()

    def fit(self, epochs):
        for epoch in range(epochs):
            self.run_epoch()
            self.on_epoch_end(epoch)


class RegressionTrainer(BaseTrainer):
    def __init__(self, model, optimizer, loader):
        super().__init__(model, optimizer, loader)
        self.seen = 0
        self.losses = []
        self.means = []

    def training_step(self, batch):
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        self.seen += len(x)
        self.losses.append(loss.item())
        return loss

    def on_epoch_end(self, epoch):
        self.means.append(sum(self.losses) / len(self.losses))
        self.losses = []
        print(f"epoch {epoch}: {self.means[-1]:.4f} after {self.seen} samples")


torch.manual_seed(4)
data = TensorDataset(torch.randn(60, 5), torch.randn(60, 2))
loader = DataLoader(data, batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 2))
trainer = RegressionTrainer(model, torch.optim.Adam(model.parameters(), lr=0.01), loader)
trainer.fit(4)
torch.save({"model": model.state_dict(), "seen": trainer.seen, "means": trainer.means}, sys.argv[1])
