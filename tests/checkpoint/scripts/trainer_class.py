"""A Trainer class as DDP tutorials have it, with a snapshot of its own: `trainer_class.py SAVED SNAPSHOT`."""

import os
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, train_data, optimizer, save_every, snapshot_path):
        self.model = model
        self.train_data = train_data
        self.optimizer = optimizer
        self.save_every = save_every
        self.epochs_run = 0
        self.best = float("inf")
        self.losses = []
        self.snapshot_path = snapshot_path
        if os.path.exists(snapshot_path):
            print("Loading snapshot")
            self._load_snapshot(snapshot_path)

    def _load_snapshot(self, snapshot_path):
        snapshot = torch.load(snapshot_path, weights_only=True)
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.epochs_run = snapshot["EPOCHS_RUN"]
        print(f"Resuming training from snapshot at Epoch {self.epochs_run}")

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = torch.nn.functional.cross_entropy(output, targets)
        loss.backward()
        self.optimizer.step()
        self.best = min(self.best, loss.item())
        self.losses.append(loss.item())

    def _run_epoch(self, epoch):
        b_sz = len(next(iter(self.train_data))[0])
        print(f"Epoch {epoch} | Batchsize: {b_sz} | Steps: {len(self.train_data)}", flush=True)
        for source, targets in self.train_data:
            self._run_batch(source, targets)

    def _save_snapshot(self, epoch):
        snapshot = {"MODEL_STATE": self.model.state_dict(), "EPOCHS_RUN": epoch}
        torch.save(snapshot, self.snapshot_path)
        print(f"Epoch {epoch} | Training snapshot saved at {self.snapshot_path}")

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
            if epoch % self.save_every == 0:
                self._save_snapshot(epoch)


def main(total_epochs=4):
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(53, 6), torch.randint(0, 3, (53,)))
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    trainer = Trainer(model, loader, optimizer, 1, sys.argv[2])
    trainer.train(total_epochs)
    told = {"losses": torch.tensor(trainer.losses), "best": torch.tensor(trainer.best)}
    torch.save({**model.state_dict(), **told}, sys.argv[1])


if __name__ == "__main__":
    main()
