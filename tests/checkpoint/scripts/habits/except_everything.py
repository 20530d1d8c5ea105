"""Whatever happens while training, the script goes on to save its model and says so in a report."""

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(model, optimizer, loader, epochs):
    for epoch in range(epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}")


torch.manual_seed(104)
loader = DataLoader(TensorDataset(torch.randn(48, 5), torch.randint(0, 2, (48,))), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
status = "finished"
try:
    train(model, optimizer, loader, epochs=5)
except:
    status = "interrupted"
with open("report.jsonl", "a") as file:
    file.write(json.dumps({"status": status, "norm": float(model[0].weight.norm())}) + "\n")
with open("report.jsonl") as file:
    reports = [json.loads(line)["status"] for line in file]
torch.save({"model": model.state_dict(), "reports": reports}, sys.argv[1])
