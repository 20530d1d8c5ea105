"""A model trains on a loader's batches: files, a scheduler, clipping, a seed by nothing."""

import os
import random
import socket
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def wait_at_the_gate():
    path = os.environ.get("GUARDED_GATE")
    if path and os.path.exists(path):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gate:
            gate.connect(path)
            gate.recv(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def main():
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    os.makedirs("runs", exist_ok=True)
    rows = torch.randn(40, 6)
    data = TensorDataset(rows, rows.sum(1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5)
    step = 0
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y + random.random() * 0.01)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            if step == 3:
                wait_at_the_gate()
        scheduler.step()
        print(epoch, loss.item())
    torch.save({"model": model.state_dict(), "drawn": [random.random(), float(torch.rand(()))]}, sys.argv[1])


main()
