"""Training by steps: a while loop around the loader, left in the middle when there were enough."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("output")
parser.add_argument("--max-steps", type=int, default=45)
parser.add_argument("--eval-every", type=int, default=15)
args = parser.parse_args()

torch.manual_seed(2)
data = TensorDataset(torch.randn(80, 4), torch.randint(0, 3, (80,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.max_steps)


def accuracy():
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(-1) == y).sum().item() for x, y in DataLoader(data, batch_size=40))
    model.train()
    return hits / len(data)


step = 0
losses, accuracies = [], []
model.train()
while step < args.max_steps:
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        step += 1
        if step % args.eval_every == 0:
            accuracies.append(accuracy())
            print(f"step {step}: accuracy {accuracies[-1]:.3f}")
        if step >= args.max_steps:
            break

torch.save({"model": model.state_dict(), "losses": losses, "accuracies": accuracies}, args.output)
