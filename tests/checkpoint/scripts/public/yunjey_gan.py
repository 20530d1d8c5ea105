"""A generative adversarial network in lines, with a function that resets both gradients; images per epoch."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
latent_size, hidden_size, image_size, num_epochs, batch_size = 4, 16, 16, 4, 8
sample_dir = "samples"
if not os.path.exists(sample_dir):
    os.makedirs(sample_dir)

mnist = TensorDataset(torch.rand(64, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(64))
data_loader = DataLoader(dataset=mnist, batch_size=batch_size, shuffle=True)
D = nn.Sequential(
    nn.Linear(image_size, hidden_size), nn.LeakyReLU(0.2), nn.Linear(hidden_size, 1), nn.Sigmoid()
)
G = nn.Sequential(
    nn.Linear(latent_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, image_size), nn.Tanh()
)
D = D.to(device)
G = G.to(device)
criterion = nn.BCELoss()
d_optimizer = torch.optim.Adam(D.parameters(), lr=0.0002)
g_optimizer = torch.optim.Adam(G.parameters(), lr=0.0002)


def denorm(x):
    out = (x + 1) / 2
    return out.clamp(0, 1)


def reset_grad():
    d_optimizer.zero_grad()
    g_optimizer.zero_grad()


total_step = len(data_loader)
for epoch in range(num_epochs):
    for i, (images, _) in enumerate(data_loader):
        images = images.reshape(batch_size, -1).to(device)
        real_labels = torch.ones(batch_size, 1).to(device)
        fake_labels = torch.zeros(batch_size, 1).to(device)

        outputs = D(images)
        d_loss_real = criterion(outputs, real_labels)
        real_score = outputs
        z = torch.randn(batch_size, latent_size).to(device)
        fake_images = G(z)
        outputs = D(fake_images)
        d_loss_fake = criterion(outputs, fake_labels)
        fake_score = outputs
        d_loss = d_loss_real + d_loss_fake
        reset_grad()
        d_loss.backward()
        d_optimizer.step()

        z = torch.randn(batch_size, latent_size).to(device)
        fake_images = G(z)
        outputs = D(fake_images)
        g_loss = criterion(outputs, real_labels)
        reset_grad()
        g_loss.backward()
        g_optimizer.step()
        if (i + 1) % 4 == 0:
            print(f"Epoch [{epoch}/{num_epochs}], Step [{i + 1}/{total_step}], {d_loss.item():.4f}")
            print(f"D(x): {real_score.mean().item():.2f}, D(G(z)): {fake_score.mean().item():.2f}")
    if (epoch + 1) == 1:
        images = images.reshape(images.size(0), 1, 4, 4)
        torch.save(denorm(images), os.path.join(sample_dir, "real_images.pt"))
    fake_images = fake_images.reshape(fake_images.size(0), 1, 4, 4)
    torch.save(denorm(fake_images).detach(), os.path.join(sample_dir, f"fake_images-{epoch + 1}.pt"))

torch.save({"G": G.state_dict(), "D": D.state_dict()}, sys.argv[1])
