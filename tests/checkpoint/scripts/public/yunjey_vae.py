"""A variational autoencoder in lines: sums as losses, and each epoch samples and reconstructions."""

import os
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
sample_dir = "samples"
if not os.path.exists(sample_dir):
    os.makedirs(sample_dir)
image_size, h_dim, z_dim, num_epochs, batch_size, learning_rate = 16, 12, 3, 4, 8, 1e-3
dataset = TensorDataset(torch.rand(72, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(72))
data_loader = DataLoader(dataset=dataset, batch_size=batch_size, shuffle=True)


class VAE(nn.Module):
    def __init__(self, image_size=16, h_dim=12, z_dim=3):
        super().__init__()
        self.fc1 = nn.Linear(image_size, h_dim)
        self.fc2 = nn.Linear(h_dim, z_dim)
        self.fc3 = nn.Linear(h_dim, z_dim)
        self.fc4 = nn.Linear(z_dim, h_dim)
        self.fc5 = nn.Linear(h_dim, image_size)

    def decode(self, z):
        return torch.sigmoid(self.fc5(F.relu(self.fc4(z))))

    def forward(self, x):
        h = F.relu(self.fc1(x))
        mu, log_var = self.fc2(h), self.fc3(h)
        z = mu + torch.randn_like(mu) * torch.exp(log_var / 2)
        return self.decode(z), mu, log_var


model = VAE().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
for epoch in range(num_epochs):
    for i, (x, _) in enumerate(data_loader):
        x = x.to(device).view(-1, image_size)
        x_reconst, mu, log_var = model(x)
        reconst_loss = F.binary_cross_entropy(x_reconst, x, reduction="sum")
        kl_div = -0.5 * torch.sum(1 + log_var - mu.pow(2) - log_var.exp())
        loss = reconst_loss + kl_div
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (i + 1) % 4 == 0:
            print(f"Epoch[{epoch + 1}/{num_epochs}], {i + 1}/{len(data_loader)}, {reconst_loss.item():.4f}")
    with torch.no_grad():
        z = torch.randn(batch_size, z_dim).to(device)
        out = model.decode(z).view(-1, 1, 4, 4)
        torch.save(out, os.path.join(sample_dir, f"sampled-{epoch + 1}.pt"))
        out, _, _ = model(x)
        x_concat = torch.cat([x.view(-1, 1, 4, 4), out.view(-1, 1, 4, 4)], dim=3)
        torch.save(x_concat, os.path.join(sample_dir, f"reconst-{epoch + 1}.pt"))
torch.save({"model": model.state_dict(), "last": x_concat}, sys.argv[1])
