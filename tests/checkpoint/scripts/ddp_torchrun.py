"""DDP for torchrun: a Trainer class that goes on from a snapshot. `ddp_torchrun.py --total-epochs N`."""

import argparse
import os

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, loader, optimizer, save_every, snapshot):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.train_data = loader
        self.optimizer = optimizer
        self.save_every = save_every
        self.epochs_run = 0
        self.snapshot = snapshot
        if os.path.exists(snapshot):
            found = torch.load(snapshot, weights_only=True)
            model.load_state_dict(found["model"])
            self.epochs_run = found["epoch"] + 1
        self.model = DistributedDataParallel(model)

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()

    def _run_epoch(self, epoch):
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self._run_batch(source, targets)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
            if self.local_rank == 0 and epoch % self.save_every == 0:
                torch.save({"model": self.model.module.state_dict(), "epoch": epoch}, self.snapshot)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-epochs", type=int, default=4)
    parser.add_argument("--snapshot", default="snapshot.pt")
    options = parser.parse_args()
    init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 20), torch.randn(256, 1))
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=8, shuffle=False, sampler=DistributedSampler(data))
    Trainer(model, loader, optimizer, 2, options.snapshot).train(options.total_epochs)
    destroy_process_group()


if __name__ == "__main__":
    main()
