"""A loss module without parameters that anneals its own weight and remembers a running scale."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AnnealedLoss(nn.Module):
    def __init__(self, beta_step=0.02):
        super().__init__()
        self.beta = 0.0
        self.beta_step = beta_step
        self.scale = None

    def forward(self, reconstruction, x, mu, logvar):
        error = nn.functional.mse_loss(reconstruction, x)
        kl = -0.5 * torch.mean(1 + logvar - mu.pow(2) - logvar.exp())
        self.beta = min(1.0, self.beta + self.beta_step)
        value = error.detach()
        self.scale = value if self.scale is None else 0.9 * self.scale + 0.1 * value
        return error / self.scale + self.beta * kl


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 2 * 3)
        self.decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.decoder(z), mu, logvar


torch.manual_seed(82)
train_loader = DataLoader(TensorDataset(torch.rand(64, 8)), batch_size=8, shuffle=True)
model, criterion = VAE(), AnnealedLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(4):
    model.train()
    for batch_idx, (data,) in enumerate(train_loader):
        optimizer.zero_grad()
        recon, mu, logvar = model(data)
        loss = criterion(recon, data, mu, logvar)
        loss.backward()
        optimizer.step()
    print(f"====> Epoch: {epoch} loss: {loss.item():.4f} beta: {criterion.beta:.2f}")
torch.save({"model": model.state_dict(), "beta": criterion.beta, "scale": criterion.scale}, sys.argv[1])
