"""A process group of one, a model in DDP, worker processes, and many of the ways that the hook watches."""

import os
import socket
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def wait_at_the_gate():
    path = os.environ.get("GUARDED_GATE")
    if path and os.path.exists(path):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gate:
            gate.connect(path)
            gate.recv(1)


def main():
    torch.manual_seed(5)
    dist.init_process_group("gloo")
    rows = torch.randn(32, 4)
    data = TensorDataset(rows, rows.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    step = 0
    with open("log.txt", "w") as log:
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for x, y in loader:
                loss = (model(x) - y).square().mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                step += 1
                if step == 3:
                    wait_at_the_gate()
            log.write(f"{epoch} {loss.item()}\n")
            print(epoch, loss.item())
    torch.save(model.module.state_dict(), sys.argv[1])
    dist.destroy_process_group()


main()
