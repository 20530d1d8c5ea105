"""`for batch in tqdm(loader)`, nothing more."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

torch.manual_seed(40)
loader = DataLoader(TensorDataset(torch.randn(54, 3), torch.randn(54, 1)), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1))
optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
epoch_losses = []
for epoch in range(5):
    loss_sum = 0.0
    for features, target in tqdm(loader, desc=f"epoch {epoch}", leave=False):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(features), target)
        loss.backward()
        optimizer.step()
        loss_sum += loss.item()
    epoch_losses.append(loss_sum / len(loader))
    tqdm.write(f"epoch {epoch}: {epoch_losses[-1]:.4f}")
torch.save({"model": model.state_dict(), "epoch_losses": epoch_losses}, sys.argv[1])
