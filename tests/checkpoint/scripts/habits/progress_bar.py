"""A progress bar made per epoch, with the loss behind it."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

torch.manual_seed(39)
EPOCHS = 4
train_ds = TensorDataset(torch.randn(60, 4), torch.randint(0, 2, (60,)).float())
train_dl = DataLoader(train_ds, batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loss_fn = nn.BCEWithLogitsLoss()
train_hist = []

for epoch in range(EPOCHS):
    running = 0.0
    pbar = tqdm(train_dl, desc=f"Epoch {epoch + 1}/{EPOCHS}")
    for x, y in pbar:
        optimizer.zero_grad()
        logits = model(x).squeeze(1)
        loss = loss_fn(logits, y)
        loss.backward()
        optimizer.step()
        running += loss.item()
        pbar.set_postfix(loss=loss.item())
    train_hist.append(running / len(train_dl))

torch.save({"model": model.state_dict(), "train_hist": train_hist}, sys.argv[1])
