"""A schedule stepped every batch, an average of the weights, counters, validation every few steps."""

import copy
import sys

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(6)
loader = DataLoader(
    TensorDataset(torch.randn(64, 6), torch.randint(0, 4, (64,))), batch_size=24, shuffle=True
)
model = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 4))
average = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scheduler = OneCycleLR(optimizer, max_lr=0.2, epochs=4, steps_per_epoch=len(loader))
best, losses, step = None, [], 0
for _ in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        scheduler.step()
        average.update_parameters(model)
        step += 1
        losses.append(loss.item())
        if step % 3 == 0:
            model.eval()
            with torch.no_grad():
                right = (model(x).argmax(1) == y).double().mean()
            model.train()
            if best is None or right > best[0]:
                best = right, copy.deepcopy(model)
assert step == 12
state = {f"average.{name}": value for name, value in average.state_dict().items()}
torch.save({**model.state_dict(), **state, "losses": torch.tensor(losses), "best": best[0]}, sys.argv[1])
