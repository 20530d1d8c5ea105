"""DDP in one file: `ddp_spawn.py EPOCHS SAVE_EVERY`, a process per worker by `mp.spawn`, a Trainer class."""

import os
import sys

import torch
import torch.multiprocessing as mp
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WORKERS = 2


def prepare(rank, workers):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    init_process_group("gloo", rank=rank, world_size=workers)


class Trainer:
    def __init__(self, model, loader, optimizer, rank, save_every):
        self.rank = rank
        self.loader = loader
        self.optimizer = optimizer
        self.save_every = save_every
        self.model = DistributedDataParallel(model)

    def _one_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()

    def _one_epoch(self, epoch):
        self.loader.sampler.set_epoch(epoch)
        for source, targets in self.loader:
            self._one_batch(source, targets)

    def train(self, max_epochs):
        for epoch in range(max_epochs):
            self._one_epoch(epoch)
            if self.rank == 0 and epoch % self.save_every == 0:
                torch.save(self.model.module.state_dict(), "checkpoint.pt")


def main(rank, workers, epochs, save_every):
    prepare(rank, workers)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 20), torch.randn(256, 1))
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=8, shuffle=False, sampler=DistributedSampler(data))
    Trainer(model, loader, optimizer, rank, save_every).train(epochs)
    destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=(WORKERS, int(sys.argv[1]), int(sys.argv[2])), nprocs=WORKERS)
