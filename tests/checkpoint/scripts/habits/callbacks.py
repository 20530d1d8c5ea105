"""A loop that tells a list of callback objects what happens."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Callback:
    def on_batch_end(self, learner, loss):
        pass

    def on_epoch_end(self, learner, epoch):
        pass


class LossRecorder(Callback):
    def __init__(self):
        self.losses = []

    def on_batch_end(self, learner, loss):
        self.losses.append(loss)


class LrHalver(Callback):
    def __init__(self, every):
        self.every = every
        self.halvings = 0

    def on_epoch_end(self, learner, epoch):
        if (epoch + 1) % self.every == 0:
            self.halvings += 1
            for group in learner.optimizer.param_groups:
                group["lr"] /= 2


class Learner:
    def __init__(self, model, loader, callbacks):
        self.model, self.loader, self.callbacks = model, loader, callbacks
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def fit(self, epochs):
        for epoch in range(epochs):
            for x, y in self.loader:
                loss = nn.functional.mse_loss(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                for callback in self.callbacks:
                    callback.on_batch_end(self, loss.item())
            for callback in self.callbacks:
                callback.on_epoch_end(self, epoch)


torch.manual_seed(8)
loader = DataLoader(TensorDataset(torch.randn(50, 3), torch.randn(50, 1)), batch_size=6, shuffle=True)
recorder, halver = LossRecorder(), LrHalver(every=2)
learner = Learner(nn.Linear(3, 1), loader, [recorder, halver])
learner.fit(4)
told = {"losses": recorder.losses, "halvings": halver.halvings}
torch.save({"model": learner.model.state_dict(), **told}, sys.argv[1])
