"""Times of loading and computing are measured and printed; nothing of them is kept."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(99)
loader = DataLoader(
    TensorDataset(torch.randn(64, 32), torch.randint(0, 8, (64,))), batch_size=8, shuffle=True
)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
correct_per_epoch = []

start = time.time()
for epoch in range(4):
    epoch_start = time.time()
    data_time = compute_time = 0.0
    correct = 0
    end = time.perf_counter()
    for i, (x, y) in enumerate(loader):
        data_time += time.perf_counter() - end
        began = time.perf_counter()
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += (logits.argmax(1) == y).sum().item()
        compute_time += time.perf_counter() - began
        if i % 4 == 0:
            print(f"[{epoch}:{i}] data {data_time * 1e3:.1f} ms, compute {compute_time * 1e3:.1f} ms")
        end = time.perf_counter()
    correct_per_epoch.append(correct)
    print(f"epoch {epoch} took {time.time() - epoch_start:.2f}s")
print(f"total {time.time() - start:.2f}s")

torch.save({"model": model.state_dict(), "correct": correct_per_epoch}, sys.argv[1])
