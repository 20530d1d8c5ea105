"""Two collections of pictures that are walked through together: `enumerate(zip(a, b))`."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(18)
loader_a = DataLoader(TensorDataset(torch.rand(40, 8)), batch_size=5, shuffle=True)
loader_b = DataLoader(TensorDataset(torch.rand(48, 8) - 1), batch_size=5, shuffle=True)
a_to_b = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
b_to_a = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
optimizer = torch.optim.Adam([*a_to_b.parameters(), *b_to_a.parameters()], lr=2e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=4)
l1 = nn.L1Loss()

cycle_losses = []
for epoch in range(4):
    for i, ((a,), (b,)) in enumerate(zip(loader_a, loader_b)):
        fake_b, fake_a = a_to_b(a), b_to_a(b)
        loss_cycle = l1(b_to_a(fake_b), a) + l1(a_to_b(fake_a), b)
        loss_identity = l1(a_to_b(b), b) + l1(b_to_a(a), a)
        loss = 10 * loss_cycle + 5 * loss_identity
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        cycle_losses.append(loss_cycle.item())
        if i % 4 == 0:
            print(f"[{epoch}/{i}] {loss.item():.4f}")
    scheduler.step()

result = {"a_to_b": a_to_b.state_dict(), "b_to_a": b_to_a.state_dict(), "cycle_losses": cycle_losses}
torch.save(result, sys.argv[1])
