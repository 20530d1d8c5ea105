"""The weights at the start of the second epoch go to a file, to be compared with and rewound to."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(93)
loader = DataLoader(TensorDataset(torch.randn(80, 6), torch.randint(0, 2, (80,))), batch_size=5, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
REWIND_EPOCH = 1

for epoch in range(3):
    if epoch == REWIND_EPOCH:
        torch.save(model.state_dict(), "rewind.pt")
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")

rewind = torch.load("rewind.pt")
scores = (model[0].weight.detach() - rewind["0.weight"]).abs()
mask = scores > scores.median()
print(f"{int(mask.sum())} of {mask.numel()} weights have moved most")
torch.save({"model": model.state_dict(), "rewind": rewind, "mask": mask}, sys.argv[1])
