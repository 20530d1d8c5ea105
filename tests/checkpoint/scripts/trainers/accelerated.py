"""A loop over a loader that Accelerate has prepared, which loads a batch ahead; data draws random numbers.
`accelerated.py SAVED` and, among the names of the loader's configuration, LOADER."""

import os
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration


class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, at):
        return torch.randn(4) + at, torch.randn(1)


torch.manual_seed(0)
names = filter(None, os.environ.get("LOADER", "").split(","))
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**dict.fromkeys(names, True)))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
loader = torch.utils.data.DataLoader(Noisy(), batch_size=8, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
losses = []
for _ in range(4):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
torch.save({"model": model.state_dict(), "losses": losses, "optimizer": optimizer.state_dict()}, sys.argv[1])
