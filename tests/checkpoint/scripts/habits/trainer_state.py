"""A Trainer whose counters are in a state object, which its methods take a short name for."""

import sys
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class TrainerState:
    epoch: int = 0
    global_step: int = 0
    best_metric: float = float("inf")
    running: float = 0.0


class Trainer:
    def __init__(self, model, loader, lr):
        self.model = model
        self.loader = loader
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.state = TrainerState()

    def train_epoch(self):
        state = self.state
        for x, y in self.loader:
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            state.global_step += 1
            state.running = 0.9 * state.running + 0.1 * loss.item()
            if state.running < state.best_metric:
                state.best_metric = state.running

    def train(self, epochs):
        for epoch in range(epochs):
            self.train_epoch()
            state = self.state
            state.epoch = epoch + 1
            print(f"epoch {state.epoch} step {state.global_step} smoothed loss {state.running:.4f}")


def main():
    torch.manual_seed(31)
    data = TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,)))
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    trainer = Trainer(model, DataLoader(data, batch_size=8, shuffle=True), lr=0.05)
    trainer.train(5)
    torch.save({"model": model.state_dict(), **vars(trainer.state)}, sys.argv[1])


if __name__ == "__main__":
    main()
