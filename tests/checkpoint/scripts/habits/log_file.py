"""A log file that stays open around the whole training and gets a line per batch."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def log_line(file, text):
    file.write(text + "\n")
    file.flush()


torch.manual_seed(49)
loader = DataLoader(TensorDataset(torch.randn(48, 3), torch.randn(48, 1)), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
log = open("training.log", "w")
began = time.time()

for epoch in range(4):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log_line(log, f"{epoch},{i},{loss.item():.6f}")
    print(f"epoch {epoch} took until {time.time() - began:.1f} s")
log.close()

with open("training.log") as file:
    lines = [line.rstrip("\n") for line in file]
torch.save({"model": model.state_dict(), "lines": lines}, sys.argv[1])
